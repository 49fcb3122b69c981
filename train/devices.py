"""How JAX is started, and the devices that share each batch."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA = "data"
"""The mesh's axis: each device takes its rows of a batch."""

MIN_ROWS = 8
"""A further device takes part only if each gets this many rows."""

LARGE = 256
"""With this many hidden units or more, two cores share each product better than they share the batch (measured)."""


XLA_FLAGS = "--xla_backend_extra_options=xla_cpu_use_multi_output_fusion=true,xla_cpu_disable_loop_unrolling=true"
"""On a CPU, fuse kernels that read the same arrays, and keep loops short. A step of the book's model has a thousand
kernels of a microsecond or two, and takes an eighth less time."""


def start_jax(num_hiddens: int = LARGE) -> None:
    """Configure JAX for a program, before its first computation: compiler, devices, and the compilation cache.

    `XLA_FLAGS` of the environment come last, so that they win.

    For a small model each CPU core becomes a device. XLA runs the small kernels of a recurrent step one after the
    other, and few of them keep two cores busy. With a device for each core, every core runs all kernels on its rows of
    the batch. A GPU is not affected.

    Compiled programs are kept in the user's cache folder and may be deleted at any time. `JAX_COMPILATION_CACHE_DIR`
    names another folder, and `JAX_ENABLE_COMPILATION_CACHE=0` turns the cache off.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if XLA_FLAGS not in given:
        os.environ["XLA_FLAGS"] = f"{XLA_FLAGS} {given}".strip()
    if num_hiddens < LARGE:
        with suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", usable_cores())
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        _cache_programs()


def usable_cores() -> int:
    """Return the number of cores that this process may use, where the system says so (Linux); else of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_programs() -> None:
    """Keep every compiled program, unless the folder cannot be written.

    Each machine has its own folder: a home may be shared, and a program is compiled for one kind of processor.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "jax-attn" / f"{platform.node() or 'machine'}-{platform.machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def data_mesh(batch_size: int | None = None) -> Mesh:
    """Return the mesh for batches of this size: as many local devices as divide it into at least `MIN_ROWS` rows.

    Without a size, all local devices: the batches are made to fit them.
    """
    devices = jax.local_devices()
    if batch_size is None:
        return Mesh(np.array(devices), (DATA,))
    counts = range(1, len(devices) + 1)
    count = max(n for n in counts if n == 1 or (batch_size % n == 0 and batch_size // n >= MIN_ROWS))
    return Mesh(np.array(devices[:count]), (DATA,))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Put whole arrays on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_batches(tree: Any, mesh: Mesh) -> Any:
    """Put arrays `[steps, batch, …]` on the mesh, each device with its rows of every batch."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(None, DATA)))


def first_copy(tree: Any) -> Any:
    """Return the first device's copy of replicated arrays."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)

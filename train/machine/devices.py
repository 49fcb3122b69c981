"""How JAX is started, and the devices that train together: a mesh, and what of an array is on each of them."""

import os
import platform
import re
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_attn.compiler import avoid_faults, require_device
from train.config import MeshShape
from train.setting import ConfigError

DATA, MODEL = "data", "model"
"""The mesh's axes: along `data` devices share each batch, along `model` they share the parameters."""

ROWS, COLUMNS, ENTRIES = PartitionSpec(MODEL, None), PartitionSpec(None, MODEL), PartitionSpec(MODEL)

RULES = (
    (r"embedding/embedding$", (ROWS, COLUMNS)),  # [vocabulary, features]
    (r"kernel(_ih|_hh)?(_l\d+)?(_reverse)?$", (COLUMNS, ROWS)),  # [features, vocabulary | gates | hidden units]
    (r"dense/bias$|dense_bias$", (ENTRIES,)),  # [vocabulary]
)
"""How the parameters are divided along `model`: the end of a parameter's name, and the ways to divide it, of which the
first that gives equal parts is taken. So embeddings and the output layer are divided by words, the other matrices by
the hidden units that they compute. What no rule names (the other biases), or no way divides, is whole on each device.
The optimiser's moments have the names of their parameters, and go with them."""

MIN_ROWS = 8
"""A further device takes part only if each gets this many rows."""

LARGE = 256
"""With this many hidden units or more, two cores share each product better than they share the batch (measured)."""

SPACE = 100_000_000
"""Bytes that must be free on a disk for compiled programs to be kept there. A training has some of 0.4 MB."""


def start_jax(num_hiddens: int = LARGE, num_devices: int | None = None, *, joins: bool = False) -> None:
    """Configure JAX for a program, before its first computation: compiler, devices, and the compilation cache.

    What `XLA_FLAGS` of the environment has stays as it is. The faults of this version of jaxlib are avoided.

    For a small model each CPU core becomes a device. XLA runs the small kernels of a step one after the
    other, and few of them keep two cores busy. With a device for each core, every core runs all kernels on its rows of
    the batch. A GPU is not affected.

    `num_devices` sets the number of devices on a CPU. With `joins` no device is looked for yet, since other processes
    have to be joined before.

    Compiled programs are kept in the user's cache folder and may be deleted at any time. `JAX_COMPILATION_CACHE_DIR`
    names another folder, and `JAX_ENABLE_COMPILATION_CACHE=0` turns the cache off.
    """
    avoid_faults()
    if num_devices is None and num_hiddens < LARGE:
        num_devices = usable_cores()
    if num_devices is not None:
        with suppress(RuntimeError):  # JAX has its devices already
            jax.config.update("jax_num_cpu_devices", num_devices)
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        _cache_programs()
    if not joins:
        require_device()


def usable_cores() -> int:
    """Return the number of cores that this process may use, where the system says so (Linux); else of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_programs() -> None:
    """Keep every compiled program, unless the folder cannot be written or its disk is full.

    Each machine has its own folder: a home may be shared, and a program is compiled for one kind of processor. On a
    full disk JAX would leave programs that are cut short, and warn of each.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "jax-attn" / f"{platform.node() or 'machine'}-{platform.machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        has_space = shutil.disk_usage(folder).free > SPACE
    except OSError:
        return
    if has_space and os.access(folder, os.W_OK):
        warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry")
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def make_mesh(shape: MeshShape | None = None, batch_size: int | None = None) -> Mesh:
    """Return the mesh of a shape, over the devices of all processes, with the axes `data` and `model`.

    Without a shape, as many devices of each process as divide the batch into at least `MIN_ROWS` rows, or all of them
    where there is no size.

    Raises:
        ConfigError: there are too few devices, the processes cannot have equal parts, or the batch cannot be divided.
    """
    processes, available = jax.process_count(), jax.local_device_count()
    if shape is None:
        counts = [n * processes for n in range(1, available + 1)]
        fitting = [n for n in counts if batch_size is None or (batch_size % n == 0 and batch_size // n >= MIN_ROWS)]
        shape = MeshShape(max(fitting, default=processes))
    if shape.size % processes:
        raise ConfigError(f"mesh {shape} has {shape.size} devices, which {processes} processes cannot share evenly")
    count = shape.size // processes
    if count > available:
        each = " in each process" if processes > 1 else ""
        raise ConfigError(f"mesh {shape} needs {count} devices{each}; there are {available}")
    if batch_size is not None and batch_size % shape.data:
        raise ConfigError(f"mesh {shape} cannot share a batch of {batch_size} rows: data must divide it")
    devices = [[d for d in jax.devices() if d.process_index == i][:count] for i in range(processes)]
    return Mesh(np.array(devices).reshape(shape), (DATA, MODEL))


def own_rows(mesh: Mesh, num_rows: int) -> slice:
    """Return the rows of a batch that the devices of this process compute."""
    own = [i for i, group in enumerate(mesh.devices) if any(d.process_index == jax.process_index() for d in group)]
    rows = num_rows // mesh.shape[DATA]
    return slice(own[0] * rows, (own[-1] + 1) * rows)


def shard_batches(tree: Any, mesh: Mesh) -> Any:
    """Make arrays `[steps, batch, …]` on the mesh of the rows that each process has read, see `own_rows`."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec(None, DATA)), tree)


def placement(tree: Any, mesh: Mesh) -> Any:
    """Return where each array of a training's state is, by `RULES`; only shapes are read."""
    parts = mesh.shape[MODEL]

    def place(path: Any, x: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        ways = next((ways for end, ways in RULES if parts > 1 and re.search(end, name)), ())
        fits = (way for way in ways if x.shape[tuple(way).index(MODEL)] % parts == 0)
        return NamedSharding(mesh, next(fits, PartitionSpec()))

    return jax.tree_util.tree_map_with_path(place, tree)


def distribute(tree: Any, mesh: Mesh) -> Any:
    """Put arrays that each process holds whole on the mesh, each device with its part; see `placement`."""

    def put(x: Any, where: NamedSharding) -> Array:
        if isinstance(x, Array) and x.sharding == where:
            return x
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, where, lambda index: whole[index])

    return jax.tree.map(put, tree, placement(tree, mesh))


def gather(x: Array) -> np.ndarray:
    """Copy an array that is divided among devices to the memory of each process; all processes call it."""
    if x.is_fully_replicated:
        return np.array(x.addressable_data(0))
    return np.array(x if x.is_fully_addressable else multihost_utils.process_allgather(x, tiled=True))


def copy(x: Array) -> Array:
    """Copy an array, each device its part."""
    parts = [jax.device_put(np.array(shard.data), shard.device) for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)


def sum_over_data(tree: Any, mesh: Mesh) -> Any:
    """Within `shard_map`: add up what the devices along `data` have computed, in one collective operation.

    On a CPU, XLA lets the devices wait for one another at each array, so there all arrays are made one. It adds the
    devices of one process in their order, but those of several processes in another, so that the last bits would
    differ. With several, each device therefore gets one part from the others, adds up these in their order, and sends
    the sum to the others: as many bytes as any sum over devices takes.
    """
    count = mesh.shape[DATA]
    if jax.default_backend() != "cpu" or mesh.shape[MODEL] > 1:
        return jax.lax.psum(tree, DATA)
    flat, restore = ravel_pytree(tree)
    if jax.process_count() == 1:
        return restore(jax.lax.psum(flat, DATA))
    parts = jnp.pad(flat, (0, -flat.size % count)).reshape(count, -1)
    mine = jax.lax.all_to_all(parts, DATA, 0, 0).sum(axis=0)
    return restore(jax.lax.all_gather(mine, DATA, tiled=True)[: flat.size])

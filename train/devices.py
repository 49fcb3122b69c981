"""The devices that a batch is shared out among."""

import os
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH = "batch"
"""The mesh's axis: each device takes its rows of a batch."""

FEWEST_ROWS = 8
"""With fewer rows for each, a further device is not worth it."""

LARGE = 256
"""From so many hidden units on, a CPU's cores share each product better than they share the batch (measured on two)."""


def share_cores(num_hiddens: int) -> None:
    """Make each core a device for a small model, if JAX has not started yet; a GPU stays what it is.

    XLA runs the small kernels of a recurrent step one after the other on a CPU, and few of them keep two cores busy.
    With a device on each core, every core runs all of them, on its share of the batch. Large products are the faster
    for all cores in one device, and slower already for a second device that does nothing.
    """
    if num_hiddens < LARGE:
        with suppress(RuntimeError):  # JAX has its devices already, and goes on with them
            jax.config.update("jax_num_cpu_devices", usable_cores())


def usable_cores() -> int:
    """The cores that this process may run on, where the system tells (Linux); else those that there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def batch_mesh(batch_size: int) -> Mesh:
    """As many of the devices as each get some rows to work on."""
    return Mesh(np.array(jax.local_devices()[: max(1, batch_size // FEWEST_ROWS)]), (BATCH,))


def on_each(tree: Any, mesh: Mesh) -> Any:
    """The arrays of a tree, whole on each device."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def on_one(tree: Any) -> Any:
    """The first device's copy of arrays that each device has."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def split(tree: Any, mesh: Mesh, axis: int = 0) -> Any:
    """The arrays of a tree, their rows shared out among the devices."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*[None] * axis, BATCH)))

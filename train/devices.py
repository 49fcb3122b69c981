"""The devices that a batch is shared out among."""

import os

import jax
import numpy as np
from jax.sharding import Mesh

BATCH = "batch"
"""The mesh's axis: each device takes its rows of the batch."""


def use_all_cores() -> None:
    """Make each core a device; to be called before JAX is first asked for one, and of no effect after that.

    XLA's CPU client runs the small kernels of a recurrent step one after the other, and few of them fill two cores. As
    two devices, each core runs all of them on half of the batch. On a GPU nothing changes.
    """
    if not jax._src.xla_bridge.backends_are_initialized():
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


def batch_mesh(batch_size: int) -> Mesh:
    """As many of the devices as share out a batch evenly."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    return Mesh(np.array(devices[:count]), (BATCH,))

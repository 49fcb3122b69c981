"""What several tests of this library draw their parameters with."""

from typing import Any

import jax
import numpy as np


def random_params(module: Any, *inputs: Any) -> Any:
    """Parameters of the right shapes, none of them zero; drawn by NumPy, which needs no compiling."""
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    return jax.tree.map(lambda leaf: jax.device_put((random.normal(size=leaf.shape) / 2).astype(leaf.dtype)), shapes)

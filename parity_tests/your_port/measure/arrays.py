"""Arrays of either framework as NumPy's. Imports no torch."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def to_numpy(tensor: Any) -> np.ndarray:
    """Convert a tensor of any framework to a NumPy array with the same bits, bfloat16 included."""
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # not a dtype of NumPy; float32 holds each number exactly
            return tensor.float().numpy().astype(jnp.bfloat16)
        return tensor.numpy()
    return np.asarray(tensor)

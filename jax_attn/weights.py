"""Convert parameters between PyTorch's and Flax's names and layouts, exactly and in both directions, without torch.

Both sides describe the same tree, so one rule for each leaf is enough:

    Flax leaf                       PyTorch leaf               array
    `kernel` [in, out]              `weight` [out, in]         transposed
    `kernel_ih_l0` [in, gates]      `weight_ih_l0`             transposed
    `embedding` [vocab, features]   `weight`                   as it is
    `scale` [features]              `weight`                   as it is
    anything else                   the same name              as it is

The path `encoder / rnn / kernel_ih_l0` becomes the name `encoder.rnn.weight_ih_l0`. The layers of a list, `layers_0` in
Flax, are `layers.0` in PyTorch. A format that differs by more, such
as by the order of gates, has a file of its own in `jax_attn.checkpoints`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

Params = Mapping[str, Any]


class Leaf(NamedTuple):
    """The PyTorch name of a Flax leaf, and whether PyTorch stores it transposed."""

    name: str
    transposed: bool


def torch_leaf(path: tuple[str, ...]) -> Leaf:
    """Apply the rule above: `("encoder", "rnn", "kernel_ih_l0")` is `encoder.rnn.weight_ih_l0`, transposed."""
    *scopes, leaf = path
    transposed = leaf == "kernel" or leaf.startswith("kernel_")
    if transposed:
        leaf = "weight" + leaf.removeprefix("kernel")
    elif leaf in ("embedding", "scale"):
        leaf = "weight"
    scopes = [re.sub(r"^layers_(\d+)$", r"layers.\1", scope) for scope in scopes]
    return Leaf(".".join([*scopes, leaf]), transposed)


def from_torch(state_dict: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """Fill a parameter tree of the structure of `params` from a PyTorch state dict.

        params = model.init(key, ...)
        params = from_torch(torch_model.state_dict(), params)

    Args:
        state_dict: names to tensors on the CPU, or to anything that NumPy can read. JAX arrays may be traced, so that
            `jax.grad` gives gradients under PyTorch's names.
        params: the tree from `init`, with or without the outer `"params"`. Only names, shapes and dtypes are read.

    Returns:
        A tree of new arrays, each in the dtype of its leaf in `params`.

    Raises:
        KeyError: missing or unused keys; the message lists all.
        ValueError: a different shape; the message gives both in PyTorch's layout. Nothing is broadcast or reshaped.
        TypeError: a dtype that would lose digits, such as float64 into float32; integers or booleans where `params` has
            floats.
    """
    flat, outer = _flatten(params)
    leaves = {path: torch_leaf(path) for path in flat}
    missing = sorted({leaf.name for leaf in leaves.values()} - set(state_dict))
    unused = sorted(set(state_dict) - {leaf.name for leaf in leaves.values()})
    if missing or unused:
        raise KeyError(f"the state dict does not fit the parameters; missing: {missing}; not used: {unused}")
    filled = {path: _fill(leaves[path], state_dict[leaves[path].name], like) for path, like in flat.items()}
    return outer(unflatten_dict(filled))


def _fill(leaf: Leaf, tensor: Any, like: Any) -> Any:
    array = tensor if isinstance(tensor, Array) else to_numpy(tensor)
    _require_matrix(leaf, like)
    expected = like.shape[::-1] if leaf.transposed else like.shape
    if array.shape != tuple(expected):
        raise ValueError(f"{leaf.name} must be {list(expected)}; got {list(array.shape)}")
    if jnp.issubdtype(like.dtype, jnp.floating) and not jnp.issubdtype(array.dtype, jnp.inexact):
        raise TypeError(f"{leaf.name} must have a floating dtype; got {array.dtype}")
    if not np.can_cast(array.dtype, like.dtype):
        raise TypeError(f"{leaf.name} is {array.dtype} and would lose digits as {like.dtype}; convert it first")
    array = array.T if leaf.transposed else array
    return jnp.array(array, like.dtype) if isinstance(array, Array) else jax.device_put(_copy(array, like.dtype))


def _copy(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Copy an array, since torch may go on training it. JAX would compile a program for each shape to do so.

    The copy begins at a multiple of 64 bytes, where JAX on a CPU takes an array over without copying it once more.
    """
    memory = np.empty(array.size * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + memory.size - 64].view(dtype).reshape(array.shape)
    if array.flags.f_contiguous and array.ndim == 2:  # block by block such a matrix is read almost at memory's speed
        for i in range(0, array.shape[1], 64):
            copy[:, i : i + 64] = array[:, i : i + 64]
    else:
        copy[...] = array
    return copy


def _require_matrix(leaf: Leaf, array: Any) -> None:
    """Raise ValueError for a kernel that is not a matrix, such as a convolution's: `.T` would swap height and width."""
    if leaf.transposed and len(array.shape) != 2:
        raise ValueError(f"{leaf.name} must be a matrix to be transposed; got {list(array.shape)}")


def to_numpy(tensor: Any) -> np.ndarray:
    """Convert a tensor of any framework to a NumPy array with the same bits, bfloat16 included."""
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # not a dtype of NumPy; float32 holds each number exactly
            return tensor.float().numpy().astype(jnp.bfloat16)
        return tensor.numpy()
    return np.asarray(tensor)


def to_torch(params: Params) -> dict[str, np.ndarray]:
    """Return PyTorch's names and NumPy arrays in PyTorch's layout, the inverse of `from_torch`.

        torch_model.load_state_dict({name: torch.from_numpy(array) for name, array in to_torch(params).items()})

    Raises:
        ValueError: two leaves with the same name in PyTorch.
    """
    flat, _ = _flatten(params)
    arrays: dict[str, np.ndarray] = {}
    for path, value in flat.items():
        leaf = torch_leaf(path)
        if leaf.name in arrays:
            raise ValueError(f"two parameters are both called {leaf.name} in PyTorch; one of them is {'/'.join(path)}")
        _require_matrix(leaf, value)
        array = np.asarray(value)
        arrays[leaf.name] = np.array(array.T if leaf.transposed else array, order="C")  # a writable copy
    return arrays


def _flatten(params: Params) -> tuple[dict[tuple[str, ...], Any], Any]:
    """Return the leaves by path, without the outer `"params"`, and a function that adds it again."""
    wrapped = set(params) == {"params"}
    tree = params["params"] if wrapped else params
    return flatten_dict(tree), (lambda tree: {"params": tree}) if wrapped else (lambda tree: tree)

"""A parameter set between PyTorch's names and layouts and Flax's, exactly and in both directions, without torch.

Both sides describe the same tree, so one rule for each leaf is all there is:

    Flax leaf                       PyTorch leaf               array
    `kernel` [in, out]              `weight` [out, in]         transposed
    `kernel_ih_l0` [in, gates]      `weight_ih_l0`             transposed
    `embedding` [vocab, features]   `weight`                   as it is
    `scale` [features]              `weight`                   as it is
    anything else                   the same name              as it is

and a path `encoder / rnn / kernel_ih_l0` is the name `encoder.rnn.weight_ih_l0`. What differs by more than that, such
as another order of gates, is a foreign format and has a file of its own under `jax_attn.checkpoints`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

Params = Mapping[str, Any]


class Leaf(NamedTuple):
    """What a Flax leaf is called in PyTorch, and whether it lies there transposed."""

    name: str
    transposed: bool


def torch_leaf(path: tuple[str, ...]) -> Leaf:
    """The rule above: `("encoder", "rnn", "kernel_ih_l0")` is `encoder.rnn.weight_ih_l0`, transposed."""
    *scopes, leaf = path
    transposed = leaf == "kernel" or leaf.startswith("kernel_")
    if transposed:
        leaf = "weight" + leaf.removeprefix("kernel")
    elif leaf in ("embedding", "scale"):
        leaf = "weight"
    return Leaf(".".join([*scopes, leaf]), transposed)


def from_torch(state_dict: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """A parameter tree of the shape of `params`, filled from a PyTorch state dict.

        params = model.init(key, ...)
        params = from_torch(torch_model.state_dict(), params)

    Args:
        state_dict: names to tensors, or to anything that NumPy can read (tensors must be on the CPU). JAX arrays may be
            traced: gradients go through, and have PyTorch's names.
        params: the tree from `init`, with or without its outer `"params"`; only names, shapes and dtypes are read.

    Returns:
        A tree of new arrays, each in the dtype of its leaf in `params`.

    Raises:
        KeyError: a leaf that the state dict does not fill, or a key that no leaf takes; all are listed.
        ValueError: a shape that differs; both are given, in PyTorch's layout. Nothing is broadcast or reshaped.
        TypeError: a dtype that would lose something, such as float64 into float32.
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
    if jnp.promote_types(array.dtype, like.dtype) != like.dtype:
        raise TypeError(f"{leaf.name} is {array.dtype} and would lose digits as {like.dtype}; convert it first")
    array = array.T if leaf.transposed else array
    if isinstance(array, Array):
        return jnp.array(array, like.dtype)
    # A copy, as torch may go on training its own; NumPy's, as JAX would compile a program for each shape.
    return jax.device_put(np.array(array, like.dtype, order="C"))


def _require_matrix(leaf: Leaf, array: Any) -> None:
    """ValueError for a kernel that is no matrix: reversing the axes of a convolution's would swap height and width."""
    if leaf.transposed and len(array.shape) != 2:
        raise ValueError(f"{leaf.name} must be a matrix to be transposed; got {list(array.shape)}")


def to_numpy(tensor: Any) -> np.ndarray:
    """A tensor of any framework as a NumPy array with the same bits, bfloat16 included."""
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such dtype of its own; float32 holds each exactly
            return tensor.float().numpy().astype(jnp.bfloat16)
        return tensor.numpy()
    return np.asarray(tensor)


def to_torch(params: Params) -> dict[str, np.ndarray]:
    """The inverse of `from_torch`: PyTorch's names to NumPy arrays in PyTorch's layout.

        torch_model.load_state_dict({name: torch.from_numpy(array) for name, array in to_torch(params).items()})

    Raises:
        ValueError: two leaves that would have the same name in PyTorch.
    """
    flat, _ = _flatten(params)
    arrays: dict[str, np.ndarray] = {}
    for path, value in flat.items():
        leaf = torch_leaf(path)
        if leaf.name in arrays:
            raise ValueError(f"two parameters are both called {leaf.name} in PyTorch; one of them is {'/'.join(path)}")
        _require_matrix(leaf, value)
        array = np.asarray(value)
        arrays[leaf.name] = np.array(array.T if leaf.transposed else array, order="C")  # owned, and writable
    return arrays


def _flatten(params: Params) -> tuple[dict[tuple[str, ...], Any], Any]:
    """The leaves by path, without the outer `"params"`, and a function that puts it back around a tree."""
    wrapped = set(params) == {"params"}
    tree = params["params"] if wrapped else params
    return flatten_dict(tree), (lambda tree: {"params": tree}) if wrapped else (lambda tree: tree)

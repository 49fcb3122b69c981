"""Arrays of either framework as NumPy's, and nested arguments by flat names that both frameworks share; no torch."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = dict[str, np.ndarray]
"""By name."""


def is_floating(x: Any) -> bool:
    """Whether it is an array of floating numbers, bfloat16 included; a random key and `jnp.float32` itself are none."""
    return hasattr(x, "shape") and hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.floating))


def to_numpy(tensor: Any) -> np.ndarray:
    """Convert a tensor of any framework to a NumPy array with the same bits, bfloat16 and float8 included."""
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        name = str(tensor.dtype).removeprefix("torch.")
        if name.startswith(("bfloat16", "float8")):  # no dtypes of NumPy; float32 holds each number exactly
            return tensor.float().numpy().astype(jnp.dtype(name))
        return tensor.numpy()
    return np.asarray(tensor)


def as_numpy(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Convert tensors by name; None stays."""
    return {name: None if x is None else to_numpy(x) for name, x in tensors.items()}


def in_reals(x: Any) -> Any:
    """Return a complex array of JAX as its real and its imaginary part, one beside the other; others as they are."""
    return jnp.stack((x.real, x.imag)) if jnp.iscomplexobj(x) else x


def flatten(
    tree: Any, names: tuple[str, ...] = (), is_leaf: Callable[[Any], bool] = lambda _: False
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], Any]]:
    """Return the leaves by name (`initial_state.0`, `memory.keys`), and the function that puts leaves back in place.

    The parts of a tuple are called `names` where given. None is a leaf, so that a side that returns None where the
    other does not is seen; and so is what `is_leaf` says.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is None or is_mixed(x) or is_leaf(x)
    )
    flat = {name_of(path, names): leaf for path, leaf in paths}
    if len(flat) < len(paths):
        name = Counter(name_of(path, names) for path, _ in paths).most_common(1)[0][0]
        raise ValueError(f"two tensors are called {name}: a key has a dot in it. Give one of them another name")
    return flat, lambda leaves: jax.tree_util.tree_unflatten(structure, [leaves[name] for name in flat])


def is_mixed(x: Any) -> bool:
    """Whether it is a dict whose keys JAX cannot sort: it stays whole."""
    return isinstance(x, Mapping) and len({type(key) for key in x}) > 1


def name_of(path: tuple[Any, ...], names: tuple[str, ...] = ()) -> str:
    """Name a leaf by its path; the root is called result."""
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    if keys and names and keys[0].isdigit():
        keys[0] = names[int(keys[0])]
    return ".".join(keys) or "result"


def plain(tree: Any) -> Any:
    """Return the results of either framework made of dicts and tuples alone, as `flatten` names them.

    Dataclasses, named tuples and mappings of any kind become dicts, lists become tuples.
    """
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not isinstance(tree, Mapping):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    elif hasattr(tree, "_asdict"):
        tree = tree._asdict()
    elif isinstance(tree, tuple | list):
        return tuple(plain(part) for part in tree)
    elif not isinstance(tree, Mapping):
        return tree
    return {str(name): plain(part) for name, part in tree.items()}

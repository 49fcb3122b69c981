"""Nested tuples, lists and dicts of tensors: the states of decoders and the carries of recurrences."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_tensors(function: Callable[..., Tensor], tree: Any, *others: Any) -> Any:
    """`function` of every tensor of `tree` (and of its counterparts in `others`); None stays None."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: map_tensors(function, tree[key], *(other[key] for other in others)) for key in tree}
    if not isinstance(tree, tuple | list):
        raise TypeError(f"a state is made of tensors, tuples, lists and dicts; got {type(tree).__name__}")
    parts = [map_tensors(function, *branches) for branches in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)

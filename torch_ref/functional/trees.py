"""Nested tuples, lists and dicts of tensors: the states of decoders and of recurrences."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_tensors(function: Callable[..., Tensor], tree: Any, *others: Any) -> Any:
    """Apply the function to every tensor of `tree` and its counterparts in `others`; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: map_tensors(function, tree[key], *(other[key] for other in others)) for key in tree}
    parts = [map_tensors(function, *branches) for branches in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)

"""Arguments refused early, in words that name both what must be and what is."""

from collections.abc import Sequence

import torch
from torch import Tensor


def shape_text(shape: Sequence[int | str]) -> str:
    """`(2, "K", 20)` -> `[2, K, 20]`; a letter stands for an axis of any size."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def check_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(x).__name__}")


def check_floating(name: str, x: Tensor, dtype: torch.dtype | None = None) -> None:
    """A real floating dtype, or exactly `dtype` where a parameter prescribes it."""
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype; got {x.dtype}")
    if dtype is not None and x.dtype != dtype:
        raise TypeError(f"{name} must have the parameters' dtype {dtype}; got {x.dtype}")


def check_integer(name: str, x: Tensor) -> None:
    check_tensor(name, x)
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} must have an integer dtype; got {x.dtype}")


def check_bool(name: str, x: Tensor) -> None:
    check_tensor(name, x)
    if x.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True = may attend, is kept, is counted); got {x.dtype}")


def check_lengths(name: str, x: Tensor, longest: int | None = None) -> None:
    """Lengths are integers or floats in 0..longest, never booleans."""
    check_tensor(name, x)
    if x.dtype == torch.bool or x.is_complex():
        raise TypeError(f"{name} must have an integer or floating dtype; got {x.dtype}")
    if longest is None:
        return
    wide = x.double() if x.is_floating_point() else x.long()
    wrong = wide[~((wide >= 0) & (wide <= longest))]
    if wrong.numel():
        raise ValueError(f"{name} must be in [0, {longest}]; got {wrong[0].item():g}")


def check_shape(name: str, x: Tensor, expected: Sequence[int | str]) -> None:
    """Numbers must match; a letter matches any size."""
    same_rank = x.ndim == len(expected)
    if not same_rank or any(isinstance(e, int) and e != s for e, s in zip(expected, x.shape, strict=True)):
        raise ValueError(f"{name} must be {shape_text(expected)}; got {shape_text(x.shape)}")


def check_min_rank(name: str, x: Tensor, axes: Sequence[str]) -> None:
    """At least the named axes, after any number of leading ones."""
    if x.ndim < len(axes):
        raise ValueError(f"{name} must be {shape_text(['...', *axes])}; got {shape_text(x.shape)}")


def check_broadcastable(name: str, x: Tensor, shape: Sequence[int]) -> None:
    """Broadcasting may stretch x, never the shape it is meant for."""
    fits = x.ndim <= len(shape) and all(
        size in (1, target) for size, target in zip(reversed(x.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"{name} must be broadcastable to {shape_text(shape)}; got {shape_text(x.shape)}")


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Integers in 0..size-1: on a GPU an id out of range would end the process instead of raising."""
    check_integer(name, ids)
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise ValueError(f"{name} must lie in 0..{size - 1}; got {int(ids.min())}..{int(ids.max())}")


def check_count(name: str, value: int, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int; got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name} must be in [0, 1); got {rate}")

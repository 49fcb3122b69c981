"""Find which intermediate tensor of JAX is which one of PyTorch: by name, by weights, and in which form.

JAX's submodules may have other names (`h_0.attn` for `transformer.h.0.attn`), its tensors other layouts (channels
last), and its calls may be others: row by row of a batch, all time steps at once, a stack of layers in one loop.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from parity_tests.your_port.measure.errors import relative_error

Calls = Sequence[np.ndarray]
_EXACT = 1e-6


def match_names(
    in_jax: Sequence[str], in_torch: Sequence[str], paths: Mapping[str, str], shapes: Mapping[str, object]
) -> dict[str, list[str]]:
    """Return JAX's names with PyTorch's; a loop over stacked layers has the names of all its layers.

    Args:
        in_jax, in_torch: the names of submodules and taps, in the order of the computation.
        paths: JAX's names with PyTorch's, as far as they are known.
        shapes: of each name's results, in any form that can be compared; the keys are ("jax" or "torch") + name.
    """
    found: dict[str, list[str]] = {name: [paths[name]] for name in in_jax if paths.get(name) in in_torch}
    by_tokens, by_kind = defaultdict(list), defaultdict(list)
    for name in in_torch:
        by_tokens[_tokens(name)].append(name)
        by_kind[_kind(name)].append(name)
    for name in (name for name in in_jax if name not in found):
        tokens, taken = _tokens(name), {names[0] for names in found.values()}
        same = [n for n in ([name] if name in in_torch else by_tokens[tokens]) if n not in taken]
        ends = [n for n in in_torch if n not in taken and _ends_alike(_tokens(n), tokens)]
        if same or len(ends) == 1:
            found[name] = (same or ends)[:1]
        elif (stack := by_kind.get(tokens, by_kind.get(("h", *tokens), []))) and len(stack) > 1:
            found[name] = stack
    _match_by_order(in_jax, in_torch, shapes, found)
    return found


def _match_by_order(
    in_jax: Sequence[str], in_torch: Sequence[str], shapes: Mapping[str, object], found: dict[str, list[str]]
) -> None:
    """Pair what is left, the outer submodules first: with the next of the same parent, numbers and shapes."""
    for name in sorted((name for name in in_jax if name not in found), key=lambda name: name.count(".")):
        taken = {other for names in found.values() for other in names}
        parent = next((found[p][0] + "." for p in _ancestors(name) if p in found), "")
        alike = [
            other
            for other in in_torch
            if other not in taken and other.startswith(parent) and _numbers(name) == _numbers(other)
            if shapes["jax" + name] == shapes["torch" + other]
        ]
        last = name.rpartition(".")[2]
        if alike:
            found[name] = [
                min(alike, key=lambda other: (other.count("."), not _begin_alike(last, other.rpartition(".")[2])))
            ]


def _begin_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def _ancestors(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _tokens(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def _kind(name: str) -> tuple[str, ...]:
    return tuple(token for token in _tokens(name) if not token.isdigit())


def _ends_alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return shorter > 0 and one[-shorter:] == other[-shorter:]


def kind_of(name: str) -> str:
    """The name with a star for each number: submodules of the same kind differ in numbers alone."""
    return re.sub(r"\d+", "*", name)


# Forms


def align(calls: Calls, like: Calls) -> list[np.ndarray] | None:
    """Bring the tensors of PyTorch's calls into the form of JAX's; None if they have no common form.

    Where several forms are possible, it is the one in which they are equal, or else the simplest.
    """
    forms = list(_forms(calls, like))
    return next((form for form in forms if _are_equal(form, like)), forms[0] if forms else None)


def align_together(sides: Sequence[Calls], like: Calls, channels_last: bool = False) -> list[list[np.ndarray]] | None:
    """Bring several runs of PyTorch into the form of JAX's; the last one decides which form is right.

    Args:
        channels_last: where several forms are possible and none is equal, JAX's channels are last.
    """
    forms = [list(_forms(calls, like, channels_last)) for calls in sides]
    if not all(forms):
        return None
    right = next((i for i, form in enumerate(forms[-1]) if _are_equal(form, like)), 0)
    return [form[right] for form in forms]


def _are_equal(form: Calls, like: Calls) -> bool:
    return all(is_close(x, y) for x, y in zip(form, like, strict=True))


def is_close(x: np.ndarray, y: np.ndarray, share: float = _EXACT) -> bool:
    """Whether two tensors are equal up to a share of each entry's size."""
    return relative_error(y, x) <= share


def _forms(calls: Calls, like: Calls, channels_last: bool = False) -> Iterator[list[np.ndarray]]:
    for cut in _cuts(calls, like):
        layouts = [list(_layouts(x, y.shape, channels_last)) for x, y in zip(cut, like, strict=True)]
        for i in range(min(map(len, layouts), default=0)):
            yield [choices[i] for choices in layouts]


def _cuts(calls: Calls, like: Calls) -> Iterator[list[np.ndarray]]:
    """Yield as many tensors as `like` has: cut into rows or steps, or rows and steps put together."""
    few, many = len(like), len(calls)
    if few == many:
        yield list(calls)
    elif many and few % many == 0:
        rows = few // many
        for axis in range(calls[0].ndim):
            if all(x.ndim > axis and x.shape[axis] % rows == 0 for x in calls):
                cut = [np.split(x, rows, axis) for x in calls]
                yield [parts[row] for row in range(rows) for parts in cut]
                if many > 1:
                    yield [part for parts in cut for part in parts]
    elif few and many % few == 0 and all(x.shape == calls[0].shape for x in calls):
        rows = many // few
        for joined in ([calls[i::few] for i in range(few)], [calls[i * rows : (i + 1) * rows] for i in range(few)]):
            for axis in range(calls[0].ndim + 1):
                yield [np.stack(group, axis) for group in joined]


def _layouts(x: np.ndarray, shape: tuple[int, ...], channels_last: bool) -> Iterator[np.ndarray]:
    """Yield the tensor with its axes in each order that has this shape, but for axes that are split or merged."""
    if x.size != int(np.prod(shape)):
        return
    orders = list(permutations(range(x.ndim))) if x.ndim <= 4 else [tuple(range(x.ndim))]
    last = (0, *range(2, x.ndim), 1)
    likely = (last, tuple(range(x.ndim))) if channels_last else (tuple(range(x.ndim)), last)
    for order in sorted(orders, key=lambda order: (order != likely[0], order != likely[1])):
        moved = x.transpose(order)
        if moved.shape == shape or order in (orders[0], last) or _without_ones(moved.shape) == _without_ones(shape):
            yield moved.reshape(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)

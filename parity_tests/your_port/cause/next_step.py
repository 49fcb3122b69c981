"""Say what to look at where no known mistake explains the difference: a step of PyTorch that JAX does not make.

All values of both programs are kept. A step whose result JAX does not compute, though it computes all that goes into
it, is where the port does something else; unless JAX comes to a later result of it in another way.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.cause.planting import lines_of_call
from parity_tests.your_port.measure.arrays import is_mixed, to_numpy
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.values import compute_values


@dataclass
class Steps(TorchFunctionMode):
    """Notes what PyTorch computes, step by step, while entered."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    """The floating results; they are kept, so that each has its own id."""
    places: dict[int, int] = field(default_factory=dict)
    """The id of a result -> its step, the last of those that wrote it."""
    values: list[np.ndarray] = field(default_factory=list)
    """Their numbers, sorted: so the order of axes does not matter."""
    lines: list[str] = field(default_factory=list)
    sources: list[set[int]] = field(default_factory=list)
    """The steps whose results a step gets."""
    is_made_of_data: list[bool] = field(default_factory=list)
    """Whether an input or a weight goes into it, directly or by other steps."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_mixed)
        given = [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
        sources = {self.places[id(x)] for x in given if id(x) in self.places}
        made_of_data = len(sources) < len(given) or any(self.is_made_of_data[place] for place in sources)
        for x in result if isinstance(result, tuple) else (result,):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.places[id(x)] = len(self.tensors)
                self.tensors.append(x)
                self.values.append(np.sort(to_numpy(x), axis=None))
                self.lines.append(next(iter(lines_of_call()), ""))
                self.sources.append(sources)
                self.is_made_of_data.append(made_of_data)
        return result


def next_step(search: Search) -> str:
    """Return the first line of PyTorch's code whose result JAX does not compute; "" if there is none to name."""
    steps, right = Steps(), search.draw.case.torch

    def call(*given: Any) -> Any:
        with steps:
            return right.call(*given)

    search.draw.beside(replace(search.draw.case, torch=replace(right, call=call))).in_torch()
    given, values = compute_values(search.draw)
    by_size = defaultdict[int, list[np.ndarray]](list)
    for x in (*values, *given):
        if x.size:
            insort(by_size[x.size], np.sort(x, axis=None), key=itemgetter(0))
    is_known = [
        x.size < 2 or x[0] == x[-1] or same_numbers(x, by_size[x.size], search.judge.rule) for x in steps.values
    ]
    for place in reversed(range(len(is_known))):  # what leads to a known result is as good as known
        if is_known[place]:
            for source in steps.sources[place]:
                is_known[source] = True
    for place, line in enumerate(steps.lines):
        differs = not is_known[place] and all(is_known[source] for source in steps.sources[place])
        if differs and line and steps.is_made_of_data[place]:
            return line
    return ""


def same_numbers(x: np.ndarray, others: list[np.ndarray], dtype: str) -> bool:
    """Whether one of the arrays holds the same numbers, but for the rounding of a dtype.

    Each array is sorted, and they go by their smallest numbers.
    """
    close = max(1e-9, 100 * unit_roundoff(dtype))
    near = close * max((abs(end) for end in (x[0], x[-1]) if np.isfinite(end)), default=0.0)
    first = bisect_left(others, x[0] - near, key=itemgetter(0))
    last = bisect_right(others, x[0] + near, key=itemgetter(0))
    return any(relative_error(x, y.astype(x.dtype)) < close for y in others[first:last])

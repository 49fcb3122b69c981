"""Put PyTorch's weights into the port: by the user's function, or by names and shapes; where these leave it open, try.

What is tried: channels first and last, two orders of the modules, a copy of a weight that PyTorch uses twice, and the
layouts of square matrices. The nearest to PyTorch's outputs is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from parity_tests.your_port.measure.jax_side import forget_programs_of
from parity_tests.your_port.pair import Pair
from parity_tests.your_port.weights.adapters import is_function, make_port
from parity_tests.your_port.weights.given_names import Names
from parity_tests.your_port.weights.layouts import Layouts
from parity_tests.your_port.weights.load import Load, call_load, map_by_load
from parity_tests.your_port.weights.match import LeftOverError, match_weights
from parity_tests.your_port.weights.original import Original
from parity_tests.your_port.weights.weight_map import AGREES, Leaf, WeightMap


@dataclass(frozen=True)
class Wishes:
    """What the user says about the port: see `compare`."""

    module: Any
    call: Any
    variables: Any
    load: Load | None
    names: Names | None
    layout: Layouts | None
    rules: Mapping[str, Any]
    """Of a case: `bound` and `inside`."""

    def __post_init__(self) -> None:
        bound, inside = self.rules["bound"], self.rules["inside"]
        if self.load is not None and not callable(self.load):
            raise TypeError(f"load must be a function of PyTorch's weights; got {type(self.load).__name__}")
        if not isinstance(self.names, Mapping | None):
            raise TypeError(f"names must be a dict of JAX's names -> PyTorch's; got {type(self.names).__name__}")
        if bound is not None and not 0 <= bound < 1:
            raise ValueError(f"bound must be a relative error, from 0 to below 1; got {bound}")
        if inside not in ("", "float32"):
            raise ValueError(f"inside must be 'float32' or left out; got {inside!r}")


def map_weights(originals: Sequence[Original], wishes: Wishes, dtype: str) -> tuple[list[Pair], str]:
    """Put the weights into place, in the layout of inputs and results that fits; of several the nearest.

    Args:
        originals: PyTorch's side: evaluation, and perhaps a step of training.
        dtype: that in which maps are tried.

    Returns:
        A pair for each of PyTorch's sides, and a note if several layouts fit and none agrees.

    Raises:
        Exception: no layout fits; that of the first.
    """
    first = originals[0]
    if (load := wishes.load) is not None and first.integers:
        wishes = replace(wishes, load=lambda state: load({**state, **{n: x.copy() for n, x in first.integers.items()}}))
    if wishes.load is not None and wishes.variables is None and is_function(wishes.module):
        wishes = replace(wishes, variables=call_load(wishes.load, first.weights))
    fitting, errors = list[list[Pair]](), list[Exception]()
    for layouts in [dict(wishes.layout)] if wishes.layout else first.layouts:
        try:
            fitting.append(_in_layouts(originals, wishes, layouts, dtype))
        except Exception as error:  # whatever a module raises that is given the wrong layout
            errors.append(error)
    if not fitting:
        raise errors[0]
    if len(fitting) == 1:
        return fitting[0], ""
    distances = [_distance(pairs[0]) for pairs in fitting]
    nearest = fitting[int(np.argmin(distances))]
    for pairs in fitting:
        if pairs is not nearest:
            forget_programs_of(pairs[0].case)
    if min(distances) < AGREES or fitting[0][0].case.layouts:  # it does not run as in PyTorch
        return nearest, ""
    taken = dict(nearest[0].case.layouts) or {"*": "as it is"}
    return nearest, f"channels fit first and last in JAX, and neither agrees: give layout= ({taken} was taken)"


def _distance(pair: Pair) -> float:
    try:
        return pair.distance(pair.map)
    except Exception:  # a callback raises only when it runs
        return np.inf


def _in_layouts(originals: Sequence[Original], wishes: Wishes, layouts: Layouts, dtype: str) -> list[Pair]:
    """Put the weights into place, where inputs and results have these layouts in JAX.

    Raises:
        ValueError: the two cannot be compared so.
    """
    first = originals[0]
    leaves = {w.name: Leaf(w.shape) for w in first.weights}
    port = make_port(wishes.module, wishes.call, wishes.variables, first.inputs, layouts, leaves)
    integers = first.integers if port.kind == "function" and wishes.variables is None else {}
    match = partial(match_weights, first.weights, port.leaves, port.role, wishes.names, layouts, integers=integers)
    left_over = None
    try:
        found = match() if wishes.load is None else map_by_load(wishes.load, first.weights, port)
    except LeftOverError as error:
        left_over, found = error, match(shared=True)
    drafts = [original.draw(dtype) for original in originals]

    def paired(layouts: Layouts) -> list[Pair]:
        cases = [replace(draw.case, layouts=layouts, **wishes.rules) for draw in drafts]
        made = [replace(draw, case=case) for draw, case in zip(drafts, cases, strict=True)]
        return [Pair(first, port, found, draft, train=step > 0) for step, draft in enumerate(made)]

    pairs = paired(layouts)
    for pair in pairs:
        pair.check_structure()
    if not wishes.layout and (names := pairs[0].unlike_images()):
        pairs = paired({**dict.fromkeys(names, "as it is"), **layouts})
    tried, others = pairs[0], list[WeightMap]()
    if wishes.load is None and any(entry.guessed for entry in found.entries.values()):
        others += [match(by_order=True, shared=left_over is not None)]
    left = {w.name for w in first.weights if not w.is_buffer} & {use.name for use in found.left_in_torch.values()}
    if wishes.load is None and found.kept and left:  # a variable of the user's own kind may be a parameter
        others += [match(variables=True, shared=left_over is not None)]
    best = found.choose(tried.distance, tried.gradients_agree)
    for other in (each.choose(tried.distance, tried.gradients_agree) for each in others):
        if tried.distance(other) < 0.5 * max(AGREES, tried.distance(best)):  # of two that differ alike, names say more
            best = other
    if left_over is not None and tried.distance(best) >= AGREES:
        raise left_over
    return [replace(pair, map=best) for pair in pairs]

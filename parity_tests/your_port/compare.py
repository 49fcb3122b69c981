"""Compare a PyTorch module with its JAX port in one call. Imports no torch where PyTorch's side is a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from parity_tests.your_port.divergence import find_divergence
from parity_tests.your_port.golden import load_golden
from parity_tests.your_port.measure.case import DTYPES
from parity_tests.your_port.measure.comparison import Measurement
from parity_tests.your_port.measure.jax_side import forget_programs_of
from parity_tests.your_port.measure.strength import find_constant, on_other_numbers
from parity_tests.your_port.pair import Pair
from parity_tests.your_port.report import Report
from parity_tests.your_port.trained import calls_of_linen, differing_dtypes, dropout_differs, trained_otherwise
from parity_tests.your_port.weights.adapters import is_function, make_port
from parity_tests.your_port.weights.jax_program import read_jax
from parity_tests.your_port.weights.layouts import Layouts
from parity_tests.your_port.weights.load import Load, call_load, map_by_load
from parity_tests.your_port.weights.match import LeftOverError, Names, match_weights
from parity_tests.your_port.weights.original import Original
from parity_tests.your_port.weights.weight_map import AGREES, Leaf


def compare(
    torch_module: Any,
    jax_module: Any,
    inputs: Any = None,
    *,
    load: Load | None = None,
    weights: Mapping[str, Any] | None = None,
    names: Names | None = None,
    layout: Layouts | None = None,
    buffers: bool = False,
    gradients: bool = True,
    bound: float | None = None,
    inside: str = "",
    dtypes: Sequence[str] | None = None,
    torch_call: Callable[..., Any] | None = None,
    jax_call: Callable[..., Any] | None = None,
    variables: Any = None,
    name: str = "",
) -> Report:
    """Compare a PyTorch module with its JAX port: outputs, every gradient, jit against no jit.

        print(compare(torch.nn.GRUCell(4, 5), nnx.GRUCell(4, 5, rngs=nnx.Rngs(0)), (x, h)))

    Both are run in evaluation mode with the same weights. They are put into the port by your own function `load`, or by
    names and shapes; `print(report.map)` shows how.

    Args:
        torch_module: an nn.Module, a function of the inputs, or a file or folder that `parity_tests.your_port.dump` has
            written. Also a module of Flax or Equinox, for those who move within JAX; the report then calls it PyTorch's
            side.
        jax_module: a module of Flax NNX, Flax Linen or Equinox, or a function of (weights, inputs). A function gets a
            dict with PyTorch's names and layouts, or the structure of `variables`. A large module need not have weights
            of its own: `nnx.eval_shape(lambda: Model(...))`.
        inputs: an array, a tuple of positional arguments or a dict of keywords, for both sides; a file has its own.
        load: your function that loads PyTorch's weights: a dict of NumPy arrays by PyTorch's names -> what JAX has. For
            NNX that is a module, its state or a pure dict; for Linen the variables or parameters; for Equinox the
            module; for a function its weights. It is tested, too, and takes the place of `names`.
        weights: a state dict, such as a checkpoint's or `torch_module.state_dict()`; by default all are drawn, biases
            and running statistics too, since zeros and ones hide mistakes. Frozen tables keep their numbers.
        names: JAX's name or a part of it -> PyTorch's, where they are not alike: `{"h_{i}": "transformer.h.{i}"}`.
        layout: names of weights, inputs or outputs, with * -> their layout in JAX: `{"conv*": "NHWC"}`, or the order of
            PyTorch's axes: `{"x": (1, 0, 2)}`. A star alone means all inputs and outputs. By default channels are
            tried as in PyTorch and last, if there are convolutions.
        buffers: also take a step of training, and compare its outputs, gradients and running statistics.
        gradients: False compares the outputs alone.
        bound: of the relative error in float64, instead of 1e-12.
        inside: "float32" where a softmax or a norm is computed in float32 whatever comes in.
        dtypes: those in which both are run; by default float64 and float32, or those of the file.
        torch_call: (torch_module, inputs) -> what is to be compared, instead of calling it.
        jax_call: (module with weights in place, inputs) -> what is to be compared, instead of calling it.
        variables: Linen's variables or a function's weights, where the weights cannot be seen otherwise; values do not
            matter.
        name: what the report calls the two.

    Raises:
        ValueError, TypeError: the two cannot be compared; the message says what to do.
        GoldenError: the file is damaged, or was written by another version.
    """
    _check_arguments(torch_module, jax_module, dtypes, inside, bound)
    originals = _read(torch_module, inputs, buffers, weights, torch_call, gradients, name)
    first = originals[0]
    if load is not None and variables is None and is_function(jax_module):
        variables = call_load(load, first.weights)
    leaves = {w.name: Leaf(w.shape) for w in first.weights}
    recorded = first.torch.golden
    dtypes = dtypes or (("float64", "float32") if recorded is None else recorded.dtypes)
    widest = next(dtype for dtype in DTYPES if recorded is None or dtype in recorded.dtypes)
    called: list[Any] = []

    def place(layout: Layouts) -> list[Pair]:
        """Put the weights into place, with inputs and results in this layout."""
        port = make_port(jax_module, jax_call, variables, first.inputs.as_shapes(layout), leaves)
        match = partial(match_weights, first.weights, port.leaves, port.role, names, layout)
        left_over = None
        try:
            found = match() if load is None else map_by_load(load, first.weights, port)
        except LeftOverError as error:
            left_over, found = error, match(shared=True)
        drafts = [replace(o.case(), bound=bound, inside=inside, layouts=layout) for o in originals]
        pairs = [Pair(draft, first, port, found, bool(step), widest) for step, draft in enumerate(drafts)]
        with calls_of_linen(called):
            for pair in pairs:
                pair.check_structure()
        maps = [found]
        if load is None and any(entry.guessed for entry in found.entries.values()):
            maps += [match(by_order=True, shared=left_over is not None)]
        maps = [m.choose(pairs[0].distance, pairs[0].gradients_agree) if m.is_open else m for m in maps]
        if len(maps) > 1:
            named, ordered = map(pairs[0].distance, maps)
            maps = maps[ordered < 0.5 * max(AGREES, named) :]  # of two that differ alike, names say more
        if left_over is not None and pairs[0].distance(maps[0]) >= AGREES:
            raise left_over
        return [replace(pair, map=maps[0]) for pair in pairs]

    pairs, unsure = _place_in([dict(layout)] if layout else first.layouts, place)
    pairs = [pair.with_buffers_of_jax() if pair.train else pair for pair in pairs]
    pair = pairs[0]
    measured, weak = _measure(pairs, dtypes)
    notes = [*trained_otherwise(first, pair.port, pair.map)]
    if recorded is None:
        held = nnx.iter_graph(jax_module) if pair.port.kind in ("nnx", "equinox") else ()
        notes += [*pair.trained_in_jax(), *dropout_differs(torch_module, [*called, *(part for _, part in held)])]
    if unsure and any(m.failed for m in measured):
        notes = [unsure, *notes]
    dtypes_differ = differing_dtypes(first, pair.port)
    report = Report(
        *(first.name, pair.port, pair.map, tuple(measured), pair.case, dtypes_differ),
        notes=tuple(notes),
        weak=tuple(weak),
    )
    report = _explained(report, pairs)
    for each in pairs:
        forget_programs_of(each.case)
    return report


def _check_arguments(
    torch_module: Any, jax_module: Any, dtypes: Sequence[str] | None, inside: str, bound: float | None
) -> None:
    torch_first = callable(torch_module) or isinstance(torch_module, str | Path)
    if not torch_first or type(jax_module).__module__.startswith("torch."):
        raise TypeError(f"torch_module comes first and jax_module second; got {type(torch_module).__name__} first")
    if dtypes is not None and (not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES)):
        raise ValueError(f"dtypes must be some of {DTYPES}; got {dtypes!r}")
    if bound is not None and not 0 <= bound < 1:
        raise ValueError(f"bound must be a relative error, from 0 to below 1; got {bound}")
    if inside not in ("", "float32"):
        raise ValueError(f"inside must be 'float32' or left out; got {inside!r}")


def _read(
    torch_module: Any,
    inputs: Any,
    buffers: bool,
    weights: Mapping[str, Any] | None,
    call: Callable[..., Any] | None,
    gradients: bool,
    name: str,
) -> list[Original]:
    """Read PyTorch's side: evaluation, and with buffers a step of training."""
    if isinstance(torch_module, str | Path):
        if buffers or not gradients or any(x is not None for x in (inputs, weights, call)):
            given = "inputs, weights, torch_call, buffers and gradients"
            raise ValueError(f"{torch_module} holds PyTorch's side as it was recorded, so leave out {given}")
        return [load_golden(torch_module).original]
    reading: dict[str, Any] = {"call": call, "weights": weights, "gradients": gradients, "name": name}
    if not is_function(torch_module):  # a JAX module
        if buffers:
            raise ValueError("buffers=True takes a step of training in PyTorch: leave it out where both are JAX's")
        return [read_jax(torch_module, inputs, **reading)]
    from parity_tests.your_port.weights.torch_program import read_program

    return [read_program(torch_module, inputs, train=train, **reading) for train in (False, True)[: 1 + buffers]]


def _place_in(layouts: Sequence[Layouts], place: Callable[[Layouts], list[Pair]]) -> tuple[list[Pair], str]:
    """Put the weights into place in the layout that fits, of several the nearest; and say if none of these agrees.

    Raises:
        Exception: none fits; that of the first.
    """
    fitting: list[list[Pair]] = []
    errors: list[Exception] = []
    for layout in layouts:
        try:
            fitting.append(place(layout))
        except Exception as error:  # whatever a module raises that is given the wrong layout
            errors.append(error)
    if not fitting:
        raise errors[0]

    def distance(pairs: list[Pair]) -> float:
        try:
            return pairs[0].distance(pairs[0].map)
        except Exception:  # a callback raises only when it runs
            return np.inf

    distances = list(map(distance, fitting)) if len(fitting) > 1 else [0.0]
    nearest = fitting[int(np.argmin(distances))]
    for pairs in fitting:
        if pairs is not nearest:
            forget_programs_of(pairs[0].case)
    if min(distances) < AGREES or fitting[0][0].draft.layouts:  # it does not run as in PyTorch
        return nearest, ""
    taken = dict(nearest[0].draft.layouts) or {"*": "as it is"}
    return nearest, f"channels fit first and last in JAX, and neither agrees: give layout= ({taken} was taken)"


def _measure(pairs: Sequence[Pair], dtypes: Sequence[str]) -> tuple[list[Measurement], list[str]]:
    """Measure each tensor in every dtype, and say what the inputs and weights cannot show."""
    pair = pairs[0]
    measured = [m for each in pairs for dtype in dtypes for m in each.compiled(dtype)]
    measured += pair.without_jit(measured) if "float64" in dtypes else []
    weak = [*find_constant(pair.case.variants[0])]
    if all(dtype.endswith("16") for dtype in dtypes):
        wide = pair.in_float64()
        measured += wide
        weak += [] if wide else ["16 bits alone do not show a wrong epsilon, or GELU approximated by tanh"]
    if not any(m.failed for m in measured):
        unread, hidden = on_other_numbers(pair.case, measured)
        measured, weak = measured + unread, weak + hidden
    return measured, weak


def _explained(report: Report, pairs: Sequence[Pair]) -> Report:
    """Find why the two differ: a fault of the compiler, or the place and the cause."""
    failed = report.failed
    if not failed:
        return report
    parted = next(pair for pair in pairs if pair.case.name == failed[0].case)
    found: dict[str, Any] = {}
    try:
        found["compiled"] = parted.compiler(failed, report.measurements)
        if found["compiled"] is None:
            beside = [pair.case for pair in pairs if pair is not parted]
            found["divergence"] = find_divergence(parted.case, dtype=failed[0].run_dtype, beside=beside)
            narrow = parted.narrow_inside(failed)
            if narrow and not any(m.failed for pair in pairs for m in pair.with_float32_inside()):
                found["float32_inside"] = f"{narrow}; with inside='float32' the two agree"
    except Exception as error:  # the measurements are the verdict, whatever becomes of their explanation
        found["trouble"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return replace(report, **found)

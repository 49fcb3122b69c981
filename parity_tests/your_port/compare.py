"""Compare a PyTorch module with its JAX port in one call. Imports no torch where PyTorch's side is a file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parity_tests.your_port.corpus import numbered_errors, run_corpus, take_example
from parity_tests.your_port.divergence import explain_difference
from parity_tests.your_port.golden import load_golden
from parity_tests.your_port.mapping import Wishes, map_weights
from parity_tests.your_port.measure.case import DTYPES
from parity_tests.your_port.measure.jax_side import forget_programs_of
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.precision import measure_precision
from parity_tests.your_port.measure.strength import find_constant, on_other_numbers
from parity_tests.your_port.measure.width import own_tables
from parity_tests.your_port.pair import Pair
from parity_tests.your_port.report import Report
from parity_tests.your_port.trained import calls_of_linen, training_notes
from parity_tests.your_port.weights.adapters import is_function
from parity_tests.your_port.weights.given_names import Names
from parity_tests.your_port.weights.jax_reference import read_jax
from parity_tests.your_port.weights.layouts import Layouts
from parity_tests.your_port.weights.load import Load
from parity_tests.your_port.weights.original import Original


@own_tables()
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
        inputs: an array, a tuple of positional arguments or a dict of keywords, for both sides; a file has its own. An
            iterator of such inputs is a corpus: its first batch is compared with gradients, the others forward alone.
        load: your function that loads PyTorch's weights: a dict of NumPy arrays by PyTorch's names -> what JAX has. For
            NNX that is a module, its state or a pure dict; for Linen the variables or parameters; for Equinox the
            module; for a function its weights. It is tested, too, and takes the place of `names`.
        weights: a state dict, such as a checkpoint's or `torch_module.state_dict()`; by default all are drawn, biases
            and running statistics too, since zeros and ones hide mistakes. Frozen tables keep their numbers.
        names: JAX's name or a part of it -> PyTorch's, where they are not alike: `{"h_{i}": "transformer.h.{i}"}`.
        layout: names of weights, inputs or outputs, with * -> their layout in JAX: `{"conv*": "NHWC"}`, or the order of
            PyTorch's axes: `{"x": (1, 0, 2)}`. A star alone means all inputs and outputs. By default channels are
            tried as in PyTorch and last, if there are convolutions or batch norms.
        buffers: also take a step of training, and compare its outputs, gradients and running statistics.
        gradients: False compares the outputs alone.
        bound: of the relative error in float64, instead of 1e-12.
        inside: "float32" where a softmax or a norm is computed in float32 whatever comes in.
        dtypes: those in which both are run; by default float64 and float32, or those of the file.
        torch_call: (torch_module, *inputs) -> what is to be compared, instead of calling it. Inputs in a dict come
            as keywords.
        jax_call: the same for JAX, with the weights in place.
        variables: Linen's variables or a function's weights, where the weights cannot be seen otherwise; values do not
            matter.
        name: what the report calls the two.

    Raises:
        ValueError, TypeError: the two cannot be compared; the message says what to do.
        GoldenError: the file is damaged, or was written by another version.
    """
    torch_first = callable(torch_module) or isinstance(torch_module, str | Path)
    if not torch_first or any(kind.__module__.startswith("torch.") for kind in type(jax_module).__mro__):
        raise TypeError(f"torch_module comes first and jax_module second; got {type(torch_module).__name__} first")
    if dtypes is not None and (not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES)):
        raise ValueError(f"dtypes must be some of {DTYPES}; got {dtypes!r}")
    wishes = Wishes(jax_module, jax_call, variables, load, names, layout, {"bound": bound, "inside": inside})
    if isinstance(inputs, Iterator):
        shared: dict[str, Any] = {"load": load, "weights": weights, "names": names, "layout": layout, "name": name}
        shared |= {"buffers": buffers, "gradients": gradients, "bound": bound, "inside": inside, "dtypes": dtypes}
        shared |= {"torch_call": torch_call, "jax_call": jax_call, "variables": variables}
        return _compare_corpus(partial(compare, torch_module, jax_module, **shared), torch_module, inputs)
    originals = _read(torch_module, inputs, buffers, weights, torch_call, gradients, name)
    recorded = originals[0].torch.golden
    dtypes = dtypes or (("float64", "float32") if recorded is None else recorded.dtypes)
    wide = [dtype for dtype in dtypes if not dtype.endswith("16")]  # 16 bits alone would hide what differs
    widest = next(dtype for dtype in DTYPES if dtype in (wide or (DTYPES if recorded is None else recorded.dtypes)))

    with calls_of_linen() as called:
        pairs, unsure = map_weights(originals, wishes, widest)
    pairs = [pair.with_buffers_of_jax() if pair.train else pair for pair in pairs]

    measured, weak = _measure(pairs, dtypes)
    sizes = {w.shape[0] for w in pairs[0].original.weights if w.is_table}
    in_16_bits = (pairs[0].draw(dtype) for dtype in dtypes if dtype.endswith("16"))
    precision = tuple(found for draw in in_16_bits for found in measure_precision(draw, sizes))
    notes = (*training_notes(pairs[0], torch_module, jax_module, called),)
    notes += tuple(pairs[0].cast_at_the_end()) if "float64" in dtypes else ()
    notes = (unsure, *notes) if unsure and any(m.failed for m in measured) else notes
    report = _explain(
        Report(pairs[0].original.name, pairs[0], tuple(measured), notes=notes, weak=tuple(weak), precision=precision),
        pairs,
    )

    for pair in pairs:
        forget_programs_of(pair.case)
        pair.draft.kept.clear()
    return report


def _compare_corpus(compare_inputs: Callable[[Any], Report], program: Any, batches: Iterator[Any]) -> Report:
    """Compare the first batch, run the others, and compare the worst example alone if it differs.

    Raises:
        ValueError: there is no batch, or one cannot be read or run; PyTorch's side is a file or a JAX module.
    """
    batches = numbered_errors(batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("inputs is an iterator that has no batch: give a generator that was not read before")
    report = compare_inputs(first)
    if report.failed:
        return replace(report, notes=(*report.notes, "the other batches were not run, since the first one differs"))
    pair = report.pair
    if pair.original.torch.golden is not None:
        raise ValueError("a corpus needs a PyTorch module or function, which can run on other inputs")
    corpus = run_corpus(pair.draw(), pair.original.inputs, batches, program, pair.original.weights)
    forget_programs_of(pair.case)
    weak = (*report.weak, *corpus.unseen)
    if (worst := corpus.first_failure) is None:
        return replace(report, corpus=corpus, weak=weak)
    for row in dict.fromkeys((worst.row, None)):
        alone = compare_inputs(take_example(worst.inputs, row))
        if alone.failed:
            return replace(alone, corpus=corpus, weak=(*alone.weak, *corpus.unseen))
    luck = f"{worst} in one draw, and within its bound in the median of several"
    return replace(report, corpus=corpus, weak=weak, notes=(*report.notes, luck))


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
    if buffers and not hasattr(torch_module, "named_buffers"):
        raise ValueError("buffers=True compares what a step of training moves, and a function has no buffers")
    from parity_tests.your_port.weights.torch_program import read_program

    return [read_program(torch_module, inputs, train=train, **reading) for train in (False, True)[: 1 + buffers]]


def _measure(pairs: Sequence[Pair], dtypes: Sequence[str]) -> tuple[list[Measurement], list[str]]:
    """Measure each tensor in every dtype, and say what the inputs and weights cannot show."""
    pair = pairs[0]
    measured = [m for each in pairs for dtype in dtypes for m in each.compiled(dtype)]
    measured += pair.without_jit() if "float64" in dtypes else []
    weak = [*find_constant(pair.case)]
    if all(dtype.endswith("16") for dtype in dtypes):
        wide = pair.in_float64()
        measured += wide
        weak += [] if wide else ["16 bits alone do not show a wrong epsilon, or GELU approximated by tanh"]
    if not any(m.failed for m in measured):
        kept = [m.run_dtype for m in measured]
        unread, hidden = on_other_numbers(pair.draw("float64" if "float64" in kept else kept[0]))
        measured, weak = measured + unread, weak + hidden
    return measured, weak


def _explain(report: Report, pairs: Sequence[Pair]) -> Report:
    """Find why the two differ: a fault of the compiler, or the place and the cause."""
    failed = report.failed
    if not failed:
        return report
    dtypes = {m.case: m.run_dtype for m in reversed(failed)}  # of the first failure in each case
    parted = [pair for pair in pairs if pair.case.name in dtypes]
    first = parted[0]
    try:
        compiled = first.compiler(failed, report.measurements)
        if compiled is not None:
            return replace(report, compiled=compiled)
        narrow = first.narrow_inside(failed)
        if narrow and not any(m.failed for pair in pairs for m in pair.with_float32_inside()):
            return replace(report, notes=(f"{narrow}; with inside='float32' the two agree", *report.notes))
        if any(m.mismatch for m in failed) and first.agrees_in_bfloat16():  # its results have that dtype
            told = f"{first.cast_in_jax}; with dtypes=('bfloat16',) the two agree"
            return replace(report, notes=(told, *report.notes))
        explained = (
            explain_difference(pair.draw(dtypes[pair.case.name]), beside=[x.case for x in pairs if x is not pair])
            for pair in parted
        )
        divergence = next((found for found in explained if found is not None), None)
        held_to_float64 = not first.case.inside and any(m.dtype == "float64" for m in failed)
        if divergence is None and held_to_float64 and first.cast_in_jax:
            report = replace(report, notes=(f"{first.cast_in_jax}; within its rounding the two agree", *report.notes))
        report = replace(report, divergence=divergence)
    except Exception as error:  # the measurements are the verdict, whatever becomes of their explanation
        report = replace(report, trouble=f"{type(error).__name__}: {error}".splitlines()[0])
    return report

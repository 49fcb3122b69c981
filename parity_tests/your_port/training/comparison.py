"""Compare a training of one's own in both frameworks, step by step, down to the first number that differs, and why.

    free-running     each goes its own way from the same weights: errors add up over the steps
    re-synchronised  before each step JAX takes over PyTorch's parameters and moments: each step is judged on its own

How errors are measured stands in `training.errors`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import jax
import numpy as np

from parity_tests.your_port.cause.symptoms import describe
from parity_tests.your_port.measure.arrays import Arrays, is_floating, to_numpy
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.measure.width import own_tables
from parity_tests.your_port.training.causes import find_causes
from parity_tests.your_port.training.errors import Moves, errors_of, tensor_errors
from parity_tests.your_port.training.report import TrainingDivergence, TrainingReport
from parity_tests.your_port.training.sides import (
    MOMENTS,
    JaxStart,
    JaxTraining,
    StepRecord,
    TorchStart,
    TorchTraining,
)

BOUNDS = {"float64": (1e-7, 1e-8), "float32": (1e-2, 1e-3)}
"""By dtype, free-running and re-synchronised. Optax's schedules compute in float32 in any case."""
ALL_MOMENTS = tuple(dict.fromkeys(MOMENTS.values()))
ORDER = ("batch", "loss", "gradients", "norm", "clipped", "learning_rate")
"""The order in which a step computes; then the moments, the parameters, and whatever else the user returns."""


@own_tables(has_tables=True)
def compare_training(
    torch_start: TorchStart,
    jax_start: JaxStart,
    weights: Mapping[str, Any],
    batches: Iterable[Any],
    steps: int = 20,
    resync: bool = True,
    *,
    dtype: str = "float64",
    bound: float | None = None,
) -> TrainingReport:
    """Train in both frameworks from the same weights on the same batches, and find the first step that differs.

    Args:
        torch_start: weights (tensors by name) -> (model, optimizer, step). step(batch) trains on a batch and returns a
            mapping of what is to be compared, such as `{"loss": loss, "norm": norm}`. The gradients before and after
            clipping, learning rates, moments and parameters are recorded without being returned.
        jax_start: weights (NumPy arrays by PyTorch's names) -> (params, opt_state, step). It may only move the weights:
            transpose, reshape, split, stack. step(params, opt_state, batch) returns the new params, the new opt_state
            and a mapping such as `{"loss": loss, "gradients": gradients}`, in the form of params or by PyTorch's names.
            Parameters and the moments of Optax need not be returned.
        weights: PyTorch's state dict, of tensors or arrays.
        batches: what each step is given, as arrays in any nesting; PyTorch's step gets tensors. A side that loads its
            own data returns what it read as "batch", and both are compared.
        steps: how many to take.
        resync: JAX takes over PyTorch's parameters and moments before each step. False: both run freely.
        dtype: of the weights and of floating batches. In float32 only differences far above rounding are found.
        bound: of the errors; by default 1e-8 re-synchronised and 1e-7 free-running, in float64.

    Raises:
        ValueError: no steps, another dtype, too few batches, a step that changes its batch in place, or a training in
            PyTorch that ends in NaN or moves nothing.
        TypeError: a side that does not start as described, or parameters in another dtype.
    """
    if steps < 1 or dtype not in BOUNDS:
        raise ValueError(f"steps must be 1 or more, and dtype one of {', '.join(BOUNDS)}; got {steps}, {dtype!r}")
    arrays = {name: _in_dtype(x, dtype) for name, x in weights.items()}
    data = [jax.tree.map(lambda x: _in_dtype(x, dtype), batch) for batch in islice(batches, steps)]
    if len(data) < steps:
        raise ValueError(f"{steps} steps need {steps} batches; there are {len(data)}")
    in_torch = TorchTraining(torch_start, arrays, data, dtype)
    in_jax = JaxTraining(jax_start, in_torch)
    name = "re-synchronised" if resync else "free-running"
    within = BOUNDS[dtype][resync] if bound is None else bound
    report = compare_steps(name, in_torch, in_jax, steps, within, resync)
    if report.divergence is not None:
        return _explained(report, report.divergence, in_jax)
    _require_meaning(in_torch, steps)
    return report


def _require_meaning(in_torch: TorchTraining, steps: int) -> None:
    """Raise ValueError if PyTorch's training shows nothing, so that any other would agree with it."""
    for quantity in ("loss", "gradients", "parameters"):
        wrong = [any(not np.isfinite(x).all() for x in in_torch[i].get(quantity, {}).values()) for i in range(steps)]
        if wrong[-1]:
            raise ValueError(
                f"PyTorch's {quantity} is NaN or infinite at step {wrong.index(True) + 1} of {steps}, and nothing "
                "after it can be compared: take fewer steps, a smaller learning rate or other batches"
            )
    if all(np.array_equal(x, in_torch.weights[name]) for name, x in in_torch[steps - 1]["parameters"].items()):
        raise ValueError(
            f"no parameter of PyTorch's moves in {steps} steps, so nothing is compared: is the learning rate 0, has "
            "the optimiser no parameters, or does the step leave out backward() or optimizer.step()?"
        )


def compare_steps(
    name: str,
    in_torch: TorchTraining,
    in_jax: JaxTraining,
    steps: int,
    bound: float,
    resync: bool,
    own: bool = False,
) -> TrainingReport:
    """Run JAX beside a recorded training of PyTorch, and compare each step.

    Args:
        own: each tensor is measured against itself alone, as in the trainings of this project.
    """
    errors: dict[str, np.ndarray] = {}
    smallest: dict[str, np.ndarray] = {}
    places = list[TrainingDivergence]()
    frozen = {name for parameter, name in in_torch.names.items() if not parameter.requires_grad}
    moved = {name for group in in_torch.groups for name in group}
    for number in range(steps):
        if resync and number > 0:
            in_jax.take_over(in_torch[number - 1])
        ours, theirs = in_jax.run(in_torch.batches[number]), in_torch[number]
        gradients = theirs.get("clipped", {})
        if not resync:  # of several steps each gradient, and each rounding of the rate, leaves its own trace
            smallest |= _shares(gradients, smallest)
            gradients = smallest if in_torch.dtype == "float32" else {}
        since = 1 if resync else number + 1
        moves = Moves(in_torch.before(number + 1 - since), gradients, in_torch.groups, since)
        if "copies" in ours:  # which PyTorch has not: they should all be the parameter
            theirs = {**theirs, "copies": {name: ours["parameters"][name] for name in ours["copies"]}}
        both = [each for each in theirs if each in ours and (theirs[each] or ours[each])]
        for quantity in sorted(both, key=lambda quantity: (*ORDER, quantity).index(quantity)):
            b = theirs[quantity]
            idle = {*ours[quantity]} - moved if quantity in ALL_MOMENTS else frozen  # what another optimiser moves
            a = {name: x for name, x in ours[quantity].items() if name in b or name not in idle}
            by_tensor = tensor_errors(a, b) if own else errors_of(quantity, a, b, moves)
            parted = tuple(part for part, error in by_tensor.items() if not error <= bound)
            # Of equal errors the first: a wrong beta gives all tensors the same one, up to the last digits.
            tensor = max(parted or by_tensor, key=lambda part: float(f"{by_tensor[part]:.6g}"))
            error = by_tensor[tensor]
            errors.setdefault(quantity, np.zeros(steps))[number] = error
            places.append(TrainingDivergence(number + 1, quantity, tensor, error, bound, parted))
    worst, notes = max(places, key=lambda place: place.error), tuple(_notes(in_jax, resync))
    divergence = next((place for place in places if place.tensors), None)
    measured = tuple(_measured(name, in_torch.dtype, [x for x in places if x.quantity == each]) for each in errors)
    return TrainingReport(name, steps, bound, errors, worst, measured, divergence, notes)


def _shares(gradients: Arrays, smallest: Arrays) -> Arrays:
    """Return each entry's share of the step's largest gradient, or its smallest so far."""
    largest = max((float(np.abs(x).max(initial=0.0)) for x in gradients.values()), default=0.0) or 1.0
    return {name: np.minimum(np.abs(x) / largest, smallest.get(name, np.inf)) for name, x in gradients.items()}


def _measured(name: str, dtype: str, places: Sequence[TrainingDivergence]) -> Measurement:
    """Take one quantity where it parts first, or else where it is furthest apart."""
    shown = next((x for x in places if x.tensors), None) or max(places, key=lambda x: x.error)
    return Measurement(name, "", dtype, f"{shown.place}, step {shown.step}", shown.error, shown.bound, rule=dtype)


def _explained(report: TrainingReport, found: TrainingDivergence, in_jax: JaxTraining) -> TrainingReport:
    """Say what a difference looks like, and look for its cause."""
    symptoms, notes, causes = [*_symptoms(found, in_jax)], [*report.notes], tuple[str, ...]()
    in_torch = in_jax.beside
    try:
        close = min(report.bound, BOUNDS[in_torch.dtype][True])
        causes = find_causes(found.quantity, found.step - 1, in_jax, close)
    except Exception as error:  # the verdict stands without it
        notes.append(f"the search for a cause failed: {type(error).__name__}: {error}")
    if "gradients" in in_torch[0] and "gradients" not in in_jax.records[0]:
        notes.append("JAX's step returns no gradients, so no cause in the optimiser is looked for")
    if found.quantity in ("loss", "gradients") and not causes:
        if in_jax.draws(in_torch.batches[found.step - 1]):
            symptoms.append("JAX's step draws random numbers: is dropout on?")
        elif found.quantity == "gradients" and "loss" in report.errors:
            symptoms.append(
                "the loss agrees: compare the models, of which one may stop a gradient; or those of micro-batches are "
                "clipped or scaled before they are added"
            )
        elif agreeing := [*_agreeing(in_jax, found.step - 1, report.bound)]:
            symptoms.append(
                f"{', '.join(agreeing)} agree: what comes after them differs, such as the mask, divisor, shift or "
                "smoothing of the loss"
            )
        elif found.step > 1:
            symptoms.append(
                f"the steps before agree, and so do the parameters before step {found.step}: look at what a step keeps "
                "for the next one (a hidden state, running statistics, another optimiser), and at what only this batch "
                "has, such as padding"
            )
        else:
            symptoms.append(
                "no known mistake of a training explains it: compare the models, then the loss (its mask, divisor, "
                "shift and smoothing); steps that also return their logits tell which"
            )
    confirmed = in_torch.dtype == "float64"
    found = replace(found, symptoms=tuple(symptoms), causes=causes, confirmed=confirmed)
    return replace(report, divergence=found, notes=tuple(notes))


def _own(ours: StepRecord, theirs: StepRecord) -> list[str]:
    """List what both steps return that is no part of every training, such as logits."""
    return [
        quantity for quantity in theirs if quantity in ours and quantity not in (*ORDER, *ALL_MOMENTS, "parameters")
    ]


def _agreeing(in_jax: JaxTraining, step: int, bound: float) -> Iterator[str]:
    """Yield what both steps return of their own and what agrees: logits, and no numbers such as an accuracy."""
    ours, theirs = in_jax.records[step], in_jax.beside[step]
    for quantity in _own(ours, theirs):
        large = all(is_floating(x) and x.ndim > 1 for x in ours[quantity].values())
        if large and max(tensor_errors(ours[quantity], theirs[quantity]).values()) <= bound:
            yield quantity


def _symptoms(place: TrainingDivergence, in_jax: JaxTraining) -> Iterator[str]:
    """Say what the difference looks like."""
    quantity, tensor, step = place.quantity, place.tensor, place.step - 1
    found, in_torch = in_jax.records[step], in_jax.beside
    a, b = (record.get(quantity, {}).get(tensor) for record in (found, in_torch[step]))
    if a is not None and b is not None and a.shape != b.shape:
        yield f"{list(a.shape)} in JAX, {list(b.shape)} in PyTorch"
    if a is not None and b is not None and a.dtype != b.dtype:
        yield f"{a.dtype} in JAX, {b.dtype} in PyTorch"
    if quantity == "parameters" and a is not None and b is not None:  # what the step added to them
        before = in_torch.before(step)[tensor]
        a, b = a - before, b - before
    if quantity in ALL_MOMENTS and (a is None) != (b is None):
        yield f"{tensor} is in {'PyTorch' if a is None else 'JAX'}'s optimiser alone"
    yield from describe(a, b)
    for name in found.get("copies", ()):
        yield f"{name} is one weight in PyTorch, and JAX holds copies of it that move apart"


def _notes(in_jax: JaxTraining, resync: bool) -> Iterator[str]:
    """Say what was not compared, or not taken over."""
    found, in_torch, others = in_jax.records[0], in_jax.beside[0], in_jax.places.others
    if others:
        yield f"no weight of PyTorch's is in JAX's {', '.join(others)}"
    given = {name for group in in_jax.beside.groups for name in group}
    trained = {name for parameter, name in in_jax.beside.names.items() if parameter.requires_grad}
    if left := sorted({name for each in ALL_MOMENTS for name in found.get(each, {})} & trained - given):
        names = ", ".join(left[:3]) + " …" * (len(left) > 3)
        yield f"PyTorch's optimiser has no {names}: their moments are not compared"
    pairs = [(x["gradients"], x["clipped"]) for x in in_jax.beside.records if {"clipped", "gradients"} <= x.keys()]
    same = [np.array_equal(x, b[name]) for a, b in pairs for name, x in a.items() if name in b]
    if in_jax.beside.clips and same and all(same):
        yield "PyTorch's clipping changes no gradient in these steps, so it is not compared: a lower limit shows it"
    statistics = [name for name, _ in in_jax.beside.model.named_buffers() if "running_" in name]
    if statistics and not _own(found, in_torch):
        yield f"PyTorch's {', '.join(statistics[:2])} … are not compared: let both steps return them, or an evaluation"
    alone = [quantity for quantity in found if quantity not in (*in_torch, *ALL_MOMENTS, "copies")]
    if alone:
        yield f"PyTorch gives nothing to compare with JAX's {', '.join(alone)}"
    missing = [
        each for each in in_torch if each not in found and each not in ("rates", "clipped", "learning_rate", "batch")
    ]
    if missing:
        taken = resync and any(each in ("gradients", *ALL_MOMENTS) for each in missing)
        yield f"JAX gives nothing to compare with PyTorch's {', '.join(missing)}" + " or to take over" * taken


def _in_dtype(x: Any, dtype: str) -> Any:
    if isinstance(x, Mapping):  # of a kind that JAX does not know, as a tokenizer's BatchEncoding
        return jax.tree.map(lambda part: _in_dtype(part, dtype), dict(x))
    x = to_numpy(x) if hasattr(x, "detach") or isinstance(x, jax.Array) else x
    return x.astype(dtype) if isinstance(x, np.ndarray) and is_floating(x) else x

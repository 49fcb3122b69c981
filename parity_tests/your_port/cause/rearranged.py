"""Known mistakes in how submodules are put together: norms with another formula, and in other places of a block."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

from parity_tests.your_port.cause.mistakes import EPSILONS, Call, Mistake, NotHereError
from parity_tests.your_port.cause.subjects import Hypothesis, Planted, Subject, explains
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.comparison import relative_error
from parity_tests.your_port.place.pairing import kind_of

# Norms that are modules, however they are written: the formula is found out first

Formula = dict[str, Any]
WORDS: dict[str, dict[Any, str]] = {
    "outside": {True: "epsilon is added to the standard deviation", False: "epsilon is added to the variance"},
    "correction": {0: "the norm's variance is divided by n", 1: "the norm's variance is divided by n − 1"},
    "centered": {True: "the mean is subtracted in the norm", False: "the mean is not subtracted in the norm"},
    "offset": {0: "the norm's scale is its weight", 1: "the norm's scale is 1 + weight"},
    "axes": {
        (-1,): "the norm goes over the last axis",
        (-2,): "the norm goes over axis -2",
        (-2, -1): "the norm goes over the last two axes",
    },
    "scaled": {True: "the norm has a scale", False: "the norm's scale is missing"},
    "shifted": {True: "the norm has a bias", False: "the norm's bias is missing"},
    "eps": {eps: f"epsilon is {eps:g}" for eps in EPSILONS},
}
"""What may be otherwise -> its values in words."""


def norms(subject: Subject) -> Iterator[Hypothesis]:
    """Yield the formulas that differ from PyTorch's in one thing; in the norm in which the two part, or in two."""
    groups = defaultdict[str, list[torch.nn.Module]](list)
    for path, part in [] if subject.module is None else subject.module.named_modules():
        weights = list(part.parameters(recurse=False))
        alone = not list(part.children()) and all(x.ndim == 1 for x in weights)
        if _is_norm(part) and alone and len(weights) in (1, 2):
            for place in {kind_of(path)} | ({path} & {subject.within}):
                groups[place].append(part)
    for place, parts in groups.items():
        usual = _formula_of(subject, parts[0])
        changes = [{key: value} for key in WORDS for value in WORDS[key] if usual and value != usual[key]]
        if place == subject.within:  # "" is a subject that is a norm itself
            pairs = combinations(changes, 2)
            changes += [{**one, **other} for one, other in pairs if one.keys() != other.keys()]
        for change in changes:
            words = " and ".join(WORDS[key][value] for key, value in change.items())
            where = f", in {place}" if place else ""
            yield f"{words} in JAX{where}", partial(_fits, subject, parts, {**usual, **change})


def _formula_of(subject: Subject, norm: torch.nn.Module) -> Formula:
    """Find the formula by which a module computes; {} if it is none of the usual ones."""
    calls: list[Any] = []
    with ExitStack() as hooks:
        keep = lambda _, args, result: calls.append((args[0].clone(), result.clone()))  # noqa: E731
        hooks.callback(norm.register_forward_hook(keep).remove)
        explains(subject, subject.run)
    fits = calls and calls[0][0].shape[-1:] == next(norm.parameters()).shape
    for values in product((False, True), (0, 1), (True, False), EPSILONS) if fits else ():
        formula: Formula = dict(zip(("outside", "correction", "centered", "eps"), values, strict=True))
        formula |= {"offset": 0, "axes": (-1,), "scaled": True, "shifted": True}
        x, result = calls[0]
        with torch.no_grad():
            if relative_error(to_numpy(_normed(formula, norm, x)), to_numpy(result)) <= 1e-12:
                return formula
    return {}


def _normed(formula: Formula, norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    (scale, *shift), axes, eps = list(norm.parameters()), formula["axes"], formula["eps"]
    y = x - x.mean(axes, keepdim=True) if formula["centered"] else x
    variance = (y * y).mean(axes, keepdim=True)
    n = y.numel() / variance.numel()
    variance = variance * (n / (n - formula["correction"]))
    y = y / (variance.sqrt() + eps if formula["outside"] else (variance + eps).sqrt())
    y = y * (scale + formula["offset"]) if formula["scaled"] else y
    return y + shift[0] if shift and formula["shifted"] else y


def _fits(subject: Subject, parts: Sequence[torch.nn.Module], formula: Formula) -> bool:
    with ExitStack() as hooks:
        for part in parts:
            other = lambda part, args, _: _normed(formula, part, args[0])  # noqa: E731
            hooks.callback(part.register_forward_hook(other).remove)
        return explains(subject, subject.run)


# Blocks with residual sums


def blocks(subject: Subject) -> Iterator[Hypothesis]:
    """Put the norms of a residual block elsewhere: before or after its sublayers, or before its residual."""
    module = subject.module
    switched = [] if module is None else [part for part in module.modules() if hasattr(part, "norm_first")]
    if switched:
        words = f"the norms stand {'after' if switched[0].norm_first else 'before'} the sublayers in JAX"
        yield words, partial(_switched, subject, switched)
    children = [] if module is None or isinstance(module, torch.nn.ModuleList) else list(module.children())
    order = _order_of_calls(subject, children) if any(map(_is_norm, children)) else []
    norms = [part for part in order if _is_norm(part)]
    if not norms or len(order) < 2:
        return
    if order[0] in norms:
        words = "the norms stand after the residual sums in JAX (post-norm), not before the sublayers"
        yield words, partial(_moved, subject, norms, at_sums=_then_norm)
        for only in (None, *range(len(norms))):
            words = "the residual is taken after the norm in JAX, not before it"
            yield words, partial(_moved, subject, norms, at_sums=_from_norm, only=only)
        yield "the sublayers stand in parallel in JAX: all get the block's input", partial(_parallel, subject, norms)
    elif order[-1] in norms:
        starts = [order[0], *(order[i + 1] for i, part in enumerate(order[:-1]) if part in norms)]
        words = "the norms stand before the sublayers in JAX (pre-norm), not after the residual sums"
        yield words, partial(_moved, subject, norms, starts=starts)


def _is_norm(part: Any) -> bool:
    return "norm" in type(part).__name__.lower()


def _switched(subject: Subject, parts: Sequence[Any]) -> bool:
    before = [part.norm_first for part in parts]
    for part in parts:
        part.norm_first = not part.norm_first
    try:
        return explains(subject, subject.run)
    finally:
        for part, value in zip(parts, before, strict=True):
            part.norm_first = value


def _order_of_calls(subject: Subject, children: Sequence[Any]) -> list[Any]:
    order: list[Any] = []
    with ExitStack() as hooks:
        for part in children:
            hooks.callback(part.register_forward_pre_hook(lambda part, _: order.append(part)).remove)
        explains(subject, subject.run)
    return order[: len(set(order))]


def _moved(
    subject: Subject, norms: Sequence[Any], starts: Sequence[Any] = (), at_sums: Any = None, only: int | None = None
) -> bool:
    """Take the norms out; put them into the sums, by `at_sums`, or before the parts in `starts`."""
    returned: list[Any] = []

    def wrong(call: Call) -> Any:
        if at_sums is None or call.kind or len(call.args) < 2 or np.shape(call.args[0]) != np.shape(call.args[1]):
            raise NotHereError
        place = call.memory["sums"] = call.memory.get("sums", -1) + 1
        return at_sums(call, norms[place], returned[place]) if only in (None, place) else call.right()

    def keep(_: Any, args: Any, result: Any) -> Any:
        returned.append(result)
        return result if at_sums is _from_norm else args[0]

    with ExitStack() as hooks:
        for part in norms:
            hooks.callback(part.register_forward_hook(keep).remove)
        for part, norm in zip(starts, norms, strict=False):
            given = lambda _, args, norm=norm: tuple(norm.forward(x) if x is args[0] else x for x in args)  # noqa: E731
            hooks.callback(part.register_forward_pre_hook(given).remove)
        return explains(subject, lambda: subject.run(Planted(Mistake("", {"add": wrong}))))


def _then_norm(call: Call, norm: Any, _: Any) -> Any:
    return norm.forward(call.right())


def _from_norm(call: Call, _: Any, normed: Any) -> Any:
    return normed + call.args[1]


def _parallel(subject: Subject, norms: Sequence[Any]) -> bool:
    given: list[Any] = []
    with ExitStack() as hooks:
        hooks.callback(norms[0].register_forward_pre_hook(lambda _, args: given.append(args)).remove)
        for norm in norms[1:]:
            hooks.callback(norm.register_forward_pre_hook(lambda *_: given[-1]).remove)
        return explains(subject, subject.run)

"""Known mistakes in submodules as a whole: norms and activations written as modules, and the order in a block."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

from parity_tests.your_port.cause.mistakes import ACTIVATIONS, EPSILONS
from parity_tests.your_port.cause.planting import (
    Call,
    Hypothesis,
    Mistake,
    Places,
    Planted,
    Program,
    join,
    only_if,
    replaced,
)
from parity_tests.your_port.cause.subjects import Subject, copied
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


def norms(subject: Subject, things: int) -> Iterator[Hypothesis]:
    """Yield the formulas that differ from PyTorch's in one thing; or in two, in the norm in which the two part."""
    groups = defaultdict[str, list[str]](list)
    for path, part in _parts(subject):
        weights = list(part.parameters(recurse=False))
        alone = not list(part.children()) and all(x.ndim == 1 for x in weights)
        if _is_norm(part) and alone and len(weights) in (1, 2):
            groups[kind_of(path)].append(path)
            if path == subject.within:
                groups[path] = [path]
    for place, paths in groups.items():
        usual = _formula_of(subject, paths[0])
        others = [(key, value) for key in WORDS for value in WORDS[key] if usual and value != usual[key]]
        changes = [dict(several) for several in combinations(others, things) if len(dict(several)) == things]
        for change in changes if things == 1 or place == subject.within else ():  # "" is a norm itself
            words = " and ".join(WORDS[key][value] for key, value in change.items())
            other = lambda part, x, formula={**usual, **change}: _normed(formula, part, x)  # noqa: E731
            yield replaced(f"{words} in JAX{_where(place, paths)}", paths, other)


def _where(kind: str, paths: Sequence[str]) -> str:
    place = kind if len(paths) > 1 else paths[0]
    return f", in {place}" if place else ""


def _parts(subject: Subject) -> list[tuple[str, Any]]:
    return [] if subject.module is None else list(subject.module.named_modules())


def _call_of(subject: Subject, path: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What a submodule is given and what it returns in its first call, where each is one tensor."""
    calls: list[tuple[Any, Any]] = []
    assert subject.module is not None
    keep = lambda _, args, result: calls.append(copied((args, result)))  # noqa: E731
    hook = subject.module.get_submodule(path).register_forward_hook(keep)
    try:
        subject.run()
    finally:
        hook.remove()
    tensors = [x for x in (*calls[0][0], calls[0][1]) if isinstance(x, torch.Tensor)] if calls else []
    return (tensors[0], tensors[1]) if calls and len(tensors) == len(calls[0][0]) + 1 == 2 else None


def _formula_of(subject: Subject, path: str) -> Formula:
    """Find the formula by which a module computes; {} if it is none of the usual ones."""
    assert subject.module is not None
    norm, call = subject.module.get_submodule(path), _call_of(subject, path)
    if call is None or call[0].shape[-1:] != next(norm.parameters()).shape:
        return {}
    for values in product((False, True), (0, 1), (True, False), (0, 1), EPSILONS):
        formula: Formula = dict(zip(("outside", "correction", "centered", "offset", "eps"), values, strict=True))
        formula |= {"axes": (-1,), "scaled": True, "shifted": True}
        with torch.no_grad():
            if relative_error(to_numpy(_normed(formula, norm, call[0])), to_numpy(call[1])) <= 1e-12:
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


def _is_norm(part: Any) -> bool:
    return "norm" in type(part).__name__.lower()


# Activations that are modules, however they are written


def activations(subject: Subject) -> Iterator[Hypothesis]:
    """Yield another activation for each kind of submodule without parameters that works on each entry alone."""
    groups = defaultdict[str, list[str]](list)
    for path, part in _parts(subject):
        if not [*part.children(), *part.parameters(), *part.buffers()]:
            groups[kind_of(path)].append(path)
    for place, paths in groups.items():
        call = _call_of(subject, paths[0])
        module = None if subject.module is None else subject.module.get_submodule(paths[0])
        if module is None or call is None or call[0].shape != call[1].shape:
            continue
        with torch.no_grad():
            by_entry = torch.allclose(module.forward(call[0].flatten().flip(0)).flip(0), call[1].flatten())
        for words, function in ACTIVATIONS.items() if by_entry else ():
            other = lambda _, x, function=function: function(x)  # noqa: E731
            yield replaced(f"{type(module).__name__} is {words} in JAX{_where(place, paths)}", paths, other)


# Blocks with residual sums


def blocks(subject: Subject) -> Iterator[Hypothesis]:
    """Put the norms of a residual block elsewhere: before or after its sublayers, or before its residual."""
    switched = [(path, part) for path, part in _parts(subject) if hasattr(part, "norm_first")]
    if switched:
        words = f"the norms stand {'after' if switched[0][1].norm_first else 'before'} the sublayers in JAX"
        yield Hypothesis(words, lambda program, places: _switched(program, places, [path for path, _ in switched]))
    module = subject.module
    children = {} if module is None or isinstance(module, torch.nn.ModuleList) else dict(module.named_children())
    order = _order_of_calls(subject, children) if any(map(_is_norm, children.values())) else []
    norms = [path for path in order if _is_norm(children[path])]
    if not norms or len(order) < 2:
        return
    if order[0] in norms:
        words = "the norms stand after the residual sums in JAX (post-norm), not before the sublayers"
        yield _moved(words, norms, at_sums=_then_norm)
        for only in (None, *range(len(norms))):
            yield _moved(
                "the residual is taken after the norm in JAX, not before it", norms, at_sums=_from_norm, only=only
            )
        yield Hypothesis(
            "the sublayers stand in parallel in JAX: all get the block's input",
            lambda program, places: _parallel(program, places, norms),
        )
    elif order[-1] in norms:
        starts = [order[0], *(order[i + 1] for i, path in enumerate(order[:-1]) if path in norms)]
        yield _moved(
            "the norms stand before the sublayers in JAX (pre-norm), not after the residual sums", norms, starts=starts
        )


def _switched(program: Program, places: Places, paths: Sequence[str]) -> Program:
    def run(module: Any, inputs: Any) -> Any:
        parts = [module.get_submodule(join(place, path)) for place in places for path in paths]
        before = [part.norm_first for part in parts]
        for part in parts:
            part.norm_first = not part.norm_first
        try:
            return program(module, inputs)
        finally:
            for part, value in zip(parts, before, strict=True):
                part.norm_first = value

    return run


def _order_of_calls(subject: Subject, children: dict[str, Any]) -> list[str]:
    order: list[str] = []
    with ExitStack() as hooks:
        for path, part in children.items():
            hooks.callback(part.register_forward_pre_hook(lambda *_, path=path: order.append(path)).remove)
        subject.run()
    return order[: len(set(order))]


def _moved(
    words: str, norms: Sequence[str], starts: Sequence[str] = (), at_sums: Any = None, only: int | None = None
) -> Hypothesis:
    """Take the norms out; put them into the sums, by `at_sums`, or before the parts in `starts`."""

    def sums(call: Call) -> Any:
        """Of the block's own code; the norms of each block come in the order of its sums."""
        only_if(at_sums is not None and not call.kind and len(call.args) == 2)
        only_if(np.shape(call.args[0]) == np.shape(call.args[1]))
        place = call.memory["sums"] = call.memory.get("sums", -1) + 1
        norm, normed = call.memory["returned"][place]
        return at_sums(call, norm, normed) if only in (None, place % len(norms)) else call.right()

    def wrong(program: Program, places: Places) -> Program:
        def run(module: Any, inputs: Any) -> Any:
            mode = Planted(places, Mistake("", {"add": sums}))
            returned = mode.memory["returned"] = []

            def keep(part: Any, args: Any, result: Any) -> Any:
                returned.append((part, result))
                return result if at_sums is _from_norm else args[0]

            with ExitStack() as hooks:
                for block in map(module.get_submodule, places):
                    for path in norms:
                        hooks.callback(block.get_submodule(path).register_forward_hook(keep).remove)
                    for path, norm in zip(starts, map(block.get_submodule, norms), strict=False):
                        given = lambda _, args, norm=norm: tuple(norm.forward(x) if x is args[0] else x for x in args)  # noqa: E731
                        hooks.callback(block.get_submodule(path).register_forward_pre_hook(given).remove)
                with mode.following(module):
                    return program(module, inputs)

        return run

    return Hypothesis(words, wrong)


def _then_norm(call: Call, norm: Any, _: Any) -> Any:
    return norm.forward(call.right())


def _from_norm(call: Call, _: Any, normed: Any) -> Any:
    return normed + call.args[1]


def _parallel(program: Program, places: Places, norms: Sequence[str]) -> Program:
    def run(module: Any, inputs: Any) -> Any:
        given: list[Any] = []

        def keep(_: Any, args: Any) -> None:
            given.append(args)

        with ExitStack() as hooks:
            for block in map(module.get_submodule, places):
                hooks.callback(block.get_submodule(norms[0]).register_forward_pre_hook(keep).remove)
                for path in norms[1:]:
                    hooks.callback(block.get_submodule(path).register_forward_pre_hook(lambda *_: given[-1]).remove)
            return program(module, inputs)

    return run

"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

The subject is the submodule in which the two programs part, called as PyTorch called it, beside what JAX's returned for
the same. A mistake is named only if it makes all of that agree, within the same bounds as ever. Where none does, the
submodules around it are tried, and the whole program last. A mistake is made in all places of a kind at once
(`layers.*.bias`) before it is made in one.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import jax
import torch

from parity_tests.your_port.cause.mistakes import Call, Mistake, NotHereError, mistakes
from parity_tests.your_port.cause.rearranged import blocks, norms
from parity_tests.your_port.cause.subjects import (
    Change,
    Hypothesis,
    Planted,
    Site,
    Subject,
    Weights,
    agree,
    explains,
    program_of,
    subjects,
)
from parity_tests.your_port.measure.torch_side import run_torch
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import kind_of

if TYPE_CHECKING:
    from parity_tests.your_port.place.bisect import Search


def find_traps(search: "Search", place: str, within: str, deadline: float) -> tuple[str, ...]:
    """Find the mistake that explains why a submodule's results disagree, in words."""
    start, tried = time.process_time(), 0
    for subject in subjects(search, place, within):
        for words, fits in hypotheses(subject):
            if time.process_time() > deadline:
                spent = time.process_time() - start
                return (f"(stopped after {spent:.0f} s of computing: {tried} known mistakes tried, none fits yet)",)
            tried += 1
            if fits():
                words = words.format(**subject.facts)
                here = subject.path in ("", search.names.get(place, [""])[0])
                return (words if here else f"{words}, in {subject.path}",)
    return _in_full_precision(search)


def _in_full_precision(search: "Search") -> tuple[str, ...]:
    if search.dtype == "float64" and jax.default_backend() == "cpu":
        return ()
    with jax.default_matmul_precision("highest"):
        agrees = not search.differs("", search.run([]))
    return ("products in less than full precision: set jax_default_matmul_precision to highest",) if agrees else ()


def hypotheses(subject: Subject) -> Iterator[Hypothesis]:
    """Yield every mistake that can be tried on this subject, the cheap and likely ones first."""
    base = Planted()
    result = subject.run(base)
    if subject.agrees(result):
        return
    called = {site[1] for site in base.sites}
    known = [mistake for mistake in mistakes(_sizes(subject)) if called & mistake.wrong.keys()]
    yield "dropout is left on in JAX", lambda: subject.agrees(result, dropped=True)
    yield from _results(subject, result)
    inputs = list(_inputs(subject))
    first = [hypothesis for hypothesis in inputs if "other way round" in hypothesis[0] or "off by one" in hypothesis[0]]
    yield from first
    yield from (_planted(subject, mistake, ()) for mistake in known)
    if subject.within:
        yield from (_planted(subject, mistake, (), subject.within) for mistake in known)
    yield from (hypothesis for hypothesis in inputs if hypothesis not in first)
    yield from _weights(subject)
    yield from _at_places(subject, known, [site for site in base.sites if site[0] == ""])  # its own code
    yield from (*norms(subject), *blocks(subject), *_exchanged(subject))
    yield from _at_places(subject, known, list(base.sites))


def _at_places(subject: Subject, known: Sequence[Mistake], sites: Sequence[Site]) -> Iterator[Hypothesis]:
    for mistake in known:
        here = [site for site in sites if site[1] in mistake.wrong]
        yield from (_planted(subject, mistake, site) for site in _places(here))


CALLS = 8


def _places(sites: list[Site]) -> Iterator[Site]:
    """Yield groups of places, and then each, but not all of them together; of many calls, as in a loop, not each."""
    for level in (1, 2, 3, 4):
        groups = Counter(site[:level] for site in sites)
        finer = Counter(group[:-1] for group in groups)
        most = CALLS if level == 4 else len(sites)
        yield from (group for group in groups if len(sites) > groups[group] and 1 < finer[group[:-1]] <= most)


def _planted(subject: Subject, mistake: Mistake, site: Site, within: str = "") -> Hypothesis:
    def fits() -> bool:
        mode = Planted(mistake, site, within)
        agrees = explains(subject, lambda: subject.run(mode))
        subject.facts.update(mode.facts)
        return agrees and mode.planted

    place = within or (site[0] if site else "")
    return mistake.words + (f", in {place}" if place else ""), fits


def _changed(subject: Subject, words: str, weights: Weights) -> Hypothesis:
    """Weights in words take part in a format; theirs are none."""
    return words.replace("{", "{{").replace("}", "}}"), partial(
        explains, subject, partial(subject.run, weights=weights)
    )


HEADS = ("num_heads", "n_head", "n_heads", "nhead", "heads", "head_dim")


def _sizes(subject: Subject) -> tuple[int, ...]:
    tensors = [*subject.inputs.values(), *([] if subject.module is None else subject.module.parameters())]
    found = {size for x in tensors for size in x.shape}
    heads = [getattr(subject.module, name, None) for name in HEADS]
    numbers = [n for n in heads if isinstance(n, int) and n > 0]
    return tuple(sorted({size for size in found | {s // n for s in found for n in numbers} | set(numbers) if size > 1}))


def _results(subject: Subject, result: Any) -> Iterator[Hypothesis]:
    """Exchange two results, such as the two states of an LSTM."""
    flat, rebuild = flatten(plain(result))
    for (one, x), (other, y) in combinations(flat.items(), 2) if not subject.path else ():
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape:
            tree = rebuild({**flat, one: y, other: x})
            yield f"the results {one} and {other} are exchanged in JAX", partial(subject.agrees, tree)


def _inputs(subject: Subject) -> Iterator[Hypothesis]:
    def changed(words: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Hypothesis:
        other: Change = lambda key, x: change(x) if key == name else x  # noqa: E731
        return words, partial(explains, subject, partial(subject.run, change=other))

    for name, x in subject.inputs.items():
        if x.dtype == torch.bool or (not x.is_complex() and x.ndim and bool(((x == 0) | (x == 1)).all())):
            yield changed(f"{name} is read the other way round", name, lambda x: (1 - x.int()).to(x.dtype))
            yield changed(f"{name} is ignored in JAX, as if it were 1 everywhere", name, torch.ones_like)
            yield changed(f"{name} is ignored in JAX, as if it were 0 everywhere", name, torch.zeros_like)
        if x.is_floating_point() and x.ndim:
            for axis in (axis for axis in range(x.ndim) if x.shape[axis] > 1):
                yield changed(f"{name} is read in reverse along axis {axis}", name, partial(torch.flip, dims=(axis,)))
        elif x.dtype != torch.bool:
            for by in (-1, 1):
                yield changed(f"{name} is taken as {by:+d} in JAX: off by one", name, partial(torch.add, other=by))
            for by in (-1, 1, -2, 2, -3, 3) if x.ndim else ():
                words = f"{name} is shifted by {by:+d} along its last axis"
                yield changed(words, name, partial(torch.roll, shifts=by, dims=-1))
    for (one, x), (other, y) in combinations(subject.inputs.items(), 2):
        if x.shape == y.shape and x.dtype == y.dtype:
            swapped: Any = {one: y, other: x}.get
            yield f"{one} and {other} are exchanged", partial(explains, subject, partial(subject.run, change=swapped))


def _groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """All names of a kind together under the kind's name, and then each alone."""
    kinds = defaultdict(list)
    for name in names:
        kinds[kind_of(name)].append(name)
    together = [(kind if len(group) > 1 else group[0], group) for kind, group in kinds.items()]
    return together + [(name, [name]) for _, group in together if len(group) > 1 for name in group]


def _weights(subject: Subject) -> Iterator[Hypothesis]:
    state, full = _state(subject), f"{subject.path}." if subject.path else ""
    biases = [name for name in state if "bias" in name.rpartition(".")[2]]
    for words, group in _groups(biases):
        yield _changed(subject, f"{full}{words} is missing in JAX", {name: 0 * state[name] for name in group})
    square = [name for name, x in state.items() if x.ndim == 2 and x.shape[0] == x.shape[1]]
    for words, group in _groups(square):
        yield _changed(subject, f"{full}{words} is not transposed, or twice", {name: state[name].T for name in group})


def _state(subject: Subject) -> dict[str, torch.Tensor]:
    return {} if subject.module is None else {name: x.detach().clone() for name, x in subject.module.named_parameters()}


def _exchanged(subject: Subject) -> Iterator[Hypothesis]:
    state, full = _state(subject), f"{subject.path}." if subject.path else ""
    for one, other, pairs in _exchanges(state):
        changes = {a: state[b] for a, b in pairs} | {b: state[a] for a, b in pairs}
        yield _changed(subject, f"{full}{one} and {full}{other} are exchanged", changes)


def _exchanges(state: Weights) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield what may have changed places: all modules of a kind, single modules, single weights; names in pairs."""
    groups = defaultdict[str, list[str]](list)
    for name in state:
        path = name.rpartition(".")[0]
        alone = sum(other.rpartition(".")[0] == path for other in state) == 1
        for label in dict.fromkeys((kind_of(name if alone else path), name if alone else path)):
            groups[label].append(name)
    for name in state:
        groups[kind_of(name)] = groups.get(kind_of(name)) or [n for n in state if kind_of(n) == kind_of(name)]
    for (one, mine), (other, theirs) in combinations(groups.items(), 2):
        pairs = list(zip(mine, theirs, strict=False))
        same = len(mine) == len(theirs) and all(state[a].shape == state[b].shape for a, b in pairs)
        parents = {kind_of(name).rpartition(".")[0].rpartition(".")[0] for name in (*mine, *theirs)}
        near = len(parents) == 1 or kind_of(one) == kind_of(other)
        if near and same and not {*mine} & {*theirs}:
            yield one, other, pairs


# Gradients


def find_gradient_traps(search: "Search", deadline: float) -> tuple[str, ...]:
    """Find the mistake that explains why gradients disagree where the values agree."""
    program, base = program_of(search), Planted()
    program.run(base)
    modules = [] if program.module is None else list(program.module.named_modules())
    padded = [path for path, part in modules if getattr(part, "padding_idx", None) is not None]
    tests: list[tuple[str, Any]] = [
        (f"the row of the padding gets a gradient in JAX, in {path}", partial(_without_padding_row, path))
        for path in padded
    ]
    for words, plant in tests:
        if _gradientsagree(search, plant):
            return (words,)
    names = list(dict.fromkeys(site[1] for site in base.sites))
    everywhere: list[Site] = [("", name) for name in names]
    for places in (everywhere, [place for place in _places(list(base.sites)) if len(place) == 2]):
        stopped = []
        for kind, name in places:
            if time.process_time() > deadline:
                return ("(stopped: the time for trying known mistakes ran out)",)
            mode = Planted(Mistake("", {name: _detached}), () if places is everywhere else (kind, name))
            if _gradientsagree(search, mode.following):
                stopped.append(f"{name}{' in ' + kind if kind else ''}")
        if stopped:
            return (f"no gradient flows through {' or '.join(stopped)} in JAX: stop_gradient",)
    return ()


def _detached(call: Call) -> Any:
    right = call.right()
    if isinstance(right, tuple | list):
        return tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in right)
    if not isinstance(right, torch.Tensor):
        raise NotHereError
    return right.detach()


@contextmanager
def _without_padding_row(path: str, module: torch.nn.Module) -> Iterator[None]:
    part = module.get_submodule(path)
    row, part.padding_idx = part.padding_idx, None  # type: ignore[assignment]
    try:
        yield
    finally:
        part.padding_idx = row


def _gradientsagree(search: "Search", plant: Callable[[Any], AbstractContextManager[None]]) -> bool:
    side = search.case.torch

    def call(module: Any, inputs: Any, options: Any) -> Any:
        with plant(module):
            return side.call(module, inputs, options)

    case = replace(search.case, torch=replace(side, call=call))
    try:
        made = run_torch(case, search.variant, search.numbers, "float64").tensors
    except Exception:  # a result that takes no gradient any more, and whatever else PyTorch raises
        return False
    in_jax = search.runs.jax.tensors
    return made.keys() == in_jax.keys() and all(
        agree(search, name, in_jax[name], x, *(run.tensors.get(name) for run in search.runs[1:]))
        for name, x in made.items()
    )

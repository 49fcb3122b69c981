"""Which mistakes may have been made in a submodule or program, in groups: the likely and cheap ones first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch

from parity_tests.your_port.cause.mistakes import mistakes
from parity_tests.your_port.cause.planting import (
    Call,
    Hypothesis,
    Mistake,
    NotHereError,
    Places,
    Program,
    Site,
    Weights,
    passing,
    planted,
    weighted,
)
from parity_tests.your_port.cause.structure import activations, blocks, norms
from parity_tests.your_port.cause.subjects import Subject
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import kind_of

CALLS = 8
"""How many calls of a function, as in a loop, are tried one by one."""


def hypotheses(subject: Subject) -> Iterator[Iterator[Hypothesis]]:
    """Yield groups of mistakes that can be tried on this subject; those of a group are of one kind."""
    sites = subject.sites()
    called = {site[1] for site in sites}
    kinds = [[m for m in kind if called & m.wrong.keys()] for kind in mistakes(_sizes(subject))]
    yield _flags(subject)
    yield from ((planted(mistake) for mistake in known) for known in kinds)
    if subject.within:
        yield from ((planted(mistake, (), subject.within) for mistake in known) for known in kinds)
    yield _results(subject)
    yield _inputs(subject)
    yield _weights(subject)
    yield from (_at_places(known, [site for site in sites if site[0] == ""]) for known in kinds)  # its own code
    yield from (norms(subject, 1), norms(subject, 2), blocks(subject), activations(subject), _exchanged(subject))
    yield from (_at_places(known, sites) for known in kinds)


def _at_places(known: Sequence[Mistake], sites: Sequence[Site]) -> Iterator[Hypothesis]:
    for mistake in known:
        here = [site for site in sites if site[1] in mistake.wrong]
        yield from (planted(mistake, site) for site in groups_of(here))


def groups_of(sites: Sequence[Site]) -> Iterator[Site]:
    """Yield groups of places, and then each, but not all of them together; of many calls, as in a loop, not each."""
    for level in (1, 2, 3, 4):
        groups = Counter(site[:level] for site in sites)
        finer = Counter(group[:-1] for group in groups)
        most = CALLS if level == 4 else len(sites)
        yield from (group for group in groups if len(sites) > groups[group] and 1 < finer[group[:-1]] <= most)


HEADS = ("num_heads", "n_head", "n_heads", "nhead", "heads", "head_dim")


def _sizes(subject: Subject) -> tuple[int, ...]:
    tensors = [*subject.inputs.values(), *([] if subject.module is None else subject.module.parameters())]
    found = {size for x in tensors for size in x.shape}
    heads = [getattr(subject.module, name, None) for name in HEADS]
    numbers = [n for n in heads if isinstance(n, int) and n > 0]
    return tuple(sorted({size for size in found | {s // n for s in found for n in numbers} | set(numbers) if size > 1}))


# What is given and returned

RESULTS: dict[str, Callable[[Any], Any]] = {
    "tanh of {} is taken": torch.tanh,
    "the sigmoid of {} is taken": torch.sigmoid,
    "the ReLU of {} is taken": torch.relu,
    "{} is given as probabilities: a softmax is taken": lambda x: x.softmax(-1),
    "{} is given as logarithms of probabilities": lambda x: x.log_softmax(-1),
    "the logarithm of {} is taken": torch.log,
    "{} has the other sign": torch.neg,
}


def _results(subject: Subject) -> Iterator[Hypothesis]:
    """Yield what may be done to results; exchange two, such as the two states of an LSTM."""
    flat = flatten(plain(subject.run()))[0]
    tensors = {name: x for name, x in flat.items() if isinstance(x, torch.Tensor)}
    for (one, x), (other, y) in combinations(tensors.items(), 2):
        if x.shape == y.shape:
            swapped = partial(lambda one, other, given: {one: given[other], other: given[one]}, one, other)
            yield passing(f"the results {one} and {other} are exchanged in JAX", results=swapped)
    for name, x in tensors.items():
        for words, function in RESULTS.items() if x.is_floating_point() else ():
            called = words.format("the result" if name == "result" else f"the result {name}")
            changed = partial(lambda name, function, given: {name: function(given[name])}, name, function)
            yield passing(f"{called} in JAX", results=changed)


def _changed(words: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Hypothesis:
    return passing(words, inputs=lambda given: {name: change(given[name])} if name in given else {})


def _flags(subject: Subject) -> Iterator[Hypothesis]:
    """Yield what happens to masks, lengths and ids."""
    for name, x in subject.inputs.items():
        if x.dtype == torch.bool or (not x.is_complex() and x.ndim and bool(((x == 0) | (x == 1)).all())):
            yield _changed(f"{name} is read the other way round in JAX", name, lambda x: (1 - x.int()).to(x.dtype))
            yield _changed(f"{name} is ignored in JAX, as if it were 1 everywhere", name, torch.ones_like)
            yield _changed(f"{name} is ignored in JAX, as if it were 0 everywhere", name, torch.zeros_like)
        if not x.is_floating_point() and x.dtype != torch.bool:
            for by in (-1, 1):
                words = f"{name} is taken as {by:+d} in JAX: off by one"
                yield _changed(words, name, partial(torch.add, other=by))


def _inputs(subject: Subject) -> Iterator[Hypothesis]:
    """Yield inputs in another order, and two in each other's place."""
    for name, x in subject.inputs.items():
        if x.is_floating_point():
            for axis in (axis for axis in range(x.ndim) if x.shape[axis] > 1):
                words = f"{name} is read in reverse along axis {axis} in JAX"
                yield _changed(words, name, partial(torch.flip, dims=(axis,)))
        elif x.dtype != torch.bool and x.ndim:
            for by in (by for by in (1, -1, 2, -2, 3, -3) if abs(by) * 2 < x.shape[-1] or by * 2 == x.shape[-1]):
                words = f"{name} is shifted by {by:+d} along its last axis in JAX"
                yield _changed(words, name, partial(torch.roll, shifts=by, dims=-1))
    for (one, x), (other, y) in combinations(subject.inputs.items(), 2):
        if x.shape == y.shape and x.dtype == y.dtype:
            swapped = partial(lambda one, other, given: {one: given[other], other: given[one]}, one, other)
            yield passing(f"{one} and {other} are exchanged in JAX", inputs=swapped)


# Weights


def _groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """All names of a kind together under the kind's name, and then each alone."""
    kinds = defaultdict(list)
    for name in names:
        kinds[kind_of(name)].append(name)
    together = [(kind if len(group) > 1 else group[0], group) for kind, group in kinds.items()]
    return together + [(name, [name]) for _, group in together if len(group) > 1 for name in group]


def _third_cleared(third: int, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([0 * part if i == third else part for i, part in enumerate(x.chunk(3))])


def _blocks_transposed(x: torch.Tensor) -> torch.Tensor:
    """Of kernels that stand one above the other, such as those of gates, transpose each."""
    return x.unflatten(0, (-1, x.shape[1])).mT.flatten(0, 1)


def _weights(subject: Subject) -> Iterator[Hypothesis]:
    """Yield weights that are cleared, transposed, or taken from another layer."""
    state = state_of(subject)
    biases = [name for name in state if "bias" in name.rpartition(".")[2]]
    square = [name for name, x in state.items() if x.ndim == 2 and x.shape[0] == x.shape[1]]
    rows: list[tuple[str, list[str], Callable[[torch.Tensor], torch.Tensor]]] = [
        ("{at}{name} is missing in JAX", biases, lambda x: 0 * x),
        ("{at}{name} is not transposed in JAX, or twice", square, lambda x: x.mT),
    ]
    for third, words in enumerate(("first", "second", "last")):
        packed = [name for name in biases if len(state[name]) % 3 == 0]
        clear = partial(_third_cleared, third)
        rows.append((f"the {words} third of {{at}}{{name}} is missing in JAX", packed, clear))
    stacked = [
        n for n, x in state.items() if x.ndim == 2 and x.shape[0] in (2 * x.shape[1], 3 * x.shape[1], 4 * x.shape[1])
    ]
    rows.append(("{at}{name} is transposed gate by gate in JAX", stacked, _blocks_transposed))
    for words, names, change in rows:
        for text, group in _groups(names):
            changed = partial(lambda group, change, state: {n: change(state[n]) for n in group}, group, change)
            yield weighted(words.replace("{name}", text), changed)
    backwards = {name: name.removesuffix("_reverse") for name in state if name.endswith("_reverse")}
    if backwards:
        words = "both directions have the same weights in JAX, those of the first"
        yield weighted(words, lambda state: {name: state[other] for name, other in backwards.items()})
    yield from _repeated(state)


def _repeated(state: Weights) -> Iterator[Hypothesis]:
    """Yield the weights of the first or last layer in the place of those of all layers."""
    for words, names in (("first", list(state)), ("last", list(state)[::-1])):
        sources: dict[str, str] = {}
        copies = {name: sources.setdefault(kind_of(name), name) for name in names}
        copies = {n: source for n, source in copies.items() if n != source and state[n].shape == state[source].shape}
        if copies:
            copied = partial(lambda copies, state: {n: state[source] for n, source in copies.items()}, copies)
            yield weighted(f"all layers have the same weights in JAX, those of the {words} one", copied)


def state_of(subject: Subject) -> dict[str, torch.Tensor]:
    """The parameters of the submodule by their names in it."""
    return {} if subject.module is None else dict(subject.module.named_parameters())


def _exchanged(subject: Subject) -> Iterator[Hypothesis]:
    for one, other, pairs in _exchanges(state_of(subject)):
        changed = partial(lambda pairs, state: {a: state[b] for a, b in pairs} | {b: state[a] for a, b in pairs}, pairs)
        yield weighted(f"{{at}}{one} and {{at}}{other} are exchanged in JAX", changed)


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


# Gradients: the values agree


def of_gradients(subject: Subject) -> Iterator[Iterator[Hypothesis]]:
    """Yield what changes gradients alone: the row of a padding, and functions through which none flows."""
    modules = [] if subject.module is None else list(subject.module.named_modules())
    padded = [path for path, part in modules if getattr(part, "padding_idx", None) is not None]
    yield (
        Hypothesis(f"the row of the padding gets a gradient in JAX, in {path}", partial(_without_padding_row, path))
        for path in padded
    )
    yield _weights(subject)  # of zeros, such as given biases, the values say nothing
    sites = subject.sites()
    names = dict.fromkeys(site[1] for site in sites)
    stopped = {
        name: Mistake(f"no gradient flows through {name} in JAX: stop_gradient", {name: _detached}) for name in names
    }
    yield (planted(mistake) for mistake in stopped.values())
    yield (planted(stopped[site[1]], site) for site in groups_of(sites) if len(site) == 2)


def _detached(call: Call) -> Any:
    right = call.right()
    if isinstance(right, tuple | list):
        return tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in right)
    if not isinstance(right, torch.Tensor):
        raise NotHereError
    return right.detach()


def _without_padding_row(path: str, program: Program, places: Places) -> Program:
    def run(module: Any, inputs: Any) -> Any:
        part = module.get_submodule(path)
        row, part.padding_idx = part.padding_idx, None
        try:
            return program(module, inputs)
        finally:
            part.padding_idx = row

    return run

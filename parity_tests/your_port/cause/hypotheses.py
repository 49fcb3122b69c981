"""Which mistakes may have been made in a submodule or program, in groups: the likely and cheap ones first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch

from parity_tests.your_port.cause.mistakes import ACTIVATIONS, mistake, mistakes
from parity_tests.your_port.cause.planting import (
    Call,
    Change,
    Hypothesis,
    Mistake,
    Site,
    Weights,
    passing,
    planted,
    replaced,
    weighted,
)
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
    yield _inputs(subject)
    yield from ((planted(mistake) for mistake in known) for known in kinds)
    if subject.within:
        yield from ((planted(mistake, (), subject.within) for mistake in known) for known in kinds)
    yield _results(subject)
    yield _weights(subject)
    yield from (_at_places(known, [site for site in sites if site[0] == ""]) for known in kinds)  # its own code
    yield from (_activations(subject), _exchanged(subject))
    yield from (_at_places(known, sites) for known in kinds)


def _at_places(known: Sequence[Mistake], sites: Sequence[Site]) -> Iterator[Hypothesis]:
    for each in known:
        here = [site for site in sites if site[1] in each.wrong]
        yield from (planted(each, site) for site in _groups_of(here))


def _groups_of(sites: Sequence[Site]) -> Iterator[Site]:
    """Yield groups of places, and then each, but not all of them together; of many calls, as in a loop, not each."""
    for level in (1, 2, 3, 4):
        groups = Counter(site[:level] for site in sites)
        finer = Counter(group[:-1] for group in groups)
        most = CALLS if level == 4 else len(sites)
        yield from (group for group in groups if len(sites) > groups[group] and 1 < finer[group[:-1]] <= most)


def _sizes(subject: Subject) -> tuple[int, ...]:
    tensors = [*subject.inputs.values(), *([] if subject.module is None else subject.module.parameters())]
    return tuple(sorted({size for x in tensors for size in x.shape if size > 1}))


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
    for one, other in _alike(tensors):
        swapped = _taken({one: other, other: one})
        yield passing(f"the results {one} and {other} are exchanged in JAX", results=swapped)
    for name, x in tensors.items():
        for words, function in RESULTS.items() if x.is_floating_point() else ():
            called = words.format("the result" if name == "result" else f"the result {name}")
            yield passing(f"{called} in JAX", results=_each([name], function))


def _inputs(subject: Subject) -> Iterator[Hypothesis]:
    """Yield inputs that are ignored or read otherwise, and two in each other's place."""
    for name, x in subject.inputs.items():
        for words, change in _readings(x):
            yield passing(f"{name} is {words}", inputs=_each([name], change))
    for one, other in _alike(subject.inputs):
        yield passing(f"{one} and {other} are exchanged in JAX", inputs=_taken({one: other, other: one}))


def _readings(x: torch.Tensor) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """Yield how a mask, lengths, ids, labels, or a sequence may be read."""
    if x.dtype == torch.bool or (not x.is_complex() and x.ndim and bool(((x == 0) | (x == 1)).all())):
        yield "read the other way round in JAX", lambda x: (1 - x.int()).to(x.dtype)
        yield "ignored in JAX, as if it were 1 everywhere", torch.ones_like
        yield "ignored in JAX, as if it were 0 everywhere", torch.zeros_like
    if x.is_floating_point():
        for axis in (axis for axis in range(x.ndim) if x.shape[axis] > 1):
            yield f"read in reverse along axis {axis} in JAX", partial(torch.flip, dims=(axis,))
    elif x.dtype != torch.bool:
        for by in (-1, 1):
            yield f"taken as {by:+d} in JAX: off by one", partial(torch.add, other=by)
        for by in (by for by in (1, -1, 2, -2, 3, -3) if x.ndim and -x.shape[-1] < 2 * by <= x.shape[-1]):
            yield f"shifted by {by:+d} along its last axis in JAX", partial(torch.roll, shifts=by, dims=-1)


def _each(names: Sequence[str], change: Callable[[Any], Any]) -> Change:
    return lambda given: {name: change(given[name]) for name in names}


def _taken(sources: Mapping[str, str]) -> Change:
    return lambda given: {name: given[source] for name, source in sources.items()}


def _alike(tensors: Weights) -> Iterator[tuple[str, str]]:
    for (one, x), (other, y) in combinations(tensors.items(), 2):
        if x.shape == y.shape and x.dtype == y.dtype:
            yield one, other


# Activations that are modules of their own


def _activations(subject: Subject) -> Iterator[Hypothesis]:
    """Yield another activation for submodules without parameters that work on each entry alone."""
    parts = {} if subject.module is None else dict(subject.module.named_modules())
    for label, paths in _groups([path for path, part in parts.items() if _is_activation(part)]):
        for words, function in ACTIVATIONS.items():
            where = f", in {label}" if label else ""
            yield replaced(f"{type(parts[paths[0]]).__name__} is {words} in JAX{where}", paths, function)


def _is_activation(part: torch.nn.Module) -> bool:
    x = torch.linspace(-2, 2, 7, dtype=torch.float64)
    try:
        by_entry = torch.allclose(part.forward(x), part.forward(x[:, None])[:, 0])
    except Exception:  # whatever a module raises that takes something else
        return False
    return by_entry and not [*part.children(), *part.parameters(), *part.buffers()]


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
    state = _state_of(subject)
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
            yield weighted(words.replace("{name}", text), _each(group, change))
    backwards = {name: name.removesuffix("_reverse") for name in state if name.endswith("_reverse")}
    if backwards:
        words = "both directions have the same weights in JAX, those of the first"
        yield weighted(words, _taken(backwards))
    for words, names in (("first", list(state)), ("last", list(state)[::-1])):
        sources: dict[str, str] = {}
        copies = {name: sources.setdefault(kind_of(name), name) for name in names}
        copies = {n: source for n, source in copies.items() if n != source and state[n].shape == state[source].shape}
        if copies:
            yield weighted(f"all layers have the same weights in JAX, those of the {words} one", _taken(copies))


def _state_of(subject: Subject) -> dict[str, torch.Tensor]:
    """The parameters of the submodule by their names in it."""
    return {} if subject.module is None else dict(subject.module.named_parameters())


def _exchanged(subject: Subject) -> Iterator[Hypothesis]:
    """Yield what may have changed places: modules, all modules of a kind, all weights of a kind."""
    state, groups = _state_of(subject), defaultdict[str, list[str]](list)
    for name in state:
        path = name.rpartition(".")[0]
        for label in dict.fromkeys((kind_of(path), path, kind_of(name))):
            groups[label].append(name)
    labels = {tuple(names): names[0] if len(names) == 1 else label for label, names in groups.items()}
    for (mine, one), (theirs, other) in combinations(labels.items(), 2):
        same = [state[name].shape for name in mine] == [state[name].shape for name in theirs]
        parents = {kind_of(name).rpartition(".")[0].rpartition(".")[0] for name in (*mine, *theirs)}
        near = len(parents) == 1 or kind_of(one) == kind_of(other)
        if near and same and not {*mine} & {*theirs}:
            pairs = dict(zip((*mine, *theirs), (*theirs, *mine), strict=True))
            yield weighted(f"{{at}}{one} and {{at}}{other} are exchanged in JAX", _taken(pairs))


# Gradients: the values agree


PADDING = mistake("the row of the padding gets a gradient", "embedding", lambda call: call.but(padding_idx=None))


def of_gradients(subject: Subject) -> Iterator[Iterator[Hypothesis]]:
    """Yield what changes gradients alone: the row of a padding, and functions through which none flows."""
    yield iter([planted(PADDING)])
    yield _weights(subject)  # of zeros, such as given biases, the values say nothing
    sites = subject.sites()
    names = dict.fromkeys(site[1] for site in sites)
    stopped = {
        name: Mistake(f"no gradient flows through {name} in JAX: stop_gradient", {name: _detached}) for name in names
    }
    yield map(planted, stopped.values())
    yield (planted(stopped[site[1]], site) for site in _groups_of(sites) if len(site) == 2)


def _detached(call: Call) -> Any:
    right = call.right()
    if isinstance(right, tuple | list):
        return tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in right)
    return right.detach()

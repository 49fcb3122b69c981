"""Which mistakes may have been made in a submodule or program, in groups: the likely and cheap ones first.

Those that change gradients alone stand in `gradients`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations, product
from math import gcd
from typing import Any

import torch
from torch import Tensor

from parity_tests.your_port.cause.mistakes import ACTIVATED, ACTIVATIONS, mistakes_in
from parity_tests.your_port.cause.planting import (
    Change,
    Hypothesis,
    Lines,
    Mistake,
    Site,
    Weights,
    around,
    passing,
    planted,
    weighted,
)
from parity_tests.your_port.cause.suspects import Suspect
from parity_tests.your_port.place.pairing import kind_of

CALLS = 8
"""How many calls of a function, as in a loop, are tried one by one."""


def hypotheses(suspect: Suspect, calls: bool = True, turned: bool = True) -> Iterator[Iterator[Hypothesis]]:
    """Yield groups of mistakes that can be tried on this suspect; those of a group are of one kind.

    Without `calls` a mistake of functions is in all of them, or in those of a kind of submodule. Without `turned` no
    input is in another order.
    """
    sites = suspect.sites
    sizes = {size for x in (*suspect.inputs.values(), *_state_of(suspect).values()) for size in x.shape if size > 1}
    kinds = list(mistakes_in({site[1] for site in sites}, sorted(sizes)))
    yield _inputs(suspect)
    if turned:
        yield _turned(suspect)
    yield from (map(planted, known) for known in kinds)
    yield _results(suspect)
    yield weights(suspect)
    yield from (_activations(suspect, sites), _exchanged(suspect))
    for known in kinds:
        at = in_some_calls(known, sites)
        yield (planted(each, site) for each, site in at if calls or (isinstance(site, tuple) and len(site) == 1))


def in_some_calls(known: Iterable[Mistake], sites: Mapping[Site, Lines]) -> Iterator[tuple[Mistake, Site | str]]:
    """Yield each mistake of functions with each part of the calls in which it can be made."""
    for each in known:
        for site in _narrower({s: sites[s] for s in sites if s[1] in each.wrong}):
            yield each, site


def _narrower(sites: Mapping[Site, Lines]) -> Iterator[Site | str]:
    """Yield some of the calls: those in a kind of submodules, of a line of code, of a shape, and then each.

    Of many calls of a function, as in a loop, not each is tried.
    """
    of_function, some = Counter(site[:2] for site in sites), defaultdict[Site | str, dict[Site, None]](dict)
    ways: list[Callable[[Site], Sequence[Site | str]]] = [
        lambda site: [site[:1]],
        lambda site: [line for line in sites[site] if line],
        lambda site: [site[:3]],
        lambda site: [site] if of_function[site[:2]] <= CALLS else [],
    ]
    for way in ways:
        for site in sites:
            for part in way(site):
                some[part][site] = None
    seen = {tuple(sites)}
    for part, group in some.items():
        if tuple(group) not in seen:
            seen.add(tuple(group))
            yield part


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


def _results(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield what may be done to results; exchange two, such as the two states of an LSTM."""
    for one, other in _alike(suspect.results):
        swapped = _taken({one: other, other: one})
        yield passing(f"the results {one} and {other} are exchanged in JAX", results=swapped)
    for name in (name for name, x in suspect.results.items() if x.is_floating_point()):
        for words, function in RESULTS.items():
            called = words.format("the result" if name == "result" else f"the result {name}")
            yield passing(f"{called} in JAX", results=_each([name], function))


def _inputs(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield inputs that are ignored or read otherwise, and two in each other's place."""
    for name, x in suspect.inputs.items():
        for words, change in _readings(x):
            yield passing(f"{name} is {words}", inputs=_each([name], change))
    for one, other in _alike(suspect.inputs):
        yield passing(f"{one} and {other} are exchanged in JAX", inputs=_taken({one: other, other: one}))


def _readings(x: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Yield how a mask, lengths, ids or labels may be read."""
    if x.dtype == torch.bool or (not x.is_complex() and x.ndim and bool(((x == 0) | (x == 1)).all())):
        yield "read the other way round in JAX", lambda x: (1 - x.int()).to(x.dtype)
        yield "ignored in JAX, as if it were 1 everywhere", torch.ones_like
        yield "ignored in JAX, as if it were 0 everywhere", torch.zeros_like
    if not x.is_floating_point() and x.dtype != torch.bool:
        for by in (-1, 1):
            yield f"taken as {by:+d} in JAX: off by one", partial(torch.add, other=by)
        for by in (by for by in (1, -1, 2, -2, 3, -3) if x.ndim and -x.shape[-1] < 2 * by <= x.shape[-1]):
            yield f"shifted by {by:+d} along its last axis in JAX", partial(torch.roll, shifts=by, dims=-1)


def _turned(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield inputs that are read in another order: in reverse, or with two axes exchanged."""
    for name, x in suspect.inputs.items():
        if x.is_floating_point():
            ways: dict[str, Callable[[Tensor], Tensor]] = {
                f"in reverse along axis {axis}": partial(torch.flip, dims=(axis,))
                for axis, size in enumerate(x.shape)
                if size > 1
            }
            for one, other in combinations(range(x.ndim), 2):
                if x.shape[one] == x.shape[other] > 1:
                    words = f"with axes {one} and {other} exchanged"
                    ways[words] = partial(torch.transpose, dim0=one, dim1=other)
            for words, change in ways.items():
                yield passing(f"{name} is read {words} in JAX", inputs=_each([name], change))


def _each(names: Sequence[str], change: Callable[[Any], Any]) -> Change:
    return lambda given: {name: change(given[name]) for name in names}


def _taken(sources: Mapping[str, str]) -> Change:
    return lambda given: {name: given[source] for name, source in sources.items()}


def _alike(tensors: Weights) -> Iterator[tuple[str, str]]:
    for (one, x), (other, y) in combinations(tensors.items(), 2):
        if x.shape == y.shape and x.dtype == y.dtype:
            yield one, other


# Activations that are modules of their own


def _activations(suspect: Suspect, sites: Iterable[Site]) -> Iterator[Hypothesis]:
    """Yield an activation instead of submodules without parameters, such as one that is written out.

    Those that only call a function which is an activation are among the mistakes in functions.
    """
    parts = {} if suspect.module is None else dict(suspect.module.named_modules())
    called = defaultdict[str, set[str]](set)
    for kind, function, *_ in sites:
        called[kind].add(function)
    only_call = {kind for kind, names in called.items() if len(names) == 1 and names <= set(ACTIVATED.split())}
    own = {path: [*part.children(), *part.parameters(), *part.buffers()] for path, part in parts.items()}
    simple = [path for path in parts if not own[path] and kind_of(path) not in only_call]
    for label, paths in _groups(simple):
        for words, function in ACTIVATIONS.items():
            where = f", in {label}" if label else ""
            wrong = partial(lambda function, _, x: function(x), function)
            yield around(f"{type(parts[paths[0]]).__name__} is {words} in JAX{where}", wrong, paths)


# Weights


def _groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """All names of a kind together under the kind's name, and then each alone."""
    kinds = defaultdict(list)
    for name in names:
        kinds[kind_of(name)].append(name)
    together = [(kind if len(group) > 1 else group[0], group) for kind, group in kinds.items()]
    return together + [(name, [name]) for _, group in together if len(group) > 1 for name in group]


def _state_of(suspect: Suspect) -> dict[str, Tensor]:
    """The parameters of the submodule by their names in it."""
    return {} if suspect.module is None else dict(suspect.module.named_parameters())


def _part(place: int, count: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change one of the equal parts of a packed weight."""
    return lambda x: torch.cat([change(part) if i == place else part for i, part in enumerate(x.chunk(count))])


def weights(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield weights that are cleared, transposed, in another order, or taken from another layer."""
    state = _state_of(suspect)
    biases = [name for name in state if "bias" in name.rpartition(".")[2]]
    others = [name for name in state if name not in biases]
    packed = [name for name in biases if state[name].ndim and len(state[name]) % 3 == 0]
    ratios = {name: x.shape[0] / x.shape[1] for name, x in state.items() if x.ndim == 2}
    square = [name for name, ratio in ratios.items() if ratio == 1]
    stacked = [name for name, ratio in ratios.items() if ratio in (2, 3, 4)]
    turned: Callable[[Tensor], Tensor] = lambda x: x.mT  # noqa: E731
    rows: list[tuple[str, list[str], Callable[[Tensor], Tensor]]] = [
        ("{at}{name} is missing in JAX", biases + others, lambda x: 0 * x),
        ("{at}{name} is missing in JAX, as if it were 1", [n for n in others if state[n].ndim < 2], torch.ones_like),
        ("{at}{name} is not transposed in JAX, or twice", [n for n in square if not suspect.is_guessed(n)], turned),
        ("the layout of {at}{name} was guessed wrongly: give layout=", [*filter(suspect.is_guessed, square)], turned),
        *((f"the {third} third of {{at}}{{name}} is missing in JAX", packed, _part(i, 3, lambda x: 0 * x))
          for i, third in enumerate(("first", "second", "last"))),
        ("{at}{name} is transposed gate by gate in JAX", stacked,
         lambda x: x.unflatten(0, (-1, x.shape[1])).mT.flatten(0, 1)),
    ]  # fmt: skip
    for words, names, change in rows:
        for text, group in _groups(names):
            yield weighted(words.replace("{name}", text), _each(group, change))
    yield from (*_of_gates(state), *_of_packed(state), *_of_rotation(state, {site[1] for site in suspect.sites}))
    backwards = {name: name.removesuffix("_reverse") for name in state if name.endswith("_reverse")}
    if backwards:
        words = "both directions have the same weights in JAX, those of the first"
        yield weighted(words, _taken(backwards))
    sources: dict[str, str] = {}
    copies = {name: sources.setdefault(kind_of(name), name) for name in state}
    copies = {n: source for n, source in copies.items() if n != source and state[n].shape == state[source].shape}
    if copies:
        names = [f"{{at}}{name}" for name in copies]
        shown = f"{', '.join(names[:4])}{' …' * (len(names) > 4)}"
        yield weighted(f"{shown} are those of the first layer of their kind in JAX", _taken(copies))


def _of_gates(state: Weights) -> Iterator[Hypothesis]:
    """Yield what may be done to the gates of an LSTM or a GRU, which stand one above the other in each weight."""
    weights = [name for name in state if "_ih" in name or "_hh" in name]
    counts = {state[name].shape[0] // state[name].shape[1] for name in weights if "weight_hh" in name}
    gates = {3: "rzn", 4: "ifgo"}.get(max(counts, default=0), "")
    from_x, from_h = ([name for name in weights if f"bias_{part}" in name] for part in ("ih", "hh"))
    if gates == "rzn":
        yield weighted("the update gate is inverted in JAX: z for 1 − z", _each(weights, _part(1, 3, torch.neg)))
        words = "b_hn stands outside of the reset gate in JAX: bias_hh is merged into bias_ih"
        yield weighted(words, partial(_merged, from_x, from_h))
    if gates == "ifgo":
        words = "the forget gate has a bias of 1 more in JAX"
        yield weighted(words, _each(from_x, _part(1, 4, lambda x: x + 1)))
    for order in list(permutations(gates))[1:]:
        words = f"gates in another order: for {', '.join(gates)} JAX takes PyTorch's {', '.join(order)}"
        places = [gates.index(gate) for gate in order]
        yield weighted(words, _each(weights, partial(_ordered, places)))


def _ordered(places: Sequence[int], x: Tensor) -> Tensor:
    parts = x.chunk(len(places))
    return torch.cat([parts[place] for place in places])


def _merged(from_x: Sequence[str], from_h: Sequence[str], given: Weights) -> Weights:
    left = {h: _part(2, 3, lambda x: 0 * x)(given[h]) for h in from_h}
    return left | {x: given[x] + given[h] - left[h] for x, h in zip(from_x, from_h, strict=True)}


MOST_HEADS, LARGEST_HEAD = 64, 256
"""How many heads there may be, and how many features of each, that are tried."""


def _of_packed(state: Weights) -> Iterator[Hypothesis]:
    """Yield rows of a packed projection in another order: those of a head stand side by side, or those of a part."""
    groups = defaultdict[tuple[str, int], list[str]](list)
    for name, x in state.items():
        if x.ndim:
            groups[kind_of(name.rpartition(".")[0]), len(x)].append(name)
    ways = product((2, 3), range(2, MOST_HEADS + 1))
    pairs = dict.fromkeys(pair for way in ways for pair in (way, way[::-1]))
    for (_, rows), names in groups.items():
        for one, other in pairs:
            size = rows // (one * other)
            if 1 < size <= LARGEST_HEAD and size * one * other == rows:
                split = one, other, size
                change = partial(lambda split, x: x.unflatten(0, split).transpose(0, 1).flatten(0, 2), split)
                rows_of = f"the rows of {{at}}{kind_of(names[0])} are read as [{one}, {other}, {size}] in JAX"
                otherwise = f"not as [{other}, {one}, {size}]" if one != other else "with the first two axes exchanged"
                yield weighted(f"{rows_of}, {otherwise}", _each(names, change))


def _of_rotation(state: Weights, functions: Collection[str]) -> Iterator[Hypothesis]:
    """Yield another order of the features of queries and keys: it decides which of them rotate together.

    For heads of 4 the two orders are the same, and what PyTorch joins the rotated features with tells which one it has:
    a program that joins none rotates none. Values do not rotate, so a weight that packs them, too, stays as it is.
    """
    pairs, halves = "x[2i] and x[2i + 1]", "x[i] and x[i + d/2]"
    last = {name: name.split(".")[-2:][0].removeprefix("w").lstrip("_") for name, x in state.items() if x.ndim}
    named = [name for name, words in last.items() if words.startswith(("q", "k")) and "v" not in words]
    has_pairs = {"stack", "view_as_complex", "__setitem__"} & {*functions}
    has_halves = {"cat", "concat", "concatenate"} & {*functions}
    common = gcd(*(len(state[name]) for name in named))
    for size in range(4, min(common, LARGEST_HEAD) + 1, 2):
        if common % size == 0:
            for in_jax, in_torch, split in ((pairs, halves, (-1, size // 2, 2)), (halves, pairs, (-1, 2, size // 2))):
                if has_pairs if in_torch == pairs else has_halves:
                    change = partial(lambda split, x: x.unflatten(0, split).transpose(1, 2).flatten(0, 2), split)
                    words = f"features are rotated in pairs of {in_jax}, not in pairs of {in_torch}, in JAX"
                    yield weighted(words, _each(named, change))


def _exchanged(suspect: Suspect) -> Iterator[Hypothesis]:
    """Yield what may have changed places, or is used twice: modules, all of a kind, all weights of a kind."""
    state, groups = _state_of(suspect), defaultdict[str, list[str]](list)
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
            guess = ", or in the guess of their places: give names=" * any(map(suspect.is_guessed, pairs))
            yield weighted(f"{{at}}{one} and {{at}}{other} are exchanged in JAX{guess}", _taken(pairs))
            for kept, lost, sources in ((one, other, {*theirs}), (other, one, {*mine})):
                copies = {name: source for name, source in pairs.items() if name in sources}
                yield weighted(f"{{at}}{kept} is used instead of {{at}}{lost}, too, in JAX", _taken(copies))

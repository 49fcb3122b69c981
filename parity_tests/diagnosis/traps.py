"""Try out the known mistakes of moving a model: which one, made in PyTorch on purpose, gives JAX's numbers?

The subject is the submodule in which the two programs part, called as PyTorch called it, beside what JAX's returned for
the same. A mistake is named only if it makes all of that agree, within the same bounds as ever. Where none does, the
submodules around it are tried, and the whole program last. Settings come before permutations, and a mistake is made in
all places of a kind at once (`layers.*.bias`) before it is made in one.
"""

import inspect
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from jax_attn.weights import to_numpy
from parity_tests.diagnosis.mistakes import Call, Mistake, NotHereError, mistakes
from parity_tests.diagnosis.pairing import align, kind_of
from parity_tests.diagnosis.plain_attention import PLAIN
from parity_tests.taps import torch_leaves
from parity_tests.torch_side import run_torch
from parity_tests.tree import flatten, plain

if TYPE_CHECKING:
    from parity_tests.diagnosis.bisect import Search

Site = tuple[Any, ...]
"""The kind of the submodule, the function, the shape of its argument and the number of the call; or less of it, from
the left: several places."""
Change = Callable[[str, torch.Tensor], torch.Tensor]
"""(name of an input, its value) -> another value."""
Weights = Mapping[str, torch.Tensor]


class Planted(TorchFunctionMode):
    """Runs PyTorch with a mistake planted, in all places or in one; without any it notes the places."""

    def __init__(self, mistake: Mistake | None = None, site: Site = (), within: str = "") -> None:
        super().__init__()
        self.mistake, self.site, self.within, self.planted = mistake, site, within, False
        self.sites: dict[Site, None] = {}
        self.memory: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._frames: list[tuple[str, Counter[str]]] = [("", Counter())]
        """The path of each submodule that runs, and how often it called each function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in PLAIN:
            with self:
                return PLAIN[name](function, *args, **(kwargs or {}))
        if in_place := name.endswith("_") and not name.startswith("_") and hasattr(torch.Tensor, name[:-1]):
            function = getattr(torch.Tensor, name[:-1])
        path, counts = self._frames[-1]
        kind = kind_of(path)
        call = Call(function, args, kwargs or {}, self.memory, self.facts, kind)
        site = (kind, name.rstrip("_") if in_place else name, tuple(getattr(call.x, "shape", ())), counts[name])
        counts[name] += 1
        self.sites[site] = None
        result = self._result(call, site)
        return args[0].copy_(result) if in_place else result

    def _result(self, call: Call, site: Site) -> Any:
        wrong = None if self.mistake is None else self.mistake.wrong.get(site[1])
        if wrong is not None and self._frames[-1][0].startswith(self.within) and self._is_here(site, wrong):
            try:
                result = wrong(call)
                self.planted = True
                return result
            except NotHereError:
                pass
        return call.right()

    def _is_here(self, site: Site, wrong: Any) -> bool:
        """Whether a place is meant. A mistake in two functions of one submodule needs both."""
        wrongs = {} if self.mistake is None else self.mistake.wrong
        companion = len(self.site) > 1 and site[0] == self.site[0] and wrong is not wrongs[self.site[1]]
        return companion or site[: len(self.site)] == self.site

    def _enter(self, path: str, *_: Any) -> None:
        self._frames.append((path, Counter()))

    def _leave(self, *_: Any) -> None:
        self._frames.pop()

    @contextmanager
    def following(self, module: torch.nn.Module | None) -> Iterator[None]:
        """Know in which submodule a function is called, while entered."""
        with ExitStack() as hooks:
            for path, part in [] if module is None else module.named_modules():
                hooks.callback(part.register_forward_pre_hook(partial(self._enter, path)).remove)
                hooks.callback(part.register_forward_hook(self._leave).remove)
            with self:
                yield


@dataclass
class Subject:
    """A program or submodule of PyTorch with its inputs, and the test whether results are those of JAX."""

    path: str
    """PyTorch's; "" is the whole program."""
    module: torch.nn.Module | None
    inputs: dict[str, torch.Tensor]
    """Of its first call."""
    compute: Callable[[Change], Any]
    agrees: Callable[..., bool]
    """(results, whether JAX's may have been dropped out) -> whether they are JAX's."""
    facts: dict[str, Any] = field(default_factory=dict)
    within: str = ""
    """The submodule of the program in which the two part, if that is known without JAX's submodules."""

    def run(
        self, mode: Planted | None = None, change: Change = lambda name, x: x, weights: Weights | None = None
    ) -> Any:
        """Compute the results with a mistake; leave the module as it was."""
        mode = Planted() if mode is None else mode
        state = {} if self.module is None else dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        kept = {name: x.detach().clone() for name, x in state.items() if name in (weights or {}) or "running_" in name}
        with torch.no_grad():
            try:
                for name, value in (weights or {}).items():
                    state[name].copy_(value)
                with mode.following(self.module):
                    return self.compute(change)
            finally:
                for name, value in kept.items():
                    state[name].copy_(value)


Hypothesis = tuple[str, Callable[[], bool]]
"""A mistake in words, and the test whether it explains what JAX returned."""


def find_traps(search: "Search", place: str, within: str, deadline: float) -> tuple[str, ...]:
    """Find the mistake that explains why a submodule's results disagree, in words."""
    start, tried = time.process_time(), 0
    for subject in _subjects(search, place, within):
        for words, explains in hypotheses(subject):
            if time.process_time() > deadline:
                spent = time.process_time() - start
                return (f"(stopped after {spent:.0f} s of computing: {tried} known mistakes tried, none fits yet)",)
            tried += 1
            if explains():
                words = words.format(**subject.facts)
                return (
                    words if subject.path in ("", search.names.get(place, [""])[0]) else f"{words}, in {subject.path}",
                )
    precise = _in_full_precision(search)
    return precise


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
    sizes = _sizes(subject)
    called = {site[1] for site in base.sites}
    known = [mistake for mistake in mistakes(sizes) if called & mistake.wrong.keys()]
    yield "dropout is left on in JAX", lambda: subject.agrees(result, dropped=True)
    inputs = list(_inputs(subject))
    first = [hypothesis for hypothesis in inputs if "other way round" in hypothesis[0] or "off by one" in hypothesis[0]]
    yield from first
    yield from (_planted(subject, mistake, ()) for mistake in known)
    if subject.within:
        yield from (_planted(subject, mistake, (), subject.within) for mistake in known)
    yield from (hypothesis for hypothesis in inputs if hypothesis not in first)
    yield from _settings(subject)
    yield from _blocks(subject)
    yield from _recurrent(subject)
    yield from _weights(subject)
    for mistake in known:
        yield from (
            _planted(subject, mistake, site) for site in _places([s for s in base.sites if s[1] in mistake.wrong])
        )
    yield from _orders(subject)
    yield from _factors(subject, sizes)


def _places(sites: list[Site]) -> Iterator[Site]:
    """Yield groups of places, and then each, but not all of them together."""
    for level in (1, 2, 3, 4):
        groups = Counter(site[:level] for site in sites)
        finer = Counter(group[:-1] for group in groups)
        yield from (group for group in groups if len(sites) > groups[group] and finer[group[:-1]] > 1)


def _planted(subject: Subject, mistake: Mistake, site: Site, within: str = "") -> Hypothesis:
    def explains() -> bool:
        mode = Planted(mistake, site, within)
        agrees = _test(subject, lambda: subject.run(mode))
        subject.facts.update(mode.facts)
        return agrees and mode.planted

    place = within or (site[0] if site else "")
    where = f", in {place}" if place else ""
    return mistake.words + where, explains


def _test(subject: Subject, run: Callable[[], Any]) -> bool:
    """Whether the results agree; a mistake with which PyTorch cannot run explains nothing."""
    try:
        return subject.agrees(run())
    except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
        return False


def _test_inputs(subject: Subject, change: Change) -> bool:
    return _test(subject, lambda: subject.run(change=change))


def _change_one(name: str, change: Callable[[torch.Tensor], torch.Tensor], key: str, x: torch.Tensor) -> torch.Tensor:
    return change(x) if key == name else x


def _changed(subject: Subject, words: str, weights: Weights) -> Hypothesis:
    """Weights in words take part in a format; theirs are none."""
    return words.replace("{", "{{").replace("}", "}}"), lambda: _test(subject, lambda: subject.run(weights=weights))


def _sizes(subject: Subject) -> tuple[int, ...]:
    tensors = [*subject.inputs.values(), *([] if subject.module is None else subject.module.parameters())]
    found = {size for x in tensors for size in x.shape}
    heads = [
        getattr(subject.module, name, None) for name in ("num_heads", "n_head", "n_heads", "nhead", "heads", "head_dim")
    ]
    numbers = [n for n in heads if isinstance(n, int) and n > 0]
    return tuple(sorted({size for size in found | {s // n for s in found for n in numbers} | set(numbers) if size > 1}))


# What may be wrong with inputs, settings and weights


def _inputs(subject: Subject) -> Iterator[Hypothesis]:
    def changed(words: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Hypothesis:
        other = partial(_change_one, name, change)
        return words, partial(_test_inputs, subject, other)

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
            pair = {one: y, other: x}
            swapped = pair.get
            words = f"{one} and {other} are exchanged"
            yield words, partial(_test_inputs, subject, swapped)


def _blocks(subject: Subject) -> Iterator[Hypothesis]:
    """Put the norms of a residual block elsewhere: before or after its sublayers, or before its residual."""
    children = [] if subject.module is None else list(subject.module.children())
    norms = [part for part in children if "norm" in type(part).__name__.lower()]
    order = _order_of_calls(subject, children) if norms else []
    if len(order) < 2 or isinstance(subject.module, torch.nn.ModuleList):
        return
    ahead = [order[i + 1] for i, part in enumerate(order[:-1]) if part in norms]
    after = [order[i + 1] for i, part in enumerate(order[:-1]) if part in norms and order[-1] in norms]
    called = [part for part in order if part in norms]

    def explains(add: Callable[[Call, Any], Any] | None, starts: Sequence[Any], only: int | None = None) -> bool:
        """Take the norms out; put them into the sums, or before the first parts of the sublayers."""
        returned: list[Any] = []

        def wrong(call: Call) -> Any:
            if add is None or call.kind or len(call.args) < 2 or np.shape(call.args[0]) != np.shape(call.args[1]):
                raise NotHereError
            place = call.memory["sums"] = call.memory.get("sums", -1) + 1
            return add(call, (called, returned)[add is _from_norm][place]) if only in (None, place) else call.right()

        def keep(_: Any, args: Any, result: Any) -> Any:
            returned.append(result)
            return result if add is _from_norm else args[0]

        with ExitStack() as hooks:
            for part in norms:
                hooks.callback(part.register_forward_hook(keep).remove)
            for part, norm in zip(starts, called, strict=False):
                given = lambda _, args, norm=norm: tuple(norm.forward(x) if x is args[0] else x for x in args)  # noqa: E731
                hooks.callback(part.register_forward_pre_hook(given).remove)
            return _test(subject, lambda: subject.run(Planted(Mistake("", {"add": wrong}))))

    if order[0] in norms and ahead:
        yield (
            "the norms stand after the residual sums in JAX (post-norm), not before the sublayers",
            partial(explains, _then_norm, ()),
        )
        for only in (None, *range(len(called))):
            words = "the residual is taken after the norm in JAX, not before it"
            yield words, partial(explains, _from_norm, (), only)
    elif order[-1] in norms:
        words = "the norms stand before the sublayers in JAX (pre-norm), not after the residual sums"
        yield words, partial(explains, None, [order[0], *after])


def _then_norm(call: Call, norm: Any) -> Any:
    return norm.forward(call.right())


def _from_norm(call: Call, normed: Any) -> Any:
    return normed + call.args[1]


def _order_of_calls(subject: Subject, children: list[Any]) -> list[Any]:
    order: list[Any] = []
    with ExitStack() as hooks:
        for part in children:
            hooks.callback(part.register_forward_pre_hook(partial(_note, order)).remove)
        subject.run()
    return order[: len(set(order))]


def _note(order: list[Any], part: Any, _: Any) -> None:
    order.append(part)


def _settings(subject: Subject) -> Iterator[Hypothesis]:
    parts = [] if subject.module is None else [part for part in subject.module.modules() if hasattr(part, "norm_first")]

    def explains() -> bool:
        for part in parts:
            part.norm_first = not part.norm_first  # type: ignore[assignment]
        try:
            return _test(subject, subject.run)
        finally:
            for part in parts:
                part.norm_first = not part.norm_first  # type: ignore[assignment]

    if parts:
        yield f"the norms stand {'after' if parts[0].norm_first else 'before'} the sublayers in JAX", explains


GATES = {3: ("r", "z", "n"), 4: ("i", "f", "g", "o")}
"""PyTorch's orders, of a GRU and of an LSTM."""


def _recurrent(subject: Subject) -> Iterator[Hypothesis]:
    state = _parameters(subject)
    packed = {
        name: x
        for name, x in state.items()
        if name.rpartition(".")[2].startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    }
    recurrent = {name: x for name, x in packed.items() if "_hh" in name and x.ndim == 2}
    counts = {x.shape[0] // x.shape[1] for x in recurrent.values() if x.shape[0] % x.shape[1] == 0}
    for count in counts & GATES.keys():
        gates = GATES[count]
        parts = {name: x.chunk(count) for name, x in packed.items()}

        def put(place: int, change: Callable[..., Any], only: str = "", parts: Any = parts) -> dict[str, torch.Tensor]:
            return {
                name: torch.cat([change(name, x) if i == place else x for i, x in enumerate(gate)])
                for name, gate in parts.items()
                if only in name
            }

        if count == 3:
            into = {name: parts[name.replace("bias_ih", "bias_hh")][2] for name in parts if "bias_ih" in name}
            none = put(2, lambda name, x: 0 * x, "bias_hh")
            outside = put(2, lambda name, x, into=into: x + into[name], "bias_ih") if into else {}
            yield _changed(subject, "b_hn is missing in JAX: the hidden bias of n, inside of the reset gate", none)
            yield _changed(
                subject, "b_hn stands outside of the reset gate in JAX: bias_hh is merged into bias_ih", none | outside
            )
            yield _changed(subject, "the update gate is inverted in JAX: z for 1 − z", put(1, lambda name, x: -x))
        else:
            more = put(1, lambda name, x: x + 1, "bias_ih")
            yield _changed(subject, "the forget gate has a bias of 1 more in JAX", more)
        for order in list(permutations(range(count)))[1:]:
            reordered = {name: torch.cat([gate[i] for i in order]) for name, gate in parts.items()}
            taken = ", ".join(gates[i] for i in order)
            yield _changed(
                subject, f"gates in another order: for {', '.join(gates)} JAX takes PyTorch's {taken}", reordered
            )


def _parameters(subject: Subject) -> dict[str, torch.Tensor]:
    return {} if subject.module is None else {name: x.detach().clone() for name, x in subject.module.named_parameters()}


def _groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """All names of a kind together under the kind's name, and then each alone."""
    kinds = defaultdict(list)
    for name in names:
        kinds[kind_of(name)].append(name)
    together = [(kind if len(group) > 1 else group[0], group) for kind, group in kinds.items()]
    return together + [(name, [name]) for _, group in together if len(group) > 1 for name in group]


def _weights(subject: Subject) -> Iterator[Hypothesis]:
    state = _parameters(subject)
    full = f"{subject.path}." if subject.path else ""
    biases = [name for name in state if "bias" in name.rpartition(".")[2]]
    for words, group in _groups(biases):
        yield _changed(subject, f"{full}{words} is missing in JAX", {name: 0 * state[name] for name in group})
    for words, group in _groups([name for name in biases if "bias_hh" in name]):
        merged = {
            name.replace("bias_hh", "bias_ih"): state[name.replace("bias_hh", "bias_ih")] + state[name]
            for name in group
        }
        changes = merged | {name: 0 * state[name] for name in group}
        yield _changed(subject, f"{full}{words} is merged into {words.replace('bias_hh', 'bias_ih')}", changes)
    yield _changed(subject, "all biases are missing in JAX", {name: 0 * state[name] for name in biases})
    square = [name for name, x in state.items() if x.ndim == 2 and x.shape[0] == x.shape[1]]
    for words, group in _groups(square):
        yield _changed(subject, f"{full}{words} is not transposed, or twice", {name: state[name].T for name in group})


def _orders(subject: Subject) -> Iterator[Hypothesis]:
    """Exchange weights of the same shape, and parts of a packed one."""
    state = _parameters(subject)
    full = f"{subject.path}." if subject.path else ""
    kinds = defaultdict(list)
    for name in state:
        kinds[kind_of(name)].append(name)
    for one, other in combinations(kinds, 2):
        pairs = list(zip(kinds[one], kinds[other], strict=False))
        if len(kinds[one]) == len(kinds[other]) and all(state[a].shape == state[b].shape for a, b in pairs):
            changes = {a: state[b] for a, b in pairs} | {b: state[a] for a, b in pairs}
            yield _changed(subject, f"{full}{one} and {full}{other} are exchanged", changes)
    for a, b in combinations(state, 2):
        if state[a].shape == state[b].shape and (len(kinds[kind_of(a)]) > 1 or len(kinds[kind_of(b)]) > 1):
            yield _changed(subject, f"{full}{a} and {full}{b} are exchanged", {a: state[b], b: state[a]})
    for kind, names in kinds.items():
        for axis in range(min(state[name].ndim for name in names)):
            if all(state[n].shape[axis] % 3 == 0 and state[n].ndim < 3 for n in names) and not kind.rpartition(".")[
                2
            ].endswith(("_ih", "_hh")):
                for order in list(permutations(range(3)))[1:]:
                    changes = {n: torch.cat([state[n].chunk(3, axis)[i] for i in order], axis) for n in names}
                    mates = {
                        m: x
                        for n in names
                        for m, x in state.items()
                        if m == n.replace("weight", "bias") and m != n and axis == 0
                    }
                    changes |= {m: torch.cat([x.chunk(3)[i] for i in order]) for m, x in mates.items()}
                    yield _changed(
                        subject, f"the three parts of {full}{kind} are in another order in JAX: {order}", changes
                    )


def _factors(subject: Subject, sizes: tuple[int, ...]) -> Iterator[Hypothesis]:
    """Multiply the result, a weight or an input: that makes up for a factor that was forgotten or applied twice."""
    state = _parameters(subject)
    full = f"{subject.path}." if subject.path else ""
    values = {words: value for size in sizes for words, value in ((f"√{size}", size**0.5), (f"{size}", float(size)))}
    scale = lambda c, tree: {name: c * x for name, x in tree.items()}  # noqa: E731
    for sign, verb in ((1, "multiplied"), (-1, "divided")):
        for text, value in values.items():
            words = f"{verb} by {text} in JAX"
            times = partial(lambda c: _times(subject.run(), c), value**sign)
            yield f"the result is {words}", partial(_test, subject, times)
    for sign, verb in ((1, "multiplied"), (-1, "divided")):
        for text, value in values.items():
            words = f"or what it is multiplied with, is {verb} by {text} in JAX"
            for kind, group in _groups([name for name, x in state.items() if x.ndim > 1]):
                changes = scale(value**sign, {name: state[name] for name in group})
                yield _changed(subject, f"{full}{kind}, {words}", changes)
            for name in (name for name, x in subject.inputs.items() if x.is_floating_point()):
                other = partial(_change_one, name, partial(torch.mul, other=value**sign))
                yield f"{name}, {words}", partial(_test_inputs, subject, other)


def _times(tree: Any, c: float) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree * c if tree.is_floating_point() else tree
    if isinstance(tree, Mapping):
        return {name: _times(part, c) for name, part in tree.items()}
    return tuple(_times(part, c) for part in tree) if isinstance(tree, tuple | list) else tree


# The subjects


def _subjects(search: "Search", place: str, within: str) -> Iterator[Subject]:
    """Yield the submodule, those around it, and the program."""
    chain = [place] if place else []
    while chain and (above := search.owner(chain[-1])):
        chain.append(above)
    program = _capture(search)
    for name in chain:
        subject = _submodule(search, name, program)
        if subject is not None:
            yield subject
    yield replace(_program(search, program), within="" if place else within)


@dataclass
class Captured:
    """PyTorch's program with its weights in place, as the case calls it."""

    module: Any
    inputs: Any
    options: Any
    calls: dict[str, list[tuple[Any, Any, Any]]]
    """Path of a submodule -> itself, and the arguments of each call."""


def _capture(search: "Search") -> Captured:
    """Run PyTorch in float64 once more, to have hold of its modules and of what they are given."""
    side, found = search.case.torch, Captured(None, None, None, defaultdict(list))

    def call(module: Any, inputs: Any, options: Any) -> Any:
        found.module, found.inputs, found.options = module, _copied(inputs), options
        with ExitStack() as hooks:
            for path, part in [] if module is None else module.named_modules():
                note = partial(
                    lambda path, part, args, kwargs: found.calls[path].append((part, *_copied((args, kwargs)))), path
                )
                hooks.callback(part.register_forward_pre_hook(note, with_kwargs=True).remove)
            buffers = [] if module is None else [(x, x.clone()) for x in module.buffers()]
            results = _copied(plain(side.call(module, inputs, options)))
            for buffer, before in buffers:  # a training step changes them
                buffer.copy_(before)
            return results

    case = replace(search.case, torch=replace(side, call=call))
    with torch.no_grad():
        run_torch(case, search.variant, search.numbers, "float64")
    return found


def _copied(tree: Any) -> Any:
    flat, rebuild = flatten({"": tree})
    return rebuild({name: x.detach().clone() if isinstance(x, torch.Tensor) else x for name, x in flat.items()})[""]


def _program(search: "Search", program: Captured) -> Subject:
    inputs, rebuild = flatten(program.inputs)

    def compute(change: Change) -> Any:
        given = {name: change(name, x.clone()) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        return search.case.torch.call(program.module, rebuild(given), program.options)

    def agrees(results: Any, dropped: bool = False) -> bool:
        outputs = {
            name: None if x is None else to_numpy(x)
            for name, x in flatten(plain(results), search.case.outputs)[0].items()
        }
        in_jax = search.runs.jax.outputs()
        if dropped:
            outputs = {name: _dropped(in_jax.get(name), x) for name, x in outputs.items()}
        return outputs.keys() == in_jax.keys() and all(
            _agree(search, name, in_jax[name], x, *(run.tensors.get(name) for run in search.runs[1:]))
            for name, x in outputs.items()
        )

    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    return Subject("", program.module, tensors, compute, agrees)


def _dropped(in_jax: Any, made: Any) -> Any:
    """Drop what is 0 in JAX, and scale the rest as dropout does; unchanged if that is not what happened."""
    if in_jax is None or made is None or in_jax.shape != made.shape or made.dtype.kind != "f":
        return made
    gone = (in_jax == 0) & (made != 0)
    kept = ~gone & (made != 0)
    ratio = float(np.median(in_jax[kept] / made[kept])) if gone.any() and kept.any() else 1.0
    return np.where(gone, 0, made * ratio) if ratio > 1 else made


def _agree(search: "Search", name: str, in_jax: Any, made: Any, in_torch: Any, truth: Any) -> bool:
    """Whether JAX's tensor agrees with one made by mistake; PyTorch's rounding error is the same."""
    rounded = made
    if made is not None and in_torch is not None and in_torch is not truth and made.shape == np.shape(truth):
        rounded = (made + (in_torch.astype(np.float64) - truth)).astype(in_torch.dtype)
    return not search.judge.measure(name, in_jax, rounded, made).failed


def _submodule(search: "Search", name: str, program: Captured) -> Subject | None:
    """Make the subject of a submodule of both sides; a stack of layers is one subject."""
    calls = [call for path in search.names[name] for call in program.calls.get(path, [])]
    wanted = search.results(name)
    if not calls or not wanted:
        return None
    alone = search.run(search.inputs(name))
    parts = list({id(call[0]): call[0] for call in calls}.values())
    module = parts[0] if len(parts) == 1 else torch.nn.ModuleList(parts)
    bound = [(part, inspect.signature(part.forward).bind(*args, **kwargs)) for part, args, kwargs in calls]

    def compute(change: Change) -> list[Any]:
        results = []
        for part, arguments in bound:
            flat, rebuild = flatten(dict(arguments.arguments))
            given = rebuild({n: change(n, x.clone()) if isinstance(x, torch.Tensor) else x for n, x in flat.items()})
            new = inspect.BoundArguments(arguments.signature, given)  # type: ignore[arg-type]
            results.append(part(*new.args, **new.kwargs))
        return results

    def agrees(results: Any, dropped: bool = False) -> bool:
        made = list(zip(*([to_numpy(x) for _, x in torch_leaves(torch, result)] for result in results), strict=True))
        for part in wanted:
            in_jax, (in_torch, truth) = alone.trace.tensors.get(part, []), search.wanted[part]
            forms = (align(list(calls), in_jax) for calls in made)
            forms = (
                [_dropped(*pair) for pair in zip(in_jax, form or (), strict=False)] if dropped else form
                for form in forms
            )
            pairs = (list(zip(in_jax, form, in_torch, truth, strict=False)) for form in forms if form)
            if not any(pair and all(_agree(search, part, *arrays) for arrays in pair) for pair in pairs):
                return False
        return True

    first = flatten(dict(bound[0][1].arguments))[0]
    tensors = {name: x for name, x in first.items() if isinstance(x, torch.Tensor)}
    return Subject(search.names[name][0], module, tensors, compute, agrees)


# Gradients


def find_gradient_traps(search: "Search", deadline: float) -> tuple[str, ...]:
    """Find the mistake that explains why gradients disagree where the values agree."""
    program, base = _program(search, _capture(search)), Planted()
    program.run(base)
    modules = [] if program.module is None else list(program.module.named_modules())
    padded = [path for path, part in modules if getattr(part, "padding_idx", None) is not None]
    tests: list[tuple[str, Any]] = [
        (f"the row of the padding gets a gradient in JAX, in {path}", partial(_without_padding_row, path))
        for path in padded
    ]
    for words, plant in tests:
        if _gradients_agree(search, plant):
            return (words,)
    names = list(dict.fromkeys(site[1] for site in base.sites))
    everywhere: list[Site] = [("", name) for name in names]
    for places in (everywhere, [place for place in _places(list(base.sites)) if len(place) == 2]):
        stopped = []
        for kind, name in places:
            if time.process_time() > deadline:
                return ("(stopped: the time for trying known mistakes ran out)",)
            mode = Planted(Mistake("", {name: _detached}), () if places is everywhere else (kind, name))
            if _gradients_agree(search, mode.following):
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


def _gradients_agree(search: "Search", plant: Callable[[Any], AbstractContextManager[None]]) -> bool:
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
        _agree(search, name, in_jax[name], x, *(run.tensors.get(name) for run in search.runs[1:]))
        for name, x in made.items()
    )

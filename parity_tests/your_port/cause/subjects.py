"""What a known mistake is tried on: a submodule or the program of PyTorch, beside what JAX returned for the same."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.cause.mistakes import Call, Mistake, NotHereError
from parity_tests.your_port.cause.plain import PLAIN, is_packed
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.torch_side import run_torch
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import align, kind_of
from parity_tests.your_port.place.taps import torch_leaves

if TYPE_CHECKING:
    from parity_tests.your_port.place.bisect import Search

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
        self._frames = [""]
        """The path of each submodule that runs."""
        self._counts = Counter[tuple[str, str]]()
        """How often a submodule called a function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if in_place := name.endswith("_") and not name.startswith("_") and hasattr(torch.Tensor, name[:-1]):
            name, function = name[:-1], getattr(torch.Tensor, name[:-1])
        path = self._frames[-1]
        call = Call(function, args, kwargs or {}, self.memory, self.facts, kind_of(path))
        site = (call.kind, name, tuple(getattr(call.x, "shape", ())), self._counts[path, name])
        self._counts[path, name] += 1
        self.sites[site] = None
        result = self._result(call, site)
        return args[0].copy_(result) if in_place else result

    def _result(self, call: Call, site: Site) -> Any:
        wrong = None if self.mistake is None else self.mistake.wrong.get(site[1])
        if wrong is not None and self._frames[-1].startswith(self.within) and self._is_here(site, wrong):
            try:
                result = wrong(call)
                self.planted = True
                return result
            except NotHereError:
                pass
        if call.name not in PLAIN or is_packed(call.name, call.args):
            return call.right()
        with self:
            return PLAIN[call.name](*call.args, **call.options)

    def _is_here(self, site: Site, wrong: Any) -> bool:
        """Whether a place is meant. A mistake in two functions of one submodule needs both, at the same call."""
        wrongs = {} if self.mistake is None else self.mistake.wrong
        companion = len(self.site) > 1 and wrong is not wrongs[self.site[1]]
        mine, theirs = ((place[0], *place[3:]) if companion else place for place in (self.site, site))
        return theirs[: len(mine)] == mine

    def _enter(self, path: str, *_: Any) -> None:
        self._frames.append(path)

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


def explains(subject: Subject, run: Callable[[], Any]) -> bool:
    """Whether the results agree; a mistake with which PyTorch cannot run explains nothing."""
    try:
        return subject.agrees(run())
    except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
        return False


def subjects(search: "Search", place: str, within: str) -> Iterator[Subject]:
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


def program_of(search: "Search") -> Subject:
    """Make the subject of the whole program."""
    return _program(search, _capture(search))


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
            agree(search, name, in_jax[name], x, *(run.tensors.get(name) for run in search.runs[1:]))
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


def agree(search: "Search", name: str, in_jax: Any, made: Any, in_torch: Any, truth: Any) -> bool:
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
            if not any(pair and all(agree(search, part, *arrays) for arrays in pair) for pair in pairs):
                return False
        return True

    first = flatten(dict(bound[0][1].arguments))[0]
    tensors = {name: x for name, x in first.items() if isinstance(x, torch.Tensor)}
    return Subject(search.names[name][0], module, tensors, compute, agrees)

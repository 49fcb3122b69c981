"""Make a mistake in PyTorch on purpose: in a function that it calls, in weights, in what submodules get or return.

A mistake turns a program into a wrong one. So the same mistake is tried on one submodule, and confirmed on the whole.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.cause.plain import PLAIN, is_plain
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import kind_of

Program = Callable[[Any, Any], Any]
"""(the outermost module, inputs) -> results."""
Places = Sequence[str]
"""PyTorch's paths of the submodules in which a mistake is made; "" is the whole program."""
Site = tuple[Any, ...]
"""The kind of the submodule, the function, the shape of its argument and the number of the call; or less of it, from
the left: several places. Paths are relative to the place."""
Weights = Mapping[str, torch.Tensor]


class NotHereError(Exception):
    """The mistake does not apply to this call."""


def only_if(condition: Any) -> None:
    """Leave the call as it is unless the condition holds."""
    if not condition:
        raise NotHereError


@dataclass
class Call:
    """One call of a function of PyTorch."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    memory: dict[str, Any] = field(default_factory=dict)
    """What the wrong functions of one run remember."""
    facts: dict[str, str] = field(default_factory=dict)
    """What the words of the mistake need."""

    @property
    def name(self) -> str:
        """The function's name, without the `_` of one that works in place."""
        name = self.function.__name__
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter((*self.args, *self.options.values())))

    def right(self) -> Any:
        return self.function(*self.args, **self.options)

    def on(self, x: Any, *second: Any) -> Any:
        """Call the function with another first, or first and second, argument."""
        return self.function(x, *second, *self.args[1 + len(second) :], **self.options)

    def option(self, name: str, place: int, default: Any) -> Any:
        """Return an argument that may be given by name or by its place."""
        return self.options.get(name, self.args[place] if len(self.args) > place else default)

    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        try:
            bound = inspect.signature(self.function).bind(*self.args, **self.options)
        except ValueError:  # it is written in C
            raise NotHereError from None
        bound.apply_defaults()
        return bound.arguments

    def but(self, **changes: Any) -> Any:
        """Call the function with other options."""
        given = self.named()
        only_if(all(name in given and given[name] is not value for name, value in changes.items()))
        return self.function(**{**given, **changes})


@dataclass(frozen=True)
class Mistake:
    """A mistake in words, in which {…} are facts of the call; the wrong functions by the names of the right ones."""

    words: str
    wrong: Mapping[str, Callable[[Call], Any]]


class Planted(TorchFunctionMode):
    """Runs PyTorch with a mistake planted, in all calls inside of some places or in one; without any it notes them."""

    def __init__(
        self, places: Places, mistake: Mistake | None = None, site: Site = (), facts: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self.places, self.mistake, self.site, self.planted = places, mistake, site, False
        self.sites: dict[Site, None] = {}
        self.memory: dict[str, Any] = {}
        self.facts = {} if facts is None else facts
        self._frames = [""]
        """The path of each submodule that runs."""
        self._counts = Counter[tuple[str, str]]()
        """How often a submodule called a function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if in_place := name.endswith("_") and not name.startswith("_") and hasattr(torch.Tensor, name[:-1]):
            name, function = name[:-1], getattr(torch.Tensor, name[:-1])
        path, inside = self._frames[-1], self._inside(self._frames[-1])
        call = Call(function, args, kwargs or {}, self.memory, self.facts)
        site = (kind_of(inside or ""), name, tuple(getattr(call.x, "shape", ())), self._counts[path, name])
        self._counts[path, name] += 1
        if inside is not None:
            self.sites[site] = None
        result = self._result(call, site, inside is not None)
        return args[0].copy_(result) if in_place else result

    def _inside(self, path: str) -> str | None:
        """The path from the place; None if it is in no place."""
        for place in self.places:
            if f"{path}.".startswith(f"{place}." if place else ""):
                return path[len(place) :].lstrip(".")
        return None

    def _result(self, call: Call, site: Site, inside: bool) -> Any:
        wrong = None if self.mistake is None else self.mistake.wrong.get(site[1])
        if wrong is not None and inside and self._is_here(site, wrong):
            try:
                result = wrong(call)
                self.planted = True
                return result
            except NotHereError:
                pass
        if not is_plain(call.name, call.args):
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
                hooks.callback(part.register_forward_pre_hook(partial(self._enter, path), prepend=True).remove)
                hooks.callback(part.register_forward_hook(self._leave).remove)
            with self:
                yield


@dataclass(frozen=True)
class Hypothesis:
    """A mistake that can be made in some places of a program."""

    words: str
    """In words; {at} is the path of the place with a dot, and others in {…} are facts."""
    wrong: Callable[[Program, Places], Program]
    facts: dict[str, str] = field(default_factory=dict)

    def said(self, place: str) -> str:
        """The mistake in words, once it was tried."""
        words = self.words.replace("{at}", f"{place}." if place else "")
        for name, value in self.facts.items():
            words = words.replace(f"{{{name}}}", value)
        return words


def planted(mistake: Mistake, site: Site = (), within: str = "") -> Hypothesis:
    """Make a mistake of functions in all calls, or at a site; `within` is a path from the place."""
    facts: dict[str, str] = {}

    def wrong(program: Program, places: Places) -> Program:
        def run(module: Any, inputs: Any) -> Any:
            mode = Planted([join(place, within) for place in places], mistake, site, facts)
            with mode.following(module):
                results = program(module, inputs)
            only_if(mode.planted)
            return results

        return run

    where = within or (site[0] if site else "")
    return Hypothesis(mistake.words + (f", in {where}" if where else ""), wrong, facts)


Change = Callable[[Weights], Weights]
"""Tensors by name -> those that change."""


def passing(words: str, inputs: Change | None = None, results: Change | None = None) -> Hypothesis:
    """Make a mistake in what the places are given, or in what they return."""

    def changed(tree: Any, change: Change | None) -> Any:
        if change is None:
            return tree
        flat, rebuild = flatten(tree)
        new = change({name: x for name, x in flat.items() if isinstance(x, torch.Tensor)})
        return rebuild({**flat, **new})

    def before(part: Any, args: Any, kwargs: Any) -> Any:
        bound = inspect.signature(part.forward).bind(*args, **kwargs)
        bound.arguments.update(changed(dict(bound.arguments), inputs))
        return bound.args, bound.kwargs

    def wrong(program: Program, places: Places) -> Program:
        def run(module: Any, given: Any) -> Any:
            if places[0] == "":
                return changed(plain(program(module, changed(given, inputs))), results)
            with ExitStack() as hooks:
                for part in map(module.get_submodule, places):
                    hooks.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
                    hooks.callback(part.register_forward_hook(lambda _, __, result: changed(result, results)).remove)
                return program(module, given)

        return run

    return Hypothesis(words, wrong)


def replaced(words: str, parts: Sequence[str], function: Callable[..., Any]) -> Hypothesis:
    """Compute a function in the place of some submodules."""

    def wrong(program: Program, places: Places) -> Program:
        def run(module: Any, inputs: Any) -> Any:
            with ExitStack() as hooks:
                for part in (module.get_submodule(join(place, path)) for place in places for path in parts):
                    hooks.callback(part.register_forward_hook(lambda _, args, __: function(*args)).remove)
                return program(module, inputs)

        return run

    return Hypothesis(words, wrong)


class _Whole(torch.nn.Module):
    """A program that calls a module, as a module."""

    def __init__(self, program: Program, module: Any) -> None:
        super().__init__()
        self.program, self.module = program, module

    def forward(self, inputs: Any) -> Any:
        return self.program(self.module, inputs)


def weighted(words: str, change: Change) -> Hypothesis:
    """Compute with other weights, made of the right ones: a gradient still reaches these."""

    def wrong(program: Program, places: Places) -> Program:
        def run(module: Any, inputs: Any) -> Any:
            weights = {
                join(join("module", place), name): value
                for place in places
                for name, value in change(dict(module.get_submodule(place).named_parameters())).items()
            }
            return torch.func.functional_call(_Whole(program, module), weights, (inputs,))

        return run

    return Hypothesis(words, wrong)


def join(place: str, path: str) -> str:
    """Join two paths, of which each may be empty."""
    return ".".join(part for part in (place, path) if part)

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

from parity_tests.your_port.cause.plain import PLAIN
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import kind_of

Program = Callable[[Any, Any], Any]
"""(the outermost module, inputs) -> results."""
Places = Sequence[str]
"""PyTorch's paths of the submodules in which a mistake is made; "" is the whole program."""
Site = tuple[Any, ...]
"""The kind of the submodule, the function, the shape of its argument and the number of the call; or less of it, from
the left: several calls. Paths are relative to the place."""
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
    before: "Call | None" = None
    facts: dict[str, str] = field(default_factory=dict)
    """What the words of the mistake need."""
    result: Any = None
    """What the mistake made of it."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter((*self.args, *self.options.values())), None)

    @property
    def last(self) -> "Call":
        """The call that the same mistake changed before this one."""
        if self.before is None:
            raise NotHereError
        return self.before

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
        self.places, self.site, self.planted = places, site, False
        self.wrong = {} if mistake is None else mistake.wrong
        self.sites: dict[Site, None] = {}
        self.facts = {} if facts is None else facts
        self._last: Call | None = None
        self._frames = [""]
        """The path of each submodule that runs."""
        self._counts = Counter[tuple[str, str]]()
        """How often a submodule called a function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if in_place := name.endswith("_") and not name.startswith("_") and hasattr(torch.Tensor, name[:-1]):
            name, function = name[:-1], getattr(torch.Tensor, name[:-1])
        call = Call(function, args, kwargs or {}, self._last, self.facts)
        path, wrong = self._frames[-1], None
        inside = [path[len(place) :].lstrip(".") for place in self.places if _is_in(path, place)]
        if inside:
            site = (kind_of(inside[0]), name, tuple(getattr(call.x, "shape", ())), self._counts[path, name])
            self.sites[site] = None
            wrong = self.wrong.get(name) if site[: len(self.site)] == self.site else None
        self._counts[path, name] += 1
        result = self._result(call, wrong)
        return args[0].copy_(result) if in_place else result

    def _result(self, call: Call, wrong: Callable[[Call], Any] | None) -> Any:
        if wrong is not None:
            try:
                call.result = wrong(call)
                self.planted, self._last, call.before = True, call, None
                return call.result
            except NotHereError:
                pass
        if call.name not in PLAIN or call.x.ndim < 3:  # attention without a batch stays whole
            return call.right()
        with self:
            return PLAIN[call.name](*call.args, **call.options)

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


def _is_in(path: str, place: str) -> bool:
    return place == "" or f"{path}.".startswith(f"{place}.")


@dataclass(frozen=True)
class Hypothesis:
    """A mistake that can be made in some places of a program."""

    words: str
    """In words; {at} is the path of the place with a dot, and others in {…} are facts."""
    run: Callable[[Program, Places, Any, Any], Any]
    """(program, places, module, inputs) -> the results with the mistake."""
    facts: dict[str, str] = field(default_factory=dict)

    def wrong(self, program: Program, places: Places) -> Program:
        """Make a wrong program of the right one."""
        return partial(self.run, program, places)

    def said(self, place: str) -> str:
        """The mistake in words, once it was tried."""
        words = self.words.replace("{at}", f"{place}." if place else "")
        for name, value in self.facts.items():
            words = words.replace(f"{{{name}}}", value)
        return words


def planted(mistake: Mistake, site: Site = ()) -> Hypothesis:
    """Make a mistake of functions in all calls, or at a site."""
    facts: dict[str, str] = {}

    def run(program: Program, places: Places, module: Any, inputs: Any) -> Any:
        mode = Planted(places, mistake, site, facts)
        with mode.following(module):
            results = program(module, inputs)
        only_if(mode.planted)
        return results

    where = f", in {site[0]}" if site and site[0] else ""
    return Hypothesis(mistake.words + where, run, facts)


def around(words: str, wrong: Callable[..., Any], parts: Sequence[str] = ("",)) -> Hypothesis:
    """Compute wrong(right function, *its arguments) in the place of submodules; their paths begin at the places."""

    def run(program: Program, places: Places, module: Any, inputs: Any) -> Any:
        with ExitStack() as stack:
            for part in (module.get_submodule(join(place, path)) for place in places for path in parts):
                part.forward = partial(wrong, part.forward)
                stack.callback(delattr, part, "forward")
            return program(module, inputs)

    return Hypothesis(words, run)


Change = Callable[[Weights], Weights]
"""Tensors by name -> those that change."""


def passing(words: str, inputs: Change | None = None, results: Change | None = None) -> Hypothesis:
    """Make a mistake in what the places are given, or in what they return."""

    def wrong(right: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(right).bind(*args, **kwargs)
        bound.arguments.update(_changed(dict(bound.arguments), inputs))
        return _changed(right(*bound.args, **bound.kwargs), results)

    def run(program: Program, places: Places, module: Any, given: Any) -> Any:
        if places[0]:
            return around(words, wrong).run(program, places, module, given)
        return _changed(plain(program(module, _changed(given, inputs))), results)

    return Hypothesis(words, run)


def _changed(tree: Any, change: Change | None) -> Any:
    flat, rebuild = flatten(tree)
    return rebuild({**flat, **({} if change is None else change(tensors_in(tree)))})


def tensors_in(tree: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a tree by name."""
    return {name: x for name, x in flatten(tree)[0].items() if isinstance(x, torch.Tensor)}


class _Whole(torch.nn.Module):
    """A program that calls a module, as a module."""

    def __init__(self, program: Program, module: Any) -> None:
        super().__init__()
        self.forward, self.module = partial(program, module), module


def weighted(words: str, change: Change) -> Hypothesis:
    """Compute with other weights, made of the right ones: a gradient still reaches these."""

    def run(program: Program, places: Places, module: Any, inputs: Any) -> Any:
        weights = {
            join(join("module", place), name): value
            for place in places
            for name, value in change(dict(module.get_submodule(place).named_parameters())).items()
        }
        return torch.func.functional_call(_Whole(program, module), weights, (inputs,))

    return Hypothesis(words, run)


def join(place: str, path: str) -> str:
    """Join two paths, of which each may be empty."""
    return ".".join(part for part in (place, path) if part)

"""Make a mistake in PyTorch on purpose: in a function that it calls, in weights, in what submodules get or return.

A mistake turns a program into a wrong one. So the same mistake is tried on one submodule, and confirmed on the whole.
"""

import inspect
import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from parity_tests.your_port.measure.arrays import flatten, plain
from parity_tests.your_port.measure.attention_steps import IN_STEPS, is_taken_apart
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.users_code import folders_of, is_users
from parity_tests.your_port.place.pairing import kind_of
from parity_tests.your_port.weights import torch_program

Program = Callable[[Any, Any], Any]
"""(the outermost module, inputs) -> results."""
Places = Sequence[str]
"""PyTorch's paths of the submodules in which a mistake is made; "" is the whole program."""
Site = tuple[Any, ...]
"""The kind of the submodule, the function, the shape of its argument and the number of the call; or less of it, from
the left: several calls. Paths are relative to the place."""
Lines = tuple[str, ...]
"""The user's expressions and lines that make a call, from the innermost out: `model.py:42: a / 2`."""
Weights = Mapping[str, torch.Tensor]


SHOWN = 60
"""How many characters of a line are said at most."""


class NotHereError(Exception):
    """The mistake does not apply to this call."""


CANNOT_BE_MADE = (NotHereError, RuntimeError, ValueError, IndexError, TypeError)
"""What is raised where a mistake does not apply, or PyTorch does not run with it."""


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
        """The function's name, without the underscore of one that works in place."""
        name = getattr(self.function, "__name__", "")
        return name[:-1] if name.endswith("_") and name[0] != "_" and hasattr(torch.Tensor, name[:-1]) else name

    def out_of_place(self) -> "Call":
        """Return the same call of a function that leaves its argument as it is."""
        name = self.name
        return self if self.function.__name__ == name else replace(self, function=getattr(torch.Tensor, name))

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
        self, places: Places, mistake: Mistake | None = None, site: Site | str = (), facts: dict[str, str] | None = None
    ) -> None:
        """Plant it in all calls, in those of a site, or in those that a line of the user's code makes."""
        super().__init__()
        self.places, self.site = places, site
        self.wrong = {} if mistake is None else mistake.wrong
        self.sites: dict[Site, Lines] = {}
        self.changed: dict[str, None] = {}
        """The lines with the mistake."""
        self.facts = {} if facts is None else facts
        self._last: Call | None = None
        self._caller: FrameType | None = None
        self._frames = [""]
        """The path of each submodule that runs."""
        self._counts = Counter[tuple[str, str]]()
        """How often a submodule called a function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        call = Call(function, args, kwargs or {}, self._last, self.facts)
        name, path, lines, here = call.name, self._frames[-1], (), False
        wrong = self.wrong.get(name)
        around = [place for place in self.places if place == "" or f"{path}.".startswith(f"{place}.")]
        inside = [path[len(place) :].lstrip(".") for place in around]
        if inside and (wrong or not self.wrong):
            site = (kind_of(inside[0]), name, tuple(getattr(call.x, "shape", ())), self._counts[path, name])
            self.sites[site] = lines = lines_of_call(self._caller)
            here = wrong is Call.right or self.site in lines or site[: len(self.site)] == self.site
        self._counts[path, name] += 1
        return self._result(call, wrong if here else None, lines)

    def _result(self, call: Call, wrong: Callable[[Call], Any] | None, lines: Lines) -> Any:
        if wrong is not None:
            try:
                made = call.out_of_place()
                if wrong is Call.right:  # the call is only noted
                    made.result = call.right()
                else:
                    made.result = wrong(made) if made is call else call.x.copy_(wrong(made))
                    self.changed |= dict.fromkeys(lines[:1] or ("",))
                self._last, made.before = made, None
                return made.result
            except NotHereError:
                pass
        if not is_taken_apart(call.name, call.args, call.options):
            return call.right()
        with self:
            return IN_STEPS[call.name](*call.args, **call.options)

    def _enter(self, path: str, *_: Any) -> None:
        self._frames.append(path)

    def _leave(self, *_: Any) -> None:
        self._frames.pop()

    @contextmanager
    def following(self, module: torch.nn.Module | None) -> Iterator[None]:
        """Know in which submodule a function is called, while entered."""
        self._caller = sys._getframe(2)
        with ExitStack() as hooks:
            for path, part in [] if module is None else module.named_modules():
                hooks.callback(part.register_forward_pre_hook(partial(self._enter, path), prepend=True).remove)
                hooks.callback(part.register_forward_hook(self._leave).remove)
            with self:
                yield


LIBRARIES = folders_of("torch", "einops", "jaxtyping", "beartype")
"""What a user's line may call, and where nobody looks for a mistake."""


def lines_of_call(last: FrameType | None = None) -> Lines:
    """Find the user's code among the callers, up to the last; where a module of PyTorch's own calls, "" comes first."""
    frame: FrameType | None = sys._getframe(2)
    found, in_module = list[str](), None
    while frame is not None and frame is not last:
        code = frame.f_code
        if code.co_filename == torch_program.__file__:  # it calls the program: nothing further out is part of that
            break
        if code.co_name == "_call_impl":
            found = found or [""]
            in_module = len(found)
        if is_users(code.co_filename, LIBRARIES):
            found += _lines_at(code, frame.f_lasti)
        frame = frame.f_back
    return tuple(found[:in_module])  # what calls the outermost module is no part of it


@cache
def _lines_at(code: CodeType, instruction: int) -> Lines:
    """Return the expression that an instruction belongs to, and its whole line."""
    line, end, start, stop = next(islice(code.co_positions(), instruction // 2, None))
    text, where = linecache.getline(code.co_filename, line or 0), f"{Path(code.co_filename).name}:{line}: "
    expression = text.encode()[start : stop if end == line else None].decode()
    parts = (part.strip() for part in (expression, text))
    return tuple(where + (part if len(part) <= SHOWN else f"{part[: SHOWN - 2]} …") for part in parts)


@dataclass(frozen=True)
class Hypothesis:
    """A mistake that can be made in some places of a program."""

    words: str
    """In words; {at} is the path of the place with a dot, and others in {…} are facts."""
    run: Callable[[Program, Places, Any, Any], Any]
    """(program, places, module, inputs) -> the results with the mistake."""
    facts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, None] = field(default_factory=dict)
    """The lines of PyTorch's code that the last run changed, or the one that calls all of them."""
    innermost: dict[str, None] = field(default_factory=dict)
    """Those lines alone."""

    def wrong(self, program: Program, places: Places) -> Program:
        """Make a wrong program of the right one."""
        return partial(self.run, program, places)

    def made_in(self, case: Case, places: Places) -> Case:
        """Make the mistake in PyTorch's side of a case."""
        right = case.torch.call

        def call(module: Any, inputs: Any, options: Any) -> Any:
            return self.run(lambda *given: right(*given, options), places, module, inputs)

        return replace(case, torch=replace(case.torch, call=call))

    def said(self, place: str) -> str:
        """The mistake in words, once it was tried."""
        words = self.words.replace("{at}", f"{place}." if place else "")
        for name, value in self.facts.items():
            words = words.replace(f"{{{name}}}", value)
        return words

    @property
    def line(self) -> str:
        """The line of PyTorch's code that the last run changed, if it is one, or two."""
        lines = [line for line in self.lines if line]
        return " and ".join(lines) if len(lines) == len(self.lines) <= 2 else ""


def planted(mistake: Mistake, site: Site | str = ()) -> Hypothesis:
    """Make a mistake of functions in all calls, at a site, or in those that a line of the user's code makes."""
    facts: dict[str, str] = {}
    lines: dict[str, None] = {}
    innermost: dict[str, None] = {}

    def run(program: Program, places: Places, module: Any, inputs: Any) -> Any:
        facts.clear()
        mode = Planted(places, mistake, site, facts)
        with warnings.catch_warnings(action="ignore"), mode.following(module):  # of PyTorch about strange options
            results = program(module, inputs)
        only_if(mode.changed)
        lines.clear()
        lines.update({site: None} if isinstance(site, str) else mode.changed)
        innermost.clear()
        innermost.update(mode.changed)
        return results

    where = f", in {site[0]}" if isinstance(site, tuple) and site and site[0] else ""
    return Hypothesis(mistake.words + where, run, facts, lines, innermost)


def around(words: str, wrong: Callable[..., Any], parts: Sequence[str] = ("",)) -> Hypothesis:
    """Compute wrong(right function, *its arguments) instead of submodules; their paths begin at the places."""

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

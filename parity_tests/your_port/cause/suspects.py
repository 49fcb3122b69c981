"""What a known mistake is tried on: a submodule or the program of PyTorch, beside what JAX returned for the same."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import torch

from parity_tests.your_port.cause.planting import Hypothesis, Lines, Planted, Program, Site, tensors_in
from parity_tests.your_port.measure.arrays import flatten, is_mixed, plain, to_numpy
from parity_tests.your_port.measure.taps import torch_leaves
from parity_tests.your_port.place.bisect import Search
from parity_tests.your_port.place.pairing import align


@dataclass(frozen=True)
class Suspect:
    """A program of PyTorch, the places in it where mistakes are made, and the test whether results are those of JAX."""

    name: str
    """JAX's of the submodule whose results are tested; "" is the whole program."""
    places: tuple[str, ...]
    """PyTorch's paths: of the layers of a stack several."""
    root: torch.nn.Module | None
    program: Program
    given: Any
    """What the program is given, as a tree."""
    inputs: dict[str, torch.Tensor]
    """The tensors that the first place is given in its first call, by name."""
    results: dict[str, torch.Tensor]
    """Those that it returns."""
    agrees: Callable[[Any], bool]
    """Whether results of the program are JAX's."""
    differentiates: bool = False
    """Whether the module needs gradients to compute its results, such as forces of an energy."""
    guessed: frozenset[str] = frozenset()
    """The weights of the whole program whose place or layout in JAX is guessed."""

    def is_guessed(self, name: str) -> bool:
        """Whether that holds of a weight of the first place."""
        return ".".join(filter(None, (self.places[0], name))) in self.guessed

    @property
    def module(self) -> torch.nn.Module | None:
        """The submodule, or the first of a stack."""
        return None if self.root is None else self.root.get_submodule(self.places[0])

    def run(self, program: Program, steps: AbstractContextManager[Any] | None = None) -> Any:
        """Run a program instead of the right one, and note its steps; leave the module as it was, in any case."""
        with torch.set_grad_enabled(self.differentiates), _restoring(self.root):
            given = _copied(self.given)
            with steps or nullcontext():
                return program(self.root, given)

    def fits(self, hypothesis: Hypothesis | None = None, steps: AbstractContextManager[Any] | None = None) -> bool:
        """Whether the results are JAX's; a mistake with which PyTorch cannot run explains nothing.

        What is computed may be noted as `steps`.
        """
        try:
            program = hypothesis.wrong(self.program, self.places) if hypothesis else self.program
            return self.agrees(self.run(program, steps))
        except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
            return False

    @cached_property
    def sites(self) -> dict[Site, Lines]:
        """The calls of functions inside of the places, and the user's lines that make them."""
        mode = Planted(self.places)

        def noted(module: Any, inputs: Any) -> Any:
            with mode.following(module):
                return self.program(module, inputs)

        self.run(noted)
        return mode.sites


def suspects(search: Search, place: Sequence[str] = (), within: str = "") -> Iterator[Suspect]:
    """Yield the submodule at the end of a place, those around it, and the program.

    Where JAX has no submodules, `within` is the path of PyTorch's.
    """
    captured = _capture(search)
    for name in reversed(place):
        if search.results(name) and any(path in captured.calls for path in search.names[name]):
            yield _submodule(search, name, captured)
    for path in dict.fromkeys(("", "" if place else within)):
        if path in captured.calls:
            yield _program(search, captured, path)


@dataclass
class _Captured:
    """PyTorch's program with its weights in place, as the case calls it."""

    module: Any = None
    inputs: Any = None
    options: Any = None
    differentiates: bool = False
    calls: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    """Path of a submodule -> itself, the arguments and the results of each call."""


def _capture(search: Search) -> _Captured:
    """Run PyTorch in float64 once more, to have hold of its modules and of what they are given."""
    draw, found = search.draw, _Captured()

    def call(module: Any, inputs: Any, options: Any) -> Any:
        found.module, found.inputs, found.options = module, _copied(inputs), options
        with ExitStack() as stack:
            for path, part in [] if module is None else module.named_modules():
                note = lambda part, *given, path=path: found.calls[path].append((part, *_copied(given)))  # noqa: E731
                stack.callback(part.register_forward_hook(note, with_kwargs=True).remove)
            stack.enter_context(_restoring(module))
            results = _copied(plain(draw.case.torch.call(module, inputs, options)))
        found.calls[""] = [(None, (), {}, results)]
        return results

    captured = draw.beside(replace(draw.case, torch=replace(draw.case.torch, call=call)))
    try:
        with torch.no_grad():
            captured.in_torch()
    except RuntimeError:  # of autograd, in a module that differentiates
        found.differentiates = True
        found.calls.clear()
        captured.in_torch()
    return found


@contextmanager
def _restoring(module: torch.nn.Module | None) -> Iterator[None]:
    """Put buffers back: a training step changes them."""
    buffers = [] if module is None else [(x, x.clone()) for x in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _copied(tree: Any) -> Any:
    """Copy the tensors of a tree."""
    copy = lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x  # noqa: E731
    return jax.tree.map(copy, tree, is_leaf=is_mixed)


def _named(call: tuple[Any, ...]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors that a call is given, by name, and those that it returns."""
    part, args, kwargs, results = call
    return tensors_in(dict(inspect.signature(part.forward).bind(*args, **kwargs).arguments)), tensors_in(results)


def _program(search: Search, captured: _Captured, place: str) -> Suspect:
    def compute(module: Any, inputs: Any) -> Any:
        return search.draw.case.torch.call(module, inputs, captured.options)

    def agrees(results: Any) -> bool:
        flat, in_jax = flatten(plain(results), search.draw.case.outputs)[0], search.runs.jax.outputs
        made = {name: None if x is None else to_numpy(x) for name, x in flat.items()}
        return made.keys() == in_jax.keys() and all(
            _agree(search, name, in_jax[name], x, search.runs.torch.outputs.get(name)) for name, x in made.items()
        )

    call = captured.calls[place][0]
    inputs, results = _named(call) if place else (tensors_in(captured.inputs), tensors_in(call[-1]))
    of_program = captured.module, compute, captured.inputs, inputs, results, agrees, captured.differentiates
    return Suspect("", (place,), *of_program, search.draw.case.jax.guessed)


def _submodule(search: Search, name: str, captured: _Captured) -> Suspect:
    """Make the suspect of a submodule of both sides; a stack of layers is one suspect."""
    calls = [call for path in search.names[name] for call in captured.calls.get(path, [])]
    alone = search.run(search.inputs(name))

    def compute(_: Any, given: Any) -> list[Any]:
        return [part(*args, **kwargs) for (part, *_), (args, kwargs) in zip(calls, given, strict=True)]

    def agrees(results: Any) -> bool:
        made = list(zip(*([to_numpy(x) for x in torch_leaves(result).values()] for result in results), strict=True))
        for part in search.results(name):
            in_jax = [x.value for x in alone.trace if x.name == part]
            in_torch = [x.in_torch for x in search.partners[part]]
            forms = (align(list(results), in_jax) for results in made)
            pairs = (list(zip(in_jax, form, in_torch, strict=False)) for form in forms if form)
            if not any(pair and all(_agree(search, part, *arrays) for arrays in pair) for pair in pairs):
                return False
        return True

    places, given = tuple(search.names[name]), [(args, kwargs) for _, args, kwargs, _ in calls]
    named = _named(calls[0])
    of_module = captured.module, compute, given, *named, agrees, captured.differentiates
    return Suspect(name, places, *of_module, search.draw.case.jax.guessed)


def _agree(search: Search, name: str, in_jax: Any, made: Any, in_torch: Any) -> bool:
    """Whether JAX's tensor agrees with one made by mistake, in the dtype of PyTorch's."""
    if np.iscomplexobj(made) and not np.iscomplexobj(in_jax):
        return False  # without the mistake an absolute value was taken, or a part
    with np.errstate(over="ignore"):  # of the lowest number of float64, which a mask may be
        rounded = made if made is None or in_torch is None else made.astype(in_torch.dtype)
    return tells_something(made) and not search.judge.measure(name, in_jax, rounded, made).failed


def tells_something(x: np.ndarray | None) -> bool:
    """Whether a tensor has a finite number: where all are NaN, many mistakes have the same result."""
    return x is None or x.size == 0 or bool(np.isfinite(x.astype(np.float64)).any())

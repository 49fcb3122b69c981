"""What a known mistake is tried on: a submodule or the program of PyTorch, beside what JAX returned for the same."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from parity_tests.your_port.cause.planting import Hypothesis, Places, Planted, Program, Site
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.torch_side import run_torch
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.place.pairing import align
from parity_tests.your_port.place.taps import torch_leaves

if TYPE_CHECKING:
    from parity_tests.your_port.place.bisect import Search


@dataclass(frozen=True)
class Subject:
    """A program or submodule of PyTorch with its inputs, and the test whether results are those of JAX."""

    name: str
    """JAX's of the submodule; "" is the whole program."""
    places: Places
    """PyTorch's paths: of the layers of a stack several."""
    root: torch.nn.Module | None
    program: Program
    given: Any
    """What the program is given, as a tree."""
    inputs: dict[str, torch.Tensor]
    """The tensors that it is given, or that the submodule is given in its first call, by name."""
    agrees: Callable[[Any], bool]
    """Whether results are JAX's."""
    within: str = ""
    """The submodule of the program in which the two part, if that is known without JAX's submodules."""

    @property
    def module(self) -> torch.nn.Module | None:
        """The submodule, or the first of a stack."""
        return None if self.root is None else self.root.get_submodule(self.places[0])

    def run(self, hypothesis: Hypothesis | None = None) -> Any:
        """Compute the results, with a mistake; leave the module as it was."""
        program = self.program if hypothesis is None else hypothesis.wrong(self.program, self.places)
        with torch.no_grad(), _restoring(self.root):
            return program(self.root, copied(self.given))

    def fits(self, hypothesis: Hypothesis | None = None) -> bool:
        """Whether the results are JAX's; a mistake with which PyTorch cannot run explains nothing."""
        try:
            return self.agrees(self.run(hypothesis))
        except Exception:  # whatever PyTorch raises for a wrong shape, a wrong option, an index out of range
            return False

    def sites(self) -> list[Site]:
        """The calls of functions inside of the places."""
        mode = Planted(self.places)

        def noted(module: Any, inputs: Any) -> Any:
            with mode.following(module):
                return self.program(module, inputs)

        self.run(Hypothesis("", lambda program, places: noted))
        return list(mode.sites)


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

    module: Any = None
    inputs: Any = None
    options: Any = None
    calls: dict[str, list[tuple[Any, Any, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Path of a submodule -> itself, and the arguments of each call."""


def _capture(search: "Search") -> Captured:
    """Run PyTorch in float64 once more, to have hold of its modules and of what they are given."""
    side, found = search.case.torch, Captured()

    def call(module: Any, inputs: Any, options: Any) -> Any:
        found.module, found.inputs, found.options = module, copied(inputs), options
        with ExitStack() as hooks:
            for path, part in [] if module is None else module.named_modules():
                note = lambda part, *given, path=path: found.calls[path].append((part, *copied(given)))  # noqa: E731
                hooks.callback(part.register_forward_pre_hook(note, with_kwargs=True).remove)
            with _restoring(module):
                return copied(plain(side.call(module, inputs, options)))

    case = replace(search.case, torch=replace(side, call=call))
    with torch.no_grad():
        run_torch(case, search.variant, search.numbers, "float64")
    return found


@contextmanager
def _restoring(module: torch.nn.Module | None) -> Iterator[None]:
    """Put buffers back: a training step changes them."""
    buffers = [] if module is None else [(x, x.clone()) for x in module.buffers()]
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)


def copied(tree: Any) -> Any:
    """Copy the tensors of a tree."""
    flat, rebuild = flatten({"": tree})
    return rebuild({name: x.detach().clone() if isinstance(x, torch.Tensor) else x for name, x in flat.items()})[""]


def _tensors(tree: Any) -> dict[str, torch.Tensor]:
    return {name: x for name, x in flatten(tree)[0].items() if isinstance(x, torch.Tensor)}


def _program(search: "Search", captured: Captured) -> Subject:
    def compute(module: Any, inputs: Any) -> Any:
        return search.case.torch.call(module, inputs, captured.options)

    def agrees(results: Any) -> bool:
        flat = flatten(plain(results), search.case.outputs)[0]
        outputs = {name: None if x is None else to_numpy(x) for name, x in flat.items()}
        in_jax = search.runs.jax.outputs()
        return outputs.keys() == in_jax.keys() and all(
            _agree(search, name, in_jax[name], x, *(run.tensors.get(name) for run in search.runs[1:]))
            for name, x in outputs.items()
        )

    return Subject("", ("",), captured.module, compute, captured.inputs, _tensors(captured.inputs), agrees)


def _agree(search: "Search", name: str, in_jax: Any, made: Any, in_torch: Any, truth: Any) -> bool:
    """Whether JAX's tensor agrees with one made by mistake; PyTorch's rounding error is the same."""
    rounded = made
    if made is not None and in_torch is not None and in_torch is not truth and made.shape == np.shape(truth):
        with np.errstate(over="ignore"):  # of the lowest number of float64, which a mask may be
            rounded = (made + (in_torch.astype(np.float64) - truth)).astype(in_torch.dtype)
    return tells_something(made) and not search.judge.measure(name, in_jax, rounded, made).failed


def tells_something(x: np.ndarray | None) -> bool:
    """Whether a tensor has a finite number: where all are NaN, many mistakes have the same result."""
    return x is None or x.size == 0 or bool(np.isfinite(x.astype(np.float64)).any())


def _submodule(search: "Search", name: str, captured: Captured) -> Subject | None:
    """Make the subject of a submodule of both sides; a stack of layers is one subject."""
    calls = [call for path in search.names[name] for call in captured.calls.get(path, [])]
    wanted = search.results(name)
    if not calls or not wanted:
        return None
    alone = search.run(search.inputs(name))
    parts = [part for part, _, _ in calls]
    first = inspect.signature(parts[0].forward).bind(*calls[0][1], **calls[0][2]).arguments

    def compute(_: Any, given: Any) -> list[Any]:
        return [part(*args, **kwargs) for part, (args, kwargs) in zip(parts, given, strict=True)]

    def agrees(results: Any) -> bool:
        made = list(zip(*([to_numpy(x) for _, x in torch_leaves(torch, result)] for result in results), strict=True))
        for part in wanted:
            in_jax, (in_torch, truth) = alone.trace.tensors.get(part, []), search.wanted[part]
            forms = (align(list(results), in_jax) for results in made)
            pairs = (list(zip(in_jax, form, in_torch, truth, strict=False)) for form in forms if form)
            if not any(pair and all(_agree(search, part, *arrays) for arrays in pair) for pair in pairs):
                return False
        return True

    given = [(args, kwargs) for _, args, kwargs in calls]
    return Subject(name, tuple(search.names[name]), captured.module, compute, given, _tensors(dict(first)), agrees)

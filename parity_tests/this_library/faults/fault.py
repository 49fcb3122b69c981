"""A fault planted on purpose: a comparison that does not notice it proves nothing."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pytest

from parity_tests.this_library.cases import find_case
from parity_tests.this_library.trainings import TRAININGS, free_running
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.jax_side import forget_programs
from parity_tests.your_port.measure.judge import Measurement

Make = Callable[[Any], Any]
"""What is there -> what takes its place."""


@dataclass(frozen=True)
class Fault:
    """A mistake instead of an attribute of jax_attn, and the case that must notice it in float64."""

    name: str
    case: str
    """A case of the registry, or `training`."""
    make: Make
    at: str = ""
    """`module:attribute` in jax_attn; by default its own attribute with the case's name."""
    variant: str = ""
    """The variant that shows it, where the first does not."""
    in_gradients: bool = False
    """Whether the gradients alone show it."""
    slow: bool = False
    """Whether the quick run leaves it out."""

    @property
    def comparison(self) -> tuple[str, str]:
        """What must fail with the fault and pass without it."""
        return self.case, find_case(self.case).find_variant(self.variant).name

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it, and take it out again."""
        module, _, path = self.at.partition(":")
        *owners, attribute = (path or self.case).split(".")
        owner = reduce(getattr, owners, importlib.import_module(".".join(filter(None, ("jax_attn", module)))))
        forget_programs()  # those that were compiled without it
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, attribute, self.make(getattr(owner, attribute)))
                yield
        finally:
            forget_programs()

    def is_caught(self) -> bool:
        """Whether the case fails while the fault is there, by its outputs or, which takes longer, by its gradients."""
        with self.planted():
            if self.case == "training":
                return any(free_running(training, 4).failed for training in TRAININGS)
            return bool((not self.in_gradients and self.failures(gradients=False)) or self.failures())

    def failures(self, gradients: bool = True) -> list[Measurement]:
        """Compare, with the fault if it is planted; return what differs."""
        case = find_case(self.case)
        variant = case.find_variant(self.variant)
        if not gradients:
            case = _frozen(case, variant)
        return [measurement for measurement in Draw(case, variant, "float64").measure_draws() if measurement.failed]


def _frozen(case: Case, variant: Variant) -> Case:
    """Take every input and weight for a constant, so that no gradient is computed."""
    build = case.torch.build

    def frozen(*arguments: Any) -> Any:
        assert build is not None
        return build(*arguments).requires_grad_(False)

    side = replace(case.torch, build=build and frozen)
    return replace(case, torch=side, constants=frozenset(variant.inputs))


# Ways to change a function


def instead(function: Any) -> Make:
    """Put another function in its place."""
    return lambda _: function


unchanged = instead(lambda x, *rest: x)
"""Leave out what is done to the first argument."""


def around(wrong: Any) -> Make:
    """Put wrong(right function, *arguments) in its place."""
    return lambda right: lambda *arguments, **options: wrong(right, *arguments, **options)


def result(change: Callable[[Any], Any]) -> Make:
    """Change the result."""
    return around(lambda right, *arguments, **options: change(right(*arguments, **options)))


def given(**wrong: Any) -> Make:
    """Change arguments, by name: a function of the right value (unless that is None), or the wrong value itself."""

    def change(right: Any, *arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(right).bind(*arguments, **options)
        bound.apply_defaults()
        for name, new in wrong.items():
            value = bound.arguments[name]
            bound.arguments[name] = new(value) if callable(new) and value is not None else new
        return right(*bound.args, **bound.kwargs)

    return around(change)

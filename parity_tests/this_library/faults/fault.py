"""A fault planted on purpose: a comparison that does not notice it proves nothing."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import jax
import numpy as np
import pytest

from parity_tests.this_library.cases import find_case
from parity_tests.this_library.trainings import TRAININGS, free_running
from parity_tests.your_port.measure.comparison import Measurement, compare_variant
from parity_tests.your_port.measure.jax_side import without_jit

PACKAGES = {"JAX": "jax_attn", "PyTorch": "torch_ref"}
Make = Callable[[Any], Any]
"""What is there -> what takes its place."""


@dataclass(frozen=True)
class Fault:
    """A mistake in the place of an attribute, and the case that must notice it."""

    name: str
    case: str
    """A case of the registry, or `training`."""
    make: Make
    at: str = ""
    """`module:attribute` in the package of the side; by default the package's own attribute with the case's name."""
    variant: str = ""
    """The variant that shows it, where the first does not."""
    side: Literal["JAX", "PyTorch"] = "JAX"
    """The framework in whose code it is planted."""
    dtype: str = "float64"
    """The dtype in which it shows."""
    jit: bool = False
    """Whether it shows only in a compiled program. The others run operation by operation, which is quicker."""

    @property
    def comparison(self) -> tuple[str, str, str, bool]:
        """What must fail with the fault and pass without it."""
        return self.case, find_case(self.case).find_variant(self.variant).name, self.dtype, self.jit

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it, and take it out again."""
        module, _, path = self.at.partition(":")
        *owners, attribute = (path or self.case).split(".")
        package = ".".join(filter(None, (PACKAGES[self.side], module)))
        owner = reduce(getattr, owners, importlib.import_module(package))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, attribute, self.make(getattr(owner, attribute)))
            yield

    def is_caught(self) -> bool:
        """Whether the case fails while the fault is there."""
        with self.planted():
            if self.case == "training":
                return any(free_running(training, 4).failed for training in TRAININGS)
            return bool(self.failures())

    def failures(self) -> list[Measurement]:
        """Compare, with the fault if it is planted and without it otherwise; return what differs."""
        case = find_case(self.case)
        transform = (lambda program: jax.jit(program)) if self.jit else without_jit  # a new one: none is compiled yet
        compared = compare_variant(case, case.find_variant(self.variant), self.dtype, transform)
        return [measurement for measurement in compared if measurement.failed]


# Ways to change a function, the same in either framework


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


def with_arguments(change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Make:
    """Replace the arguments, by name, that change(arguments) returns."""

    def wrong(right: Any, *arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(right).bind(*arguments, **options)
        bound.apply_defaults()
        bound.arguments |= change(bound.arguments)
        return right(*bound.args, **bound.kwargs)

    return around(wrong)


def given(**wrong: Any) -> Make:
    """Change arguments, by name: a function of the right value (unless that is None), or the wrong value itself."""

    def new(right: Any, wrong: Any) -> Any:
        return wrong if not callable(wrong) or right is None else wrong(right)

    return with_arguments(lambda given: {name: new(given[name], change) for name, change in wrong.items()})


def exchanged(first: str, second: str) -> Make:
    """Exchange two arguments of the same shape; of different shapes they stay."""

    def exchange(given: Mapping[str, Any]) -> Mapping[str, Any]:
        fit = given[first].shape == given[second].shape
        return {first: given[second], second: given[first]} if fit else {}

    return with_arguments(exchange)


def in_order(*order: int) -> Callable[[Any], Any]:
    """Take the parts of the last axis, such as a recurrent step's gates, in another order."""
    return lambda x: x[..., np.arange(x.shape[-1]).reshape(len(order), -1)[list(order)].ravel()]

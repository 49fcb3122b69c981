"""A fault planted on purpose: a comparison that does not notice it proves nothing."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import jax
import numpy as np
import pytest

from parity_tests.this_library.cases import find_case
from parity_tests.this_library.trainings import TRAININGS, free_running
from parity_tests.your_port.measure.comparison import compare_variant
from parity_tests.your_port.measure.jax_side import forget_programs, without_jit

PACKAGES = {"JAX": "jax_attn", "PyTorch": "torch_ref"}
Make = Callable[[Any], Any]
"""What is there -> what takes its place."""


@dataclass(frozen=True)
class Fault:
    """A mistake in the place of an attribute, and the case that must notice it."""

    name: str
    case: str
    """A case of the registry, or `training`."""
    target: str
    """`module:attribute` in the package of the side; an empty module is the package itself."""
    make: Make
    variant: str = ""
    """The variant that shows it, where the first does not."""
    dtype: str = "float64"
    """The dtype in which it shows."""
    side: Literal["JAX", "PyTorch"] = "JAX"
    """The framework in whose code it is planted."""
    jit: bool = False
    """Whether it shows only in a compiled program. The others run operation by operation, which is quicker."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it, and take it out again."""
        module, _, path = self.target.partition(":")
        *owners, attribute = path.split(".")
        package = ".".join(filter(None, (PACKAGES[self.side], module)))
        owner = reduce(getattr, owners, importlib.import_module(package))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, attribute, self.make(getattr(owner, attribute)))
            yield

    def is_caught(self) -> bool:
        """Whether the case fails while the fault is there."""
        if self.case == "training":
            with self.planted():
                return any(free_running(training, 4).failed for training in TRAININGS)
        if self.jit:
            forget_programs()  # they were compiled without the fault
        try:
            with self.planted():
                return self.fails()
        finally:
            if self.jit:
                forget_programs()

    def fails(self) -> bool:
        """Whether the comparison fails."""
        case = find_case(self.case)
        run = compare_variant(case, case.find_variant(self.variant), self.dtype, jax.jit if self.jit else without_jit)
        return any(measurement.failed for measurement in run)


# Ways to change a function, the same in either framework


def instead(function: Any) -> Make:
    """Put another function in its place."""
    return lambda _: function


def around(wrong: Any) -> Make:
    """Put wrong(right function, *arguments) in its place."""
    return lambda right: lambda *arguments, **options: wrong(right, *arguments, **options)


def after(change: Callable[[Any], Any]) -> Make:
    """Change the result."""
    return lambda function: lambda *arguments, **options: change(function(*arguments, **options))


def with_options(**wrong: Any) -> Make:
    """Use these keywords in the place of those given."""
    return lambda function: lambda *arguments, **options: function(*arguments, **{**options, **wrong})


inverted = after(lambda mask: None if mask is None else ~mask)


@around
def bias_dropped(step: Any, carry: Any, projected: Any, weight: Any, bias: Any = None) -> Any:
    """Leave out a recurrent step's hidden bias."""
    return step(carry, projected, weight, None)


@around
def bias_outside_reset(step: Any, h: Any, projected: Any, weight: Any, bias: Any = None) -> Any:
    """Add a GRU's b_hn to the input's part: right for every gate but this one."""
    return step(h, projected if bias is None else projected + bias, weight, None)


@around
def labels_shifted(loss: Any, logits: Any, labels: Any, *rest: Any, **options: Any) -> Any:
    return loss(logits, labels[..., np.arange(labels.shape[-1]) - 1], *rest, **options)

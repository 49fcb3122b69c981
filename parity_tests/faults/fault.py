"""A fault planted on purpose: a comparison that misses it proves nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from parity_tests.cases import CASES
from parity_tests.compare import compare_variant
from parity_tests.jax_side import forget_programs


@dataclass(frozen=True)
class Fault:
    """`make(what was there)` in the place of `target.attribute`, and the case that has to notice."""

    name: str
    case: str
    target: Any
    attribute: str
    make: Callable[[Any], Any]
    dtype: str = "float64"
    """The dtype in which it shows."""
    side: Literal["JAX", "PyTorch"] = "JAX"
    """Which framework's code it is planted in."""
    variant: str = ""
    """The variant that shows it, where those before it do not and would all be compiled in vain; by default any."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.target, self.attribute, self.make(getattr(self.target, self.attribute)))

    def is_caught(self) -> bool:
        """Whether the case fails while the fault is there: one variant after the other, until one sees it."""
        case = next(case for case in CASES if case.name == self.case)
        variants = [
            variant for variant in case.variants if self.dtype in variant.dtypes and self.variant in ("", variant.name)
        ]
        if self.side == "JAX":
            forget_programs()  # what was compiled before is without the fault
        try:
            with pytest.MonkeyPatch.context() as patch:
                self.plant(patch)
                runs = (compare_variant(case, variant, self.dtype) for variant in variants)
                return any(measurement.failed for run in runs for measurement in run)
        finally:
            if self.side == "JAX":
                forget_programs()


# Mistakes that are the same in either framework


def inverted(attention_mask: Any) -> Any:
    def wrong(*arguments: Any) -> Any:
        mask = attention_mask(*arguments)
        return None if mask is None else ~mask

    return wrong


def after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose result is changed."""

    def make(function: Any) -> Any:
        return lambda *arguments, **options: change(function(*arguments, **options))

    return make


def with_options(**wrong: Any) -> Callable[[Any], Any]:
    """A function that is called with options other than those given."""

    def make(function: Any) -> Any:
        return lambda *arguments, **options: function(*arguments, **{**options, **wrong})

    return make

"""The records of a comparison: a case, its variants of inputs, and its two sides. They import no torch."""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

RUN_DTYPE = "the dtype of the run"
"""As the value of an option: each side replaces it by its own dtype object."""

DTYPES = ("float64", "float32", "bfloat16")

AFTER_A_STEP = " after a step"
"""The end of the name of a running statistic among the results of a step of training. It has no gradient."""


@dataclass(frozen=True)
class Variant:
    """One set of inputs of a case."""

    name: str
    inputs: Mapping[str, Any]
    """Arguments by name: NumPy arrays (floats in float64, rounded to a run's dtype later), None, or tuples of those."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that are no arrays: keywords of a function, or of a module's constructor."""
    weights: Mapping[str, np.ndarray] | None = None
    """Given parameters and buffers by PyTorch name, such as a checkpoint's, instead of drawn ones."""
    dtypes: tuple[str, ...] = DTYPES
    """The dtypes in which it runs."""
    slow: bool = False
    """Whether the quick run of the tests leaves it out, since shorter variants share its code."""


@dataclass(frozen=True)
class TorchSide:
    """The PyTorch side of a case; `torch_function` and `torch_module` make one."""

    call: Callable[..., Any]
    """(module, inputs, options) -> outputs; the module is None where there is none."""
    build: Callable[..., Any] | None = None
    """(options, inputs) -> an nn.Module. Its weights are drawn by name and given to both sides."""
    golden: Any = None
    """Instead of PyTorch's runs: a record of them (`golden`), or a JAX module's (`weights.jax_reference`)."""


@dataclass(frozen=True)
class JaxSide:
    """The JAX side of a case; `jax_function` makes one."""

    call: Callable[..., Any]
    """(weights and buffers by PyTorch name, inputs, options) -> outputs; runs under jit, differentiable."""
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The path of a JAX submodule -> PyTorch's path of the submodule with the same weights."""
    guessed: frozenset[str] = field(default=frozenset(), compare=False)
    """PyTorch's weights whose place or layout in JAX is guessed."""

    def prepare(self, fixed: Mapping[str, np.ndarray]) -> Any:
        """Make JAX's arrays of those that have no gradient, before a run."""
        return jax.device_put(fixed)

    def run(self, weights: Any, prepared: Any, inputs: Any, options: Any) -> Any:
        """Call it with the weights that have a gradient, and those that are prepared."""
        return self.call({**prepared, **weights}, inputs, options)


@dataclass(frozen=True)
class Case:
    """Two programs that must be the same, one in PyTorch and one in JAX, and the inputs on which both run.

    Every weight is drawn under its PyTorch name, and the JAX side puts it in its place. So a gradient has the same
    name on both sides, and a weight that a port forgets shows up with a gradient of zero.
    """

    name: str
    variants: tuple[Variant, ...]
    torch: TorchSide
    jax: JaxSide
    outputs: tuple[str, ...] = ()
    """Names of the results where they are a tuple."""
    constants: frozenset[str] = frozenset({"valid_lens"})
    """Inputs, or parts of them such as `masks.0`, that are not differentiated even if they are floating."""
    factor: float = 8.0
    """c in the bound c u + 2 e below float64; it is c u + 4 e where PyTorch's own error e is more than c u."""
    reason: str = ""
    """Why `factor` is not 8."""
    bound: float | None = None
    """In float64, instead of 1e-12."""
    inside: str = ""
    """float32: a part is computed in float32 whatever comes in, so in float64 too the rule of float32 holds."""
    layouts: Mapping[str, Any] = field(default_factory=dict)
    """Patterns of names -> the layout of these tensors in JAX, such as NHWC."""
    slow_dtypes: tuple[str, ...] = ()
    """Dtypes that `python -m parity_tests` leaves out without --slow."""

    def find_variant(self, name: str) -> Variant:
        """Return the variant with this name; "" means the first."""
        return next(variant for variant in self.variants if name in ("", variant.name))


def random_for(*names: str) -> np.random.Generator:
    """Make a generator seeded by names, so that a case's numbers do not depend on the cases before it."""
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def make_weights(case: Case, variant: Variant, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Draw parameters by PyTorch name, none of them zero: a missing bias of zeros would go unnoticed."""
    weights = {}
    for name, shape in shapes.items():
        scale = 0.5 if len(shape) < 2 else 0.6 * (8 / max(1, math.prod(shape[1:]))) ** 0.5
        draw = random_for(case.name, variant.name, name).normal(size=shape)
        weights[name] = draw * scale
    return weights

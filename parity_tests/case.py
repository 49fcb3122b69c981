"""The records of the registry. They know no framework: a reader of the registry decides what to run."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

RUN_DTYPE = "the dtype of the run"
"""As the value of an option: each side puts its own name of that dtype in its place."""


DTYPES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True)
class Variant:
    """One set of inputs of a case."""

    name: str
    inputs: Mapping[str, Any]
    """Arguments by name: NumPy arrays (floats in float64, rounded to a run's dtype later), None, or tuples of those."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What is no array: keywords of a function, or of a module's constructor."""
    weight_scales: Mapping[str, float] = field(default_factory=dict)
    """Factors of single parameters, by PyTorch name; the others stay as drawn."""
    vanishing: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are zero but for rounding -> why; a relative error of rounding errors says nothing."""
    dtypes: tuple[str, ...] = DTYPES
    """The dtypes it is run in."""
    factor: float | None = None
    """c for this variant, where it is another than the case's; the case's `reason` says why."""


@dataclass(frozen=True)
class TorchSide:
    """The PyTorch side of a case. `parity_tests.torch_side` makes one of a function or of a module."""

    call: Callable[..., Any]
    """(module, inputs, options) -> outputs; the module is None where there is none."""
    build: Callable[..., Any] | None = None
    """(options, inputs) -> an nn.Module, whose weights are drawn by name and given to both sides."""


@dataclass(frozen=True)
class JaxSide:
    """The JAX side of a case. `parity_tests.jax_side` makes one of a function or of a Flax module."""

    call: Callable[..., Any]
    """(weights by PyTorch name, inputs, options) -> outputs, under jit and differentiable in weights and inputs."""


@dataclass(frozen=True)
class Case:
    """Two programs that have to be the same, one in PyTorch and one in JAX, and the inputs on which both are run.

    Every weight is drawn under its PyTorch name, and the JAX side puts it where it belongs: so a gradient has the same
    name on both sides, and a weight that a port forgets is seen to have none.
    """

    name: str
    variants: tuple[Variant, ...]
    torch: TorchSide
    jax: JaxSide
    outputs: tuple[str, ...] = ()
    """Names of the results where they are a tuple."""
    constants: frozenset[str] = frozenset({"valid_lens"})
    """Inputs that are not differentiated even if they are floating."""
    factor: float = 8.0
    """c in the bound 2 e_torch + c u below float64."""
    reason: str = ""
    """Why `factor` is another than 8."""
    slow_dtypes: tuple[str, ...] = ()
    """Dtypes that the quick run of the tests leaves out."""

    @property
    def public_name(self) -> str:
        """The name of what it tests: `beam_search (model)` is a case of `beam_search`."""
        return self.name.partition(" (")[0]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that any of its variants is run in."""
        return tuple(dtype for dtype in DTYPES if any(dtype in variant.dtypes for variant in self.variants))


def random_for(*names: str) -> np.random.Generator:
    """A generator seeded by names, so that a case's numbers do not depend on the cases before it."""
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def make_weights(case: Case, variant: Variant, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Parameters by PyTorch name, none of them zero: a bias of zeros could be dropped unseen."""
    weights = {}
    for name, shape in shapes.items():
        scale = 0.5 if len(shape) == 1 else 0.6 * (8 / shape[-1]) ** 0.5
        draw = random_for(case.name, variant.name, name).normal(size=shape)
        weights[name] = draw * scale * variant.weight_scales.get(name, 1.0)
    return weights


def make_cotangent(case: Case, variant: Variant, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The fixed random direction along which an output is differentiated."""
    return random_for(case.name, variant.name, "cotangent", name).normal(size=shape)

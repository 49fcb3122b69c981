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
class Module:
    """How a case's module is built on each side, from the variant's options and inputs."""

    jax: Callable[..., Any]
    """(options, parameter dtype) -> a Flax module."""
    torch: Callable[..., Any]
    """(options, inputs) -> an nn.Module; PyTorch wants the sizes that Flax reads off the inputs."""


@dataclass(frozen=True)
class Case:
    """A public name, its twin, and the inputs on which both are run.

    Without a module, `call(library, inputs, options)` runs the function of either library: they have the same names.
    With one, `call(module, inputs)` runs either module.
    """

    name: str
    variants: tuple[Variant, ...]
    call: Callable[..., Any]
    outputs: tuple[str, ...] = ()
    """Names of the results where they are a tuple."""
    module: Module | None = None
    jax_call: Callable[..., Any] | None = None
    """(module, parameters, inputs), where the JAX side of a module needs its parameters as an argument."""
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


@dataclass(frozen=True)
class Refusal:
    """Arguments that both sides must refuse, with TypeError or ValueError."""

    name: str
    why: str
    inputs: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


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

"""A JAX module in PyTorch's place, for those who move from Flax Linen to NNX or to Equinox. Imports no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity_tests.your_port.measure.arrays import is_floating, to_numpy
from parity_tests.your_port.measure.case import Case, JaxSide, TorchSide, make_weights
from parity_tests.your_port.measure.draw import DRAWS
from parity_tests.your_port.measure.jax_side import forget_programs_of, run_jax, trace_jax
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.measure.op_by_op import without_jit
from parity_tests.your_port.measure.taps import recording
from parity_tests.your_port.weights.adapters import JaxProgram, make_port
from parity_tests.your_port.weights.original import Original, Weight, read_inputs


def read_jax(
    module: Any,
    inputs: Any,
    *,
    call: Callable[..., Any] | None,
    weights: Mapping[str, Any] | None,
    gradients: bool,
    name: str,
) -> Original:
    """Read a JAX module and its inputs; for the arguments see `compare`. Its weights keep their own layouts."""
    given = read_inputs(inputs, module)
    port = make_port(module, call, None, given, {}, {})
    roles = {path: "embedding" if "embed" in path.lower() else "straight" for path in port.leaves}
    leaves = tuple(Weight(path, x.shape, path, roles[path], x.is_buffer) for path, x in port.leaves.items())
    values = None if weights is None else {path: to_numpy(x) for path, x in weights.items()}

    def run(placed: Any, arrays: Any, options: Any) -> Any:
        return port.run(placed, given.as_arguments(arrays), options["dtype"], False)[0]

    original = Original(name or type(module).__name__, TorchSide(run), given, leaves, values)
    case = replace(original.case(), jax=JaxSide(run))
    found = replace(original, torch=TorchSide(run, golden=Reference(case, port, gradients)))
    found.draw("float64").in_torch().require_defined()
    return found


@dataclass(frozen=True, eq=False)
class Reference:
    """The runs of a JAX module, as `golden.Golden` has those of PyTorch."""

    case: Case
    """With the module as its JAX side."""
    port: JaxProgram
    gradients: bool
    dtypes = ("float64", "float32")

    def draws(self, dtype: str) -> int:
        """Return how many draws there are."""
        return DRAWS

    def numbers(self, variant: str, dtype: str) -> Numbers:
        """Draw or take what both sides are given."""
        named = replace(self.case.variants[0], name=variant)
        values = named.weights
        if values is None:
            values = make_weights(self.case, named, {path: x.shape for path, x in self.port.leaves.items()})
            values = {path: np.exp(x) if path.endswith("var") else x for path, x in values.items()}
        buffers = {path: x for path, x in values.items() if self.port.leaves[path].is_buffer}
        weights = {path: x for path, x in values.items() if path not in buffers}
        return replace(make_numbers(self.case, named, dtype), weights=weights, buffers=buffers).rounded(dtype)

    def run(self, variant: str, of: str, dtype: str, record: bool) -> Run:
        """Run the module operation by operation, on numbers rounded to the dtype `of`: no compiler is in the truth."""
        numbers, named = self.numbers(variant, of).rounded(dtype), replace(self.case.variants[0], name=variant)
        outputs = trace_jax(self.case, named, numbers, dtype)[1] if self.gradients else {}
        directions = {name: numbers.direction(name, x.shape) for name, x in outputs.items() if is_floating(x)}
        run = run_jax(self.case, named, numbers, dtype, directions, without_jit)
        if record:
            with recording() as trace:
                run_jax(self.case, named, numbers, dtype, {}, without_jit)
            run = replace(run, trace=trace)
        forget_programs_of(self.case)
        return run

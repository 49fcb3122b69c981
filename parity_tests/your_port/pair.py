"""Both programs of a comparison, with the weights put into place, and the ways in which they are measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.compiled import CompiledReport, judge_compiled
from parity_tests.your_port.measure.case import AFTER_A_STEP, Case, JaxSide
from parity_tests.your_port.measure.comparison import Measurement, compare_variant, run_torch_side
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import as_function, forget_programs_of, narrow_inside, run_jax, without_jit
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.measure.x64 import enable_x64
from parity_tests.your_port.weights.adapters import Port
from parity_tests.your_port.weights.original import Original, to_jax_layout, to_torch_layout
from parity_tests.your_port.weights.weight_map import WeightMap, match_paths

PLACED = "placed"
"""Among PyTorch's weights by name: JAX's by path, those that were put into place before the run."""


@dataclass(frozen=True)
class Pair:
    """Both programs, with the weights put into place by a map."""

    draft: Case
    original: Original
    port: Port
    map: WeightMap
    train: bool = False
    dtype: str = "float64"
    """The widest of the dtypes, in which maps are tried."""

    @cached_property
    def case(self) -> Case:
        """The case of the two."""
        paths = match_paths(self.original.weights, self.map)
        return replace(self.draft, jax=JaxSide(self._run_jax, paths, self._place_fixed))

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of the run in the widest dtype."""
        return make_numbers(self.draft, self.draft.variants[0], self.dtype)

    @cached_property
    def truth(self) -> Run:
        """PyTorch in float64 on these numbers."""
        return run_torch_side(self.draft, self.draft.variants[0], self.numbers, self.dtype, "float64")

    def _place_fixed(self, fixed: Mapping[str, np.ndarray]) -> dict[Any, Any]:
        """Put weights without a gradient into place one by one, as JAX shards them, so that none is held twice."""
        all_names = [weight.name for weight in self.original.weights]
        needs = {path: entry.needs(all_names) for path, entry in self.map.entries.items()}
        placed = {
            path: jax.device_put(self.map.entries[path].fill(fixed), self.map.leaves[path].sharding)
            for path, names in needs.items()
            if names and names <= fixed.keys()
        }
        others = {name for path, names in needs.items() if path not in placed for name in names & fixed.keys()}
        return {PLACED: placed, **{name: fixed[name] for name in others}}

    def _run_jax(self, weights: Any, inputs: Any, options: Any) -> Any:
        placed = weights.get(PLACED, {})
        left = {path: e.fill(weights) for path, e in self.map.entries.items() if path not in placed}
        return self._run_placed({**placed, **left}, inputs, options["dtype"])

    def _run_placed(self, placed: Any, inputs: Any, dtype: Any) -> Any:
        results, after = self._call(placed, inputs, dtype)
        if not self.train:
            return results
        moved = {name.removesuffix(AFTER_A_STEP) for name in self.truth.outputs() if name.endswith(AFTER_A_STEP)}
        return {"result": results, **{f"{name}{AFTER_A_STEP}": x for name, x in after.items() if name in moved}}

    def _call(self, placed: Any, inputs: Any, dtype: Any) -> tuple[Any, dict[str, Any]]:
        """Return JAX's results, and its buffers afterwards under PyTorch's names."""
        layouts, shapes = self.draft.layouts, {w.name: w.shape for w in self.original.weights if w.is_buffer}
        arguments = self.original.inputs.as_arguments(to_jax_layout(inputs, layouts))
        results, after = self.port.run(placed, arguments, dtype, self.train)
        sources = {path: entry.source.names for path, entry in self.map.entries.items() if path in after}
        names = {path: names[0] for path, names in sources.items() if names and names[0] in shapes}
        return to_torch_layout(plain(results), layouts), {n: after[p].reshape(shapes[n]) for p, n in names.items()}

    def with_buffers_of_jax(self) -> "Pair":
        """Return the pair that also compares the buffers that a step of training moves in JAX alone."""
        numbers, step = self.numbers, self.draft.torch.call
        with enable_x64(self.dtype == "float64"):
            given = self.map.place({**numbers.buffers, **numbers.weights}), numbers.inputs
            placed, inputs = jax.device_put(given)
            _, after = self._call(placed, numbers.rebuild(inputs), jnp.dtype(self.dtype))
        moved = {name for name, x in after.items() if not np.array_equal(np.asarray(x), numbers.buffers[name])}
        alone = {name for name in moved if f"{name}{AFTER_A_STEP}" not in self.truth.outputs()}

        def call(module: Any, inputs: Any, options: Any) -> Any:
            results, buffers = step(module, inputs, options), dict(module.named_buffers())
            return {**results, **{f"{name}{AFTER_A_STEP}": buffers[name].clone() for name in sorted(alone)}}

        return replace(self, draft=replace(self.draft, torch=replace(self.draft.torch, call=call))) if alone else self

    def trained_in_jax(self) -> Iterator[str]:
        """Say which buffers get a gradient in JAX, where all arrays of a module are trained, as in Equinox."""
        arrays = {path for path, leaf in self.map.leaves.items() if leaf.sharding is not None}
        places = {entry.source.names[0]: path for path, entry in self.map.entries.items() if entry.source.names}
        asked = [n for n in self.numbers.buffers if places.get(n) in arrays and not places[n].startswith("1.")]
        if self.port.kind != "equinox" or not asked or not self.truth.gradients():
            return
        kept = {name: x for name, x in self.numbers.buffers.items() if name not in asked}
        trained = {name: self.numbers.buffers[name] for name in asked}
        numbers = replace(self.numbers, weights={**self.numbers.weights, **trained}, buffers=kept)
        run = run_jax(self.case, self.case.variants[0], numbers, self.dtype, numbers.directions(self.truth))
        for name in asked:
            if np.any(run.gradients().get(name)):
                yield f"{name} is a buffer in PyTorch, and {places[name]} gets a gradient in JAX: jax.lax.stop_gradient"

    def in_float64(self) -> list[Measurement]:
        """Measure in float64, too; nothing where that says little, since a part is computed in a narrower dtype."""
        if self.original.torch.golden is not None:
            return []
        measured = compare_variant(self.case, self.case.variants[0], "float64")
        narrow = any(m.failed for m in measured) and (self.truth.is_narrow_inside or self._narrow())
        return [] if narrow else measured

    def _narrow(self) -> str:
        return narrow_inside(self.case, self.case.variants[0], self.numbers)

    # Trying a map

    @cached_property
    def _outputs(self) -> Callable[..., Any]:
        """The outputs of JAX by its own weights, compiled once for all maps."""

        def run(placed: Any, inputs: Any) -> Any:
            return flatten(plain(self._run_placed(placed, self.numbers.rebuild(inputs), jnp.dtype(self.dtype))))[0]

        return jax.jit(run)

    def distance(self, tried: WeightMap) -> float:
        """Measure how far apart the outputs are, from 0 to 1, if another map puts the weights into place."""
        with enable_x64(self.dtype == "float64"):
            outputs = self._outputs(tried.place({**self.numbers.buffers, **self.numbers.weights}), self.numbers.inputs)
        truth = {n: x for n, x in self.truth.outputs().items() if x is not None}
        errors = [np.inf if outputs[n] is None else relative_error(np.asarray(outputs[n]), truth[n]) for n in truth]
        return float(np.mean(np.minimum(errors, 1.0)))

    def gradients_agree(self, tried: WeightMap) -> bool:
        """Whether the gradients, too, agree with the weights put into place by another map."""
        pair = replace(self, map=tried)
        measured = compare_variant(pair.case, pair.case.variants[0], self.dtype)
        forget_programs_of(pair.case)
        return not any(m.failed for m in measured)

    @cached_property
    def traced(self) -> tuple[Any, Any]:
        """The JAX side as a traced program, and the shapes of its results."""
        with enable_x64(self.dtype == "float64"):
            function, given = as_function(self.case, self.case.variants[0], self.numbers, self.dtype)
            return jax.make_jaxpr(function, return_shape=True)(*given)

    def check_structure(self) -> None:
        """Raise ValueError if the JAX side cannot be called, or returns another structure."""
        try:
            shapes = self.traced[1]
        except Exception as error:
            raise ValueError(
                f"the JAX module cannot be run in {self.dtype} on these inputs: {type(error).__name__}: {error}. If it "
                "needs other arguments, give jax_call=lambda module, x: …; if channels are last, layout={'x': 'NHWC'}"
            ) from error
        sides = self.truth.outputs(), flatten(plain(shapes))[0]
        if not any(sides):
            raise ValueError("both sides return nothing: return the tensors to be compared by torch_call and jax_call")
        if sides[0].keys() != sides[1].keys():
            texts = [", ".join(f"{n} {list(np.shape(x))}" for n, x in sorted(side.items())) for side in sides]
            raise ValueError(
                f"the results are not of the same structure: PyTorch returns {texts[0]}; JAX returns {texts[1]}. Let "
                "both return the same by torch_call=lambda module, x: … or jax_call=lambda module, x: …"
            )

    def compiled(self, dtype: str) -> list[Measurement]:
        """Measure the compiled programs; of the outputs alone, what only one of the two programs makes wrong."""
        measured = compare_variant(self.case, self.case.variants[0], dtype, alone=True)
        failed = {m.tensor for m in measured if m.failed and m.dtype == dtype}
        return [m for m in measured if m.dtype == dtype or m.failed != (m.tensor in failed)]

    def without_jit(self, compiled: list[Measurement]) -> list[Measurement]:
        """Measure JAX without jit; return what is right in only one of the two ways, by more than rounding."""
        first = {m.tensor: m for m in compiled if m.dtype == "float64" and m.case == self.case.name}
        measured = compare_variant(self.case, self.case.variants[0], "float64", without_jit)
        by_luck = {m.tensor for m in measured if m.rule != "float64" and max(m.share, first[m.tensor].share) < 2}
        differing = [m for m in measured if m.failed != first[m.tensor].failed and m.tensor not in by_luck]
        return [replace(m, dtype="float64 without jit") for m in differing]

    def with_float32_inside(self) -> list[Measurement]:
        """Measure in float64 by the rule of float32."""
        return compare_variant(replace(self.case, inside="float32"), self.case.variants[0], "float64")

    def compiler(self, failed: Sequence[Measurement], measured: Sequence[Measurement]) -> CompiledReport | None:
        """Hold the compiled programs to their own operations, where every failure may be the compiler's.

        That is where a tensor is right without jit, in the widest dtype, or in the program with gradients.
        """
        wrong = {(m.tensor, m.dtype) for m in failed}
        right = {m.tensor for m in measured if m.dtype.endswith("without jit") and not m.failed}
        if any(tensor not in right and (tensor, self.dtype) in wrong for tensor, _ in wrong):
            return None
        reports = map(self._judge_compiled, dict.fromkeys(name.split()[0] for _, name in sorted(wrong)))
        return next((report for report in reports if not report), None)

    def _judge_compiled(self, dtype: str) -> CompiledReport:
        """Hold the compiled JAX side to its own operations, in a dtype."""
        numbers = make_numbers(self.draft, self.draft.variants[0], dtype)
        with enable_x64(dtype == "float64"):
            function, (weights, inputs) = as_function(self.case, self.case.variants[0], numbers, dtype)

            def outputs(arrays: dict[str, Any]) -> dict[str, Any]:
                parts = ({name: arrays[f"{kind} {name}"] for name in held} for kind, held in kinds.items())
                results = flatten(plain(function(*parts)))[0]
                return {name: x for name, x in results.items() if x is not None}

            kinds = {"weight": weights, "input": inputs}
            arrays = {f"{kind} {name}": x for kind, held in kinds.items() for name, x in held.items()}
            moving = [f"weight {name}" for name in numbers.weights] + [f"input {n}" for n in numbers.differentiated]
            return judge_compiled(self.case.name, outputs, arrays, moving if self.truth.gradients() else ())

    def narrow_inside(self, failed: list[Measurement]) -> str:
        """Say what is computed in float32 although the run is in float64, if the two differ there."""
        if self.draft.inside or any(m.run_dtype != "float64" for m in failed):
            return ""
        if dtype := self._narrow():
            return f"JAX casts to {dtype} inside"
        if self.truth.is_narrow_inside:
            return "PyTorch casts to float32 inside"
        outputs = [m for m in failed if not m.is_gradient]  # a gradient may have its own reason
        if any(m.mismatch or m.error > 2 * m.torch_error + 8 * unit_roundoff("float32") for m in outputs or failed):
            return ""
        used = {name for entry in self.map.entries.values() for name in entry.source.names}
        tables = [name for name in self.numbers.buffers if name not in used]
        return f"PyTorch's {tables[0]} is a table made in float32" if tables else ""

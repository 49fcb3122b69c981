"""Both programs of a comparison, with the weights put into place, and the ways in which they are measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.compiled import CompiledReport, judge_compiled, place_of
from parity_tests.your_port.measure.arrays import flatten, plain
from parity_tests.your_port.measure.case import AFTER_A_STEP, Case, JaxSide
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import as_function, forget_programs_of
from parity_tests.your_port.measure.judge import Measurement, is_cast_from
from parity_tests.your_port.measure.op_by_op import trace, without_jit
from parity_tests.your_port.measure.width import enable_x64, look_for_tables
from parity_tests.your_port.weights.adapters import JaxProgram
from parity_tests.your_port.weights.original import Original, to_jax_layout, to_torch_layout
from parity_tests.your_port.weights.weight_map import WeightMap, match_paths


@dataclass(frozen=True)
class PlacingSide(JaxSide):
    """JAX's side of a pair."""

    pair: Any = field(default=None, compare=False)

    def prepare(self, fixed: Mapping[str, np.ndarray]) -> Any:
        """Put weights without a gradient into place one by one, as JAX shards them, so that none is held twice.

        Returns:
            JAX's weights by path, and by name those of PyTorch's that are needed for others.
        """
        entries, leaves = self.pair.map.entries, self.pair.map.leaves
        all_names = [weight.name for weight in self.pair.original.weights]
        needs = {path: entry.needs(all_names) for path, entry in entries.items()}
        placed = jax.device_put({**self.pair.map.integers})
        placed |= {
            path: jax.device_put(entries[path].fill(fixed), leaves[path].sharding)
            for path, names in needs.items()
            if names and names <= fixed.keys()
        }
        others = {name for path, names in needs.items() if path not in placed for name in names & fixed.keys()}
        return placed, {name: fixed[name] for name in others}

    def run(self, weights: Any, prepared: Any, inputs: Any, options: Any) -> Any:
        """Run the port; gradients go through the map to PyTorch's weights."""
        placed, others = prepared
        return self.call({**others, **weights}, inputs, options, placed)


@dataclass(frozen=True, eq=False)
class Pair:
    """Both programs, with the weights put into place by a map."""

    original: Original
    port: JaxProgram
    map: WeightMap
    draft: Draw
    """PyTorch's side in the widest dtype, in which maps are tried. Its case has no JAX side yet."""
    train: bool = False

    @cached_property
    def case(self) -> Case:
        """The case of the two."""
        paths = match_paths(self.original.weights, self.map)
        guessed = frozenset(n for entry in self.map.entries.values() if entry.guessed for n in entry.source.names)
        return replace(self.draft.case, jax=PlacingSide(self.run_jax, paths, guessed, pair=self))

    def draw(self, dtype: str = "") -> Draw:
        """The runs of both in a dtype, by default the widest; those of PyTorch are kept from pair to pair."""
        return replace(self.draft, case=self.case, dtype=dtype or self.draft.dtype)

    @cached_property
    def moved(self) -> set[str]:
        """The buffers that a step of training moves in PyTorch."""
        return {name.removesuffix(AFTER_A_STEP) for name in self.draft.in_torch().outputs if AFTER_A_STEP in name}

    def run_jax(self, weights: Any, inputs: Any, options: Any, placed: Mapping[str, Any] | None = None) -> Any:
        """Put weights by PyTorch's names into place, beside those that are `placed` already, and run the port."""
        left = {path: e.fill(weights) for path, e in self.map.entries.items() if path not in (placed or {})}
        return self._run_placed({**(placed or {}), **left}, inputs, options["dtype"])

    def _run_placed(self, placed: Any, inputs: Any, dtype: Any) -> Any:
        results, after = self._call(placed, inputs, dtype)
        if not self.train:
            return results
        return {"result": results, **{f"{name}{AFTER_A_STEP}": x for name, x in after.items() if name in self.moved}}

    def _call(self, placed: Any, inputs: Any, dtype: Any) -> tuple[Any, dict[str, Any]]:
        """Return JAX's results, and its buffers afterwards under PyTorch's names."""
        layouts, shapes = self.draft.case.layouts, {w.name: w.shape for w in self.original.weights if w.is_buffer}
        arguments = self.original.inputs.as_arguments(to_jax_layout(inputs, layouts))
        results, after = self.port.run(placed, arguments, dtype, self.train)
        sources = {path: entry.source.names for path, entry in self.map.entries.items() if path in after}
        buffers = {
            name: part.reshape(shapes[name])
            for path, names in sources.items()
            if names and {*names} <= shapes.keys()
            for name, part in zip(names, after[path].reshape(len(names), -1), strict=True)  # of a stack several
        }
        return to_torch_layout(plain(results), layouts), buffers

    def with_buffers_of_jax(self) -> "Pair":
        """Return the pair that also compares the buffers that a step of training moves in JAX alone."""
        numbers, case = self.draft.numbers, self.draft.case
        with enable_x64(self.draft.dtype == "float64"):
            given = self.map.place({**numbers.buffers, **numbers.weights}), numbers.inputs
            placed, inputs = jax.device_put(given)
            _, after = self._call(placed, numbers.rebuild(inputs), jnp.dtype(self.draft.dtype))
        moved = {name for name, x in after.items() if not np.array_equal(np.asarray(x), numbers.buffers[name])}
        alone = sorted(moved - self.moved)
        if not alone:
            return self

        def call(module: Any, inputs: Any, options: Any) -> Any:
            results, buffers = case.torch.call(module, inputs, options), dict(module.named_buffers())
            return {**results, **{f"{name}{AFTER_A_STEP}": buffers[name].clone() for name in alone}}

        changed = replace(case, torch=replace(case.torch, call=call))
        return replace(self, draft=replace(self.draft, case=changed, kept={}))

    # Trying a map

    @cached_property
    def _outputs(self) -> Callable[..., Any]:
        """The outputs of JAX by its own weights, compiled once for all maps."""

        def run(placed: Any, inputs: Any) -> Any:
            arguments = self.draft.numbers.rebuild(inputs)
            return flatten(plain(self._run_placed(placed, arguments, jnp.dtype(self.draft.dtype))))[0]

        return jax.jit(run)

    def distance(self, tried: WeightMap) -> float:
        """Measure how far apart the outputs are, from 0 to 1, if another map puts the weights into place.

        Half of the dtype's digits are enough to tell a right map, so what agrees in them is 0 apart.
        """
        numbers = self.draft.numbers
        with enable_x64(self.draft.dtype == "float64"):
            outputs = self._outputs(tried.place({**numbers.buffers, **numbers.weights}), numbers.inputs)
        truth = {n: x for n, x in self.draft.in_torch().outputs.items() if x is not None}
        errors = [np.inf if outputs[n] is None else relative_error(np.asarray(outputs[n]), truth[n]) for n in truth]
        distance = float(np.mean(np.minimum(errors, 1.0)))
        return 0.0 if distance < unit_roundoff(self.draft.dtype) ** 0.5 else distance

    @cached_property
    def used(self) -> set[str]:
        """The JAX weights that go into the results."""
        numbers = self.draft.numbers
        with enable_x64(self.draft.dtype == "float64"):
            placed = self.map.place({**numbers.buffers, **numbers.weights})
            program, _ = trace(self._outputs, placed, numbers.inputs)
        read = {*program.results}.union(*(operation.reads for operation in program.of(program.results).operations))
        in_order = zip(sorted(placed), program.given, strict=False)  # after the weights the inputs are given
        return {path for path, number in in_order if number in read}

    def gradients_agree(self, tried: WeightMap) -> bool:
        """Whether the gradients, too, agree with the weights put into place by another map."""
        draw = replace(self, map=tried).draw()
        differs = any(m.failed for m in draw.measure())
        forget_programs_of(draw.case)
        return not differs

    def check_structure(self) -> None:
        """Raise ValueError if the JAX side cannot be called, or returns another structure."""
        draw, callers = self.draw(), jax.dtypes.canonicalize_dtype(np.float64).name
        try:
            with enable_x64(callers == "float64"):
                look_for_tables(*as_function(draw.case, draw.variant, draw.numbers, callers))
            _, shapes = draw.traced()
        except Exception as error:
            gets = (
                "the weights first, and then the inputs"
                if self.port.leaves
                else "the inputs alone: PyTorch has no weights"
            )
            first = f"A function gets {gets}. " * (self.port.kind == "function")
            raise ValueError(
                f"the JAX module cannot be run in {self.draft.dtype} on these inputs: {type(error).__name__}: {error}. "
                f"{first}{self.original.inputs.advice}; if it runs in float32 alone, dtypes=('float32',)"
            ) from error
        sides = self.draft.in_torch().outputs, shapes
        if not any(sides):
            raise ValueError("both sides return nothing: return the tensors to be compared by torch_call and jax_call")
        if sides[0].keys() != sides[1].keys():
            parameters = self.original.inputs.parameters
            texts = [", ".join(f"{n} {list(np.shape(x))}" for n, x in sorted(side.items())) for side in sides]
            raise ValueError(
                f"the results are not of the same structure: PyTorch returns {texts[0]}; JAX returns {texts[1]}. Let "
                f"both return the same by torch_call=lambda {parameters}: … or jax_call=lambda {parameters}: …"
            )

    def unlike_images(self) -> list[str]:
        """Name the results that have PyTorch's shape only if their axes stay, as weights of attention beside images."""
        if not (layouts := self.draft.case.layouts):
            return []
        truth, (_, shapes), found = self.draft.in_torch().outputs, self.draw().traced(), list[str]()
        for name in shapes.keys() - flatten(dict(self.original.inputs.arrays))[0].keys():
            turned, wanted = np.shape(shapes[name]), np.shape(truth[name])
            in_jax = to_jax_layout({name: np.broadcast_to(0.0, turned)}, layouts)
            if turned != wanted and in_jax[name].shape == wanted:
                found.append(name)
        return found

    # Measuring

    def compiled(self, dtype: str) -> list[Measurement]:
        """Measure the compiled programs; of the outputs alone, what only one of the two programs makes wrong."""
        draw = self.draw(dtype)
        try:
            draw.in_jax()
        except Exception as error:  # its results could be traced: see `check_structure`
            if not self.draft.in_torch().gradients:
                raise
            raise ValueError(
                f"the JAX module cannot be run with its gradients in {dtype}: {type(error).__name__}: {error}. To "
                "compare its results alone: gradients=False"
            ) from error
        measured = draw.measure_draws(alone=True)
        failed = {m.tensor for m in measured if m.failed and m.dtype == dtype}
        return [m for m in measured if m.dtype == dtype or m.failed != (m.tensor in failed)]

    def without_jit(self) -> list[Measurement]:
        """Measure JAX without jit; return what is right in only one of the two ways, by more than rounding."""
        draw = self.draw("float64")
        first, measured = {m.tensor: m for m in draw.measure()}, draw.measure(without_jit)
        by_luck = {m.tensor for m in measured if m.rule != "float64" and max(m.share, first[m.tensor].share) < 2}
        differing = [m for m in measured if m.failed != first[m.tensor].failed and m.tensor not in by_luck]
        return [replace(m, dtype="float64 without jit") for m in differing]

    def in_float64(self) -> list[Measurement]:
        """Measure in float64, too; nothing where that says little, since a part is computed in a narrower dtype."""
        if self.original.torch.golden is not None:
            return []
        measured = self.draw("float64").measure()
        narrow = any(m.failed for m in measured) and (
            self.draft.in_torch().is_narrow_inside or self.draw("float64").narrowest_in_jax
        )
        return [] if narrow else measured

    @cached_property
    def cast_in_jax(self) -> str:
        """Say in which narrower dtype JAX computes a part of the run in float64, and where that begins; or nothing."""
        draw = self.draw()
        if not (dtype := draw.narrowest_in_jax):
            return ""
        for operation, _ in draw.traced()[0].everywhere():
            if any(getattr(x.aval, "dtype", None) == dtype for x in operation.equation.outvars):
                return f"JAX casts to {dtype} inside, at {place_of(operation)}"
        return f"JAX has a table or a constant in {dtype} inside"

    def cast_at_the_end(self) -> Iterator[str]:
        """Say which results one side casts to float32 whatever comes in, and the other one does not."""
        runs = self.draw("float64").runs()
        outputs = {"PyTorch": runs.truth.outputs, "JAX": runs.jax.outputs}
        for one, other in (("PyTorch", "JAX"), ("JAX", "PyTorch")):
            for name, x in outputs[one].items():
                wide = outputs[other][name]
                if x is not None and wide is not None and is_cast_from(wide, x):
                    words = f"{one} casts {name} to float32 at its end, and {other} does not"
                    yield f"{words}: in 16 bits their dtypes differ"

    def with_float32_inside(self) -> list[Measurement]:
        """Measure in float64 by the rule of float32."""
        draw = self.draw("float64")
        return replace(draw, case=replace(self.case, inside="float32")).measure_draws()

    def agrees_in_bfloat16(self) -> bool:
        """Whether JAX computes in bfloat16 whatever comes in, and the two agree in that dtype."""
        if self.draw().narrowest_in_jax != "bfloat16" or self.original.torch.golden is not None:
            return False
        return not any(m.failed for m in self.compiled("bfloat16"))

    def compiler(self, failed: Sequence[Measurement], measured: Sequence[Measurement]) -> CompiledReport | None:
        """Hold the compiled programs to their own operations, where every failure may be the compiler's.

        That is where a tensor is right without jit, in the widest dtype, or in the program with gradients.
        """
        wrong = {(m.tensor, m.dtype) for m in failed}
        right = {m.tensor for m in measured if m.dtype.endswith("without jit") and not m.failed}
        if any(tensor not in right and (tensor, self.draft.dtype) in wrong for tensor, _ in wrong):
            return None
        reports = map(self._judge_compiled, dict.fromkeys(name.split()[0] for _, name in sorted(wrong)))
        return next((report for report in reports if not report), None)

    def _judge_compiled(self, dtype: str) -> CompiledReport:
        """Hold the compiled JAX side to its own operations, in a dtype."""
        draw = self.draw(dtype)
        with enable_x64(dtype == "float64"):
            program = as_function(draw.case, draw.variant, draw.numbers, dtype)
            return judge_compiled(draw.case.name, *program, gradients=bool(self.draft.in_torch().gradients))

    def narrow_inside(self, failed: list[Measurement]) -> str:
        """Say what is computed in float32 although the run is in float64, if the two differ there."""
        if self.case.inside or any(m.run_dtype != "float64" for m in failed):
            return ""
        if self.cast_in_jax:
            return self.cast_in_jax
        if self.draft.in_torch().is_narrow_inside:
            return "PyTorch casts to float32 inside"
        outputs = [m for m in failed if not m.is_gradient]  # a gradient may have its own reason
        if any(m.mismatch or m.error > 2 * m.torch_error + 8 * unit_roundoff("float32") for m in outputs or failed):
            return ""
        build, tables = self.case.torch.build, [*self.draft.numbers.buffers]
        for path, part in () if build is None else build({}, {}).named_modules():  # also those that no state dict has
            held = {**dict(part.named_buffers(recurse=False)), **vars(part)}.items()
            floating = (n for n, x in held if hasattr(x, "is_complex") and (x.is_floating_point() or x.is_complex()))
            tables += [f"{path}.{name}".lstrip(".") for name in floating]
        used = {name for path in self.used for name in self.map.entries[path].source.names}
        return next((f"PyTorch's {name} is a table made in float32" for name in tables if name not in used), "")

"""Compare a PyTorch module with its JAX port in one call. Imports no torch where PyTorch's side is a file."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.compiled import CompiledReport, judge_compiled
from parity_tests.your_port.divergence import find_divergence
from parity_tests.your_port.golden import load_golden
from parity_tests.your_port.measure.case import AFTER_A_STEP, DTYPES, Case, JaxSide
from parity_tests.your_port.measure.comparison import Measurement, compare_variant, run_torch_side
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import as_function, forget_programs_of, narrow_inside, without_jit
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.measure.op_by_op import op_by_op
from parity_tests.your_port.measure.programs import count_operations
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.measure.x64 import enable_x64
from parity_tests.your_port.report import Report
from parity_tests.your_port.weights.adapters import Port, is_function, make_port
from parity_tests.your_port.weights.jax_program import read_jax
from parity_tests.your_port.weights.layouts import Layouts
from parity_tests.your_port.weights.load import Load, call_load, map_by_load
from parity_tests.your_port.weights.match import Names, match_weights
from parity_tests.your_port.weights.original import Original, Weight, to_jax_layout, to_torch_layout
from parity_tests.your_port.weights.weight_map import Leaf, WeightMap, match_paths


def compare(
    torch_module: Any,
    jax_module: Any,
    inputs: Any = None,
    *,
    load: Load | None = None,
    weights: Mapping[str, Any] | None = None,
    names: Names | None = None,
    layout: Layouts | None = None,
    buffers: bool = False,
    gradients: bool = True,
    bound: float | None = None,
    inside: str = "",
    dtypes: Sequence[str] | None = None,
    torch_call: Callable[..., Any] | None = None,
    jax_call: Callable[..., Any] | None = None,
    variables: Any = None,
    name: str = "",
) -> Report:
    """Compare a PyTorch module with its JAX port: outputs, every gradient, jit against no jit.

        print(compare(torch.nn.GRUCell(4, 5), nnx.GRUCell(4, 5, rngs=nnx.Rngs(0)), (x, h)))

    Both are run in evaluation mode with the same weights. They are put into the port by your own function `load`, or by
    names and shapes; `print(report.map)` shows how.

    Args:
        torch_module: an nn.Module, a function of the inputs, or a file or folder that `parity_tests.your_port.dump` has
            written. Also a module of Flax or Equinox, for those who move within JAX; the report then calls it PyTorch's
            side.
        jax_module: a module of Flax NNX, Flax Linen or Equinox, or a function of (weights, inputs). A function gets a
            dict with PyTorch's names and layouts, or the structure of `variables`. A large module need not have weights
            of its own: `nnx.eval_shape(lambda: Model(...))`.
        inputs: an array, a tuple of positional arguments or a dict of keywords, for both sides; a file has its own.
        load: your function that loads PyTorch's weights: a dict of NumPy arrays by PyTorch's names -> what JAX has. For
            NNX that is a module, its state or a pure dict; for Linen the variables or parameters; for Equinox the
            module; for a function its weights. It is tested, too, and takes the place of `names`.
        weights: a state dict, such as a checkpoint's or `torch_module.state_dict()`; by default all are drawn, biases
            and running statistics too, since zeros and ones hide mistakes. Frozen tables keep their numbers.
        names: JAX's name or a part of it -> PyTorch's, where they are not alike: `{"h_{i}": "transformer.h.{i}"}`.
        layout: names of weights, inputs or outputs, with * -> their layout in JAX: `{"conv*": "NHWC"}`, or the order of
            PyTorch's axes: `{"x": (1, 0, 2)}`.
        buffers: also take a step of training, and compare its outputs, gradients and running statistics.
        gradients: False compares the outputs alone.
        bound: of the relative error in float64, in the place of 1e-12.
        inside: "float32" where a softmax or a norm is computed in float32 whatever comes in.
        dtypes: those in which both are run; by default float64 and float32, or those of the file.
        torch_call: (torch_module, inputs) -> what is to be compared, in the place of calling it.
        jax_call: (module with weights in place, inputs) -> what is to be compared, in the place of calling it.
        variables: Linen's variables or a function's weights, where the weights cannot be seen otherwise; values do not
            matter.
        name: what the report calls the two.

    Raises:
        ValueError, TypeError: the two cannot be compared; the message says what to do.
        GoldenError: the file is damaged, or was written by another version.
    """
    _check_arguments(torch_module, jax_module, dtypes, inside)
    layout = dict(layout or {})
    steps = (False, True) if buffers else (False,)
    reading: dict[str, Any] = {"call": torch_call, "weights": weights, "gradients": gradients, "name": name}
    if isinstance(torch_module, str | Path):
        if buffers or not gradients or any(x is not None for x in (inputs, weights, torch_call)):
            given = "inputs, weights, torch_call, buffers and gradients"
            raise ValueError(f"{torch_module} holds PyTorch's side as it was recorded, so leave out {given}")
        originals = [load_golden(torch_module).original]
    elif not is_function(torch_module):  # a JAX module
        if buffers:
            raise ValueError("buffers=True takes a step of training in PyTorch: leave it out where both are JAX's")
        originals = [read_jax(torch_module, inputs, **reading)]
    else:
        from parity_tests.your_port.weights.torch_program import read_program

        originals = [read_program(torch_module, inputs, train=train, **reading) for train in steps]
    first = originals[0]
    if load is not None and variables is None and is_function(jax_module):
        variables = call_load(load, first.weights)
    leaves = {w.name: Leaf(w.shape) for w in first.weights}
    port = make_port(jax_module, jax_call, variables, first.inputs.as_shapes(layout), leaves)
    if load is not None:
        found = map_by_load(load, first.weights, port)
    else:
        found = match_weights(first.weights, port.leaves, port.role, names, layout)
    drafts = [replace(o.case(), bound=bound, inside=inside, layouts=layout) for o in originals]
    recorded = first.torch.golden
    dtypes = dtypes or (("float64", "float32") if recorded is None else recorded.dtypes)
    widest = next(dtype for dtype in DTYPES if recorded is None or dtype in recorded.dtypes)
    pairs = [_Pair(draft, first, port, found, train, widest) for train, draft in zip(steps, drafts, strict=True)]
    for pair in pairs:
        pair.check_structure()
    if found.is_open:
        found = found.choose(pairs[0].distance, pairs[0].gradients_agree)
        pairs = [replace(pair, map=found) for pair in pairs]
    measured: list[Measurement] = []
    for pair in pairs:
        measured += [m for dtype in dtypes for m in pair.compiled(dtype)]
    measured += pairs[0].without_jit(measured) if "float64" in dtypes else []
    failed = [m for m in measured if m.failed]
    divergence, trouble, note = None, "", ""
    compiled = None
    if failed:
        parted = next(pair for pair in pairs if pair.case.name == failed[0].case)
        try:
            compiled = parted.compiler(failed, measured)
        except Exception as error:  # the measurements are the verdict, whatever becomes of their explanation
            trouble = _in_one_line(error)
    if failed and compiled is None:
        try:
            beside = [pair.case for pair in pairs if pair is not parted]
            divergence = find_divergence(parted.case, dtype=failed[0].dtype.partition(" ")[0], beside=beside)
            note = parted.narrow_inside(failed)
        except Exception as error:
            trouble = _in_one_line(error)
    for pair in pairs:
        forget_programs_of(pair.case)
    return Report(
        *(first.name, port, found, tuple(measured), divergence, note, pairs[0].case),
        trouble=trouble,
        compiled=compiled,
        dtypes_differ=_differing_dtypes(first, port),
        trained_otherwise=tuple(_trained_otherwise(first, port, found)),
    )


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _differing_dtypes(original: Original, port: Port) -> str:
    """Say which dtypes most numbers of the two modules' weights have, if only one of them has 16 bits."""
    in_torch, in_jax = (_most_common_dtype(leaves) for leaves in (original.weights, port.leaves.values()))
    if in_torch and in_jax and in_torch.endswith("16") != in_jax.endswith("16"):
        return f"the weights are {in_torch} in PyTorch, {in_jax} in JAX"
    return ""


def _most_common_dtype(leaves: Iterable[Weight | Leaf]) -> str:
    sizes: Counter[str] = Counter()
    for leaf in leaves:
        sizes[leaf.dtype] += prod(leaf.shape)
    return max(sizes, key=sizes.__getitem__, default="")


def _trained_otherwise(original: Original, port: Port, found: WeightMap) -> Iterator[str]:
    """Say which weights an optimiser moves in one of the two alone, or apart, though values and gradients may agree."""
    is_buffer = {weight.name: weight.is_buffer for weight in original.weights}
    paths: dict[str, list[str]] = {}
    for path, entry in found.entries.items():
        for name in dict.fromkeys(entry.source.names):
            paths.setdefault(name, []).append(path)
            if port.knows_buffers and is_buffer[name] != port.leaves[path].is_buffer:
                kinds = ("buffer", "parameter") if is_buffer[name] else ("parameter", "buffer")
                yield f"{name} is a {kinds[0]} in PyTorch, and {path} is a {kinds[1]} in JAX"
    for name in dict.fromkeys(weight.first for weight in original.weights if not weight.is_first):
        if name in found.uses and found.uses[name].min(initial=2) > 1 and len(paths.get(name, ())) > 1:
            yield f"{name} is one weight in PyTorch, and JAX trains {' and '.join(paths[name])} apart"


MANY_OPERATIONS = 3000
"""Of a program with its loops unrolled; to run Python's code for more takes minutes."""

PLACED = "placed"
"""Among PyTorch's weights by name: JAX's by path, those that were put into place before the run."""


def _check_arguments(torch_module: Any, jax_module: Any, dtypes: Sequence[str] | None, inside: str) -> None:
    torch_first = callable(torch_module) or isinstance(torch_module, str | Path)
    if not torch_first or type(jax_module).__module__.startswith("torch."):
        raise TypeError(f"torch_module comes first and jax_module second; got {type(torch_module).__name__} first")
    if dtypes is not None and (not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES)):
        raise ValueError(f"dtypes must be some of {DTYPES}; got {dtypes!r}")
    if inside not in ("", "float32"):
        raise ValueError(f"inside must be 'float32' or left out; got {inside!r}")


@dataclass(frozen=True)
class _Pair:
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
        layouts = self.draft.layouts
        arguments = self.original.inputs.as_arguments(to_jax_layout(inputs, layouts))
        results, after = self.port.run(placed, arguments, dtype, self.train)
        results = to_torch_layout(plain(results), layouts)
        if not self.train:
            return results
        moved = {name.removesuffix(AFTER_A_STEP) for name in self.truth.outputs() if name.endswith(AFTER_A_STEP)}
        shapes = {w.name: w.shape for w in self.original.weights if w.name in moved}
        sources = {path: entry.source.names for path, entry in self.map.entries.items() if path in after}
        names = {path: names[0] for path, names in sources.items() if names and names[0] in shapes}
        return {"result": results, **{f"{n}{AFTER_A_STEP}": after[p].reshape(shapes[n]) for p, n in names.items()}}

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
        """Measure JAX without jit; return what is right in only one of the two ways.

        Python runs the code of a loop at each step. Where that takes too long, the traced operations run one by one.
        """
        failed = {m.tensor for m in compiled if m.failed and m.dtype == "float64" and m.case == self.case.name}
        way = op_by_op if count_operations(self.traced[0].jaxpr) > MANY_OPERATIONS else without_jit
        measured = compare_variant(self.case, self.case.variants[0], "float64", way)
        return [replace(m, dtype="float64 without jit") for m in measured if m.failed != (m.tensor in failed)]

    def compiler(self, failed: list[Measurement], measured: list[Measurement]) -> CompiledReport | None:
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
        if not any(m.dtype == "float64" for m in failed):
            return ""
        if dtype := narrow_inside(self.case, self.case.variants[0], self.numbers):
            return f"JAX casts to {dtype} inside"
        if self.truth.is_narrow_inside:
            return "PyTorch casts to float32 inside"
        outputs = [m for m in failed if not m.tensor.startswith("gradient of ")]  # a gradient may have its own reason
        if any(m.mismatch or m.error > 2 * m.torch_error + 8 * unit_roundoff("float32") for m in outputs or failed):
            return ""
        used = {name for entry in self.map.entries.values() for name in entry.source.names}
        tables = [name for name in self.numbers.buffers if name not in used]
        return f"PyTorch's {tables[0]} is a table made in float32" if tables else ""

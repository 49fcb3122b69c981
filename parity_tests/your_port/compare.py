"""Compare a PyTorch module with its JAX port in one call. Imports no torch where PyTorch's side is a file."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.compiled import CompiledReport, judge_compiled
from parity_tests.your_port.divergence import find_divergence
from parity_tests.your_port.golden import load_golden
from parity_tests.your_port.measure.case import AFTER_A_STEP, DTYPES, Case, JaxSide
from parity_tests.your_port.measure.comparison import Measurement, compare_variant, run_torch_side
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import as_function, forget_programs_of, narrow_inside, run_jax, without_jit
from parity_tests.your_port.measure.numbers import Numbers, Run, make_numbers
from parity_tests.your_port.measure.strength import find_constant, on_other_numbers
from parity_tests.your_port.measure.tree import flatten, plain
from parity_tests.your_port.measure.x64 import enable_x64
from parity_tests.your_port.report import Report
from parity_tests.your_port.weights.adapters import Port, is_function, make_port
from parity_tests.your_port.weights.jax_program import read_jax
from parity_tests.your_port.weights.layouts import Layouts
from parity_tests.your_port.weights.load import Load, call_load, map_by_load
from parity_tests.your_port.weights.match import Names, match_weights
from parity_tests.your_port.weights.original import Original, Weight, to_jax_layout, to_torch_layout
from parity_tests.your_port.weights.weight_map import AGREES, Leaf, WeightMap, match_paths


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
            PyTorch's axes: `{"x": (1, 0, 2)}`. A star alone means all inputs and outputs. By default channels are
            tried as in PyTorch and last, if there are convolutions.
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
    _check_arguments(torch_module, jax_module, dtypes, inside, bound)
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
    recorded = first.torch.golden
    dtypes = dtypes or (("float64", "float32") if recorded is None else recorded.dtypes)
    dropout = list[Any]()
    widest = next(dtype for dtype in DTYPES if recorded is None or dtype in recorded.dtypes)

    def place(layout: Layouts) -> list[_Pair]:
        """Put the weights into place, with inputs and results in this layout."""
        port = make_port(jax_module, jax_call, variables, first.inputs.as_shapes(layout), leaves)
        if load is not None:
            found = map_by_load(load, first.weights, port)
        else:
            found = match_weights(first.weights, port.leaves, port.role, names, layout)
        drafts = [replace(o.case(), bound=bound, inside=inside, layouts=layout) for o in originals]
        pairs = [_Pair(draft, first, port, found, train, widest) for train, draft in zip(steps, drafts, strict=True)]
        for pair in pairs:
            with nn.intercept_methods(partial(_collect, dropout)):
                pair.check_structure()
        maps = [found]
        if load is None and any(entry.guessed for entry in found.entries.values()):
            maps += [match_weights(first.weights, port.leaves, port.role, names, layout, by_order=True)]
        maps = [m.choose(pairs[0].distance, pairs[0].gradients_agree) if m.is_open else m for m in maps]
        if len(maps) > 1:
            maps = sorted(maps, key=lambda tried: max(AGREES, pairs[0].distance(tried)))
        return [replace(pair, map=maps[0]) for pair in pairs]

    pairs, unsure = _place_in([layout] if layout else first.layouts, place)
    port, found = pairs[0].port, pairs[0].map
    pairs = [pair.with_buffers_of_jax() if pair.train else pair for pair in pairs]
    measured: list[Measurement] = []
    for pair in pairs:
        measured += [m for dtype in dtypes for m in pair.compiled(dtype)]
    measured += pairs[0].without_jit(measured) if "float64" in dtypes else []
    weak = [*find_constant(pairs[0].case.variants[0])]
    if all(dtype.endswith("16") for dtype in dtypes):
        wide = pairs[0].in_float64()
        measured += wide
        weak += [] if wide else ["16 bits alone do not show a wrong epsilon, or GELU approximated by tanh"]
    if not any(m.failed for m in measured):
        unread, hidden = on_other_numbers(pairs[0].case, measured)
        measured, weak = measured + unread, weak + hidden
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
            divergence = find_divergence(parted.case, dtype=failed[0].run_dtype, beside=beside)
            if parted.narrow_inside(failed) and not any(m.failed for pair in pairs for m in pair.with_float32_inside()):
                note = f"{parted.narrow_inside(failed)}; with inside='float32' the two agree"
        except Exception as error:
            trouble = _in_one_line(error)
    notes = [*([unsure] if unsure and failed else []), *_trained_otherwise(first, port, found)]
    if recorded is None:
        held = nnx.iter_graph(jax_module) if port.kind in ("nnx", "equinox") else ()
        notes += pairs[0].trained_in_jax()
        notes += _dropout_differs(torch_module, [*dropout, *(part for _, part in held)])
    for pair in pairs:
        forget_programs_of(pair.case)
    return Report(
        *(first.name, port, found, tuple(measured), divergence, note, pairs[0].case),
        trouble=trouble,
        compiled=compiled,
        dtypes_differ=_differing_dtypes(first, port),
        notes=tuple(notes),
        weak=tuple(weak),
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
    for name, uses in found.uses.items():
        if not is_buffer[name] and uses.min(initial=2) > 1 and len(paths.get(name, ())) > 1:
            yield f"{name} is one weight in PyTorch, and JAX trains {' and '.join(paths[name])} apart"


RATES = ("p", "rate", "dropout", "dropout_rate")
"""The fields in which modules of the libraries keep the rate of their dropout."""


def _collect(modules: list[Any], next_function: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Remember a module of Linen that is called."""
    modules.append(context.module)
    return next_function(*args, **kwargs)


def _dropout_differs(torch_module: Any, in_jax: list[Any]) -> Iterator[str]:
    """Say which rates dropout has, where the modules of both sides have it and the rates are others."""
    in_torch = torch_module.modules() if hasattr(torch_module, "modules") else []
    found = [
        {
            float(rate)
            for module in modules
            if re.search("Dropout|Attention|RNN|LSTM|GRU", type(module).__name__)
            for rate in (getattr(module, field, None) for field in RATES)
            if isinstance(rate, int | float) and not isinstance(rate, bool)
        }
        for modules in (in_torch, in_jax)
    ]
    a, b = (", ".join(f"{rate:g}" for rate in sorted(rates - {0.0})) or "0" for rates in found)
    if all(found) and a != b:
        yield f"dropout is {a} in PyTorch and {b} in JAX, and both ran without it"


def _place_in(layouts: Sequence[Layouts], place: Callable[[Layouts], list["_Pair"]]) -> tuple[list["_Pair"], str]:
    """Put the weights into place in the layout that fits, of several the nearest; and say if none of these agrees.

    Raises:
        Exception: none fits; that of the first.
    """
    fitting: list[list[_Pair]] = []
    errors: list[Exception] = []
    for layout in layouts:
        try:
            fitting.append(place(layout))
        except Exception as error:  # whatever a module raises that is given the wrong layout
            errors.append(error)
    if not fitting:
        raise errors[0]

    def distance(pairs: list[_Pair]) -> float:
        try:
            return pairs[0].distance(pairs[0].map)
        except Exception:  # a callback raises only when it runs
            return np.inf

    distances = list(map(distance, fitting)) if len(fitting) > 1 else [0.0]
    nearest = fitting[int(np.argmin(distances))]
    for pairs in fitting:
        if pairs is not nearest:
            forget_programs_of(pairs[0].case)
    if min(distances) < AGREES or fitting[0][0].draft.layouts:  # it does not run as in PyTorch
        return nearest, ""
    taken = dict(nearest[0].draft.layouts) or {"*": "as it is"}
    return nearest, f"channels fit first and last in JAX, and neither agrees: give layout= ({taken} was taken)"


PLACED = "placed"
"""Among PyTorch's weights by name: JAX's by path, those that were put into place before the run."""


def _check_arguments(
    torch_module: Any, jax_module: Any, dtypes: Sequence[str] | None, inside: str, bound: float | None
) -> None:
    torch_first = callable(torch_module) or isinstance(torch_module, str | Path)
    if not torch_first or type(jax_module).__module__.startswith("torch."):
        raise TypeError(f"torch_module comes first and jax_module second; got {type(torch_module).__name__} first")
    if dtypes is not None and (not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES)):
        raise ValueError(f"dtypes must be some of {DTYPES}; got {dtypes!r}")
    if bound is not None and not 0 <= bound < 1:
        raise ValueError(f"bound must be a relative error, from 0 to below 1; got {bound}")
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

    def with_buffers_of_jax(self) -> "_Pair":
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

"""A run of PyTorch that another tool has dumped, as PyTorch's side: a folder with a file for each module's output.

| who writes it | a name there | what it is |
|---|---|---|
| anyone | `model.layers.0.mlp` | the output of this module |
| `model_addition_debugger_context` of transformers, with `use_repr=False` | `Llama.model.layers.0_outputs` | the same |
| the dumper of SGLang | `forward_pass_id=1___rank=0___name=layers.0___dump_index=3` | that of layers.0 |
| the forward hooks of SGLang | `Pass00000.pt`, a dict by module | their outputs |

Inputs of modules are left out. Where a module returns several tensors, those of the same name or number are compared,
and where the names say nothing, the first of each side.

A dump does not say how much rounding matters in PyTorch. So the port says it: it runs in float64, which is the truth,
and in the dump's dtype, where its own error is e. The dump is then judged as a run of JAX otherwise is (see
`measure.judge`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.cause.symptoms import describe
from parity_tests.your_port.checkpoint import NO_WEIGHTS
from parity_tests.your_port.divergence import Divergence
from parity_tests.your_port.golden import HEADER
from parity_tests.your_port.measure.arrays import flatten, is_floating, plain, to_numpy
from parity_tests.your_port.measure.case import Case, JaxSide, TorchSide, Variant
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.measure.judge import Judge, Measurement
from parity_tests.your_port.measure.numbers import Run
from parity_tests.your_port.measure.taps import Tensor, recording
from parity_tests.your_port.measure.width import enable_x64, own_tables
from parity_tests.your_port.place.pairing import align, match_names, parts_of
from parity_tests.your_port.record import Findings, Record
from parity_tests.your_port.stored import Tensors, open_tensors
from parity_tests.your_port.weights.adapters import JaxProgram, make_port
from parity_tests.your_port.weights.layouts import Layouts, wanted_layout
from parity_tests.your_port.weights.match import Names, match_weights
from parity_tests.your_port.weights.original import Inputs, Weight, read_inputs, to_jax_layout, to_torch_layout
from parity_tests.your_port.weights.weight_map import Leaf, WeightMap, match_paths

FORMS = (
    r"(?:.*___)?name=(?P<module>.+?)(?:___.*)?",
    r"(?P<module>[A-Z].*?)_(?P<kind>inputs|outputs)(?:_(?P<part>.+))?",
    r"(?P<module>.+)\[(?P<part>[\d.]+)\]",
    r"(?P<module>.+)",
)
"""The forms of names; the first that fits the whole name is taken."""
SHARED = {"rank": r"(?<![a-z])rank=(\d+)", "forward pass": r"forward_pass_id=(\d+)"}
"""What all tensors of a dump must have in common."""
DTYPES = ("float16", "bfloat16", "float32", "float64")
"""Those in which a port can run, the narrowest first."""
Outputs = Mapping[str, Mapping[str, Sequence[np.ndarray]]]
"""What each module returned, by the names of its parts, call by call; a single tensor has the name ""."""
RESULT = "result"
"""What the model as a whole returns."""
SHOWN = 3


@dataclass(frozen=True)
class DumpReport(Findings):
    """What was found of a dump."""

    name: str
    measurements: tuple[Measurement, ...]
    """Of the dump's tensors, in the order in which the port computes them."""
    divergence: Divergence | None = None
    """The first tensor that differs."""
    unpaired: tuple[str, ...] = ()
    """The dump's tensors that are none of JAX's, or no floating numbers."""
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> Record:
        """Everything that was found, for other programs."""
        return replace(super().record, divergence=self.divergence)

    def _lines(self) -> Iterator[str]:
        failed, count = self.failed, len(self.measurements)
        verdict = f"DIFFERS in {len(failed)} of {count} tensors" if failed else "agrees"
        yield f"{self.name} {verdict} ({count} tensors of the dump, {self.measurements[0].dtype})"
        worst = max(self.measurements, key=lambda m: m.share)
        yield f"  worst: {worst.tensor}: {worst.difference}"
        if self.divergence is not None:
            yield from (f"  {line}" for line in self.divergence.lines())
        if self.unpaired:
            more = " …" * (len(self.unpaired) > SHOWN)
            yield f"  left over in the dump: {', '.join(self.unpaired[:SHOWN])}{more}"
        yield from (f"  note: {note}" for note in self.notes)


def is_dump(source: Any) -> bool:
    """Whether it is a folder that another tool has written."""
    return isinstance(source, str | Path) and Path(source).is_dir() and not (Path(source) / HEADER).exists()


@own_tables(has_tables=True)
def compare_dump(
    torch_module: str | Path,
    jax_module: Any,
    inputs: Any,
    *,
    weights: Any = None,
    names: Names | None = None,
    layout: Layouts | None = None,
    jax_call: Any = None,
    variables: Any = None,
    name: str = "",
) -> DumpReport:
    """Compare a dumped run of PyTorch with a port; for the arguments see `compare`.

    Args:
        torch_module: the folder of the dump.
        weights: PyTorch's: a file or folder (see `stored`), or a state dict. By default the port keeps its own.

    Raises:
        OSError, ValueError: the dump or the weights cannot be read, are of several ranks, or fit nothing in the port.
    """
    outputs, others = read_dump(Path(torch_module))
    layouts = dict(layout or {})
    given = read_inputs(inputs, jax_module)
    read = {} if weights is None else _weights_in(weights)
    leaves = {name: Leaf(x.shape) for name, x in read.items()}  # of a function, which takes them under their names
    program = _Program(make_port(jax_module, jax_call, variables, given, layouts, leaves), given, layouts)
    counts = Counter(str(x.dtype) for parts in outputs.values() for calls in parts.values() for x in calls)
    dtype = next(d for d in DTYPES if d in counts)
    notes, paths = list[str](), dict[str, str]()
    if counts[dtype] < counts.total():
        notes.append(f"{counts[dtype]} of {counts.total()} tensors of the dump are {dtype}, and all are judged by it")
    if weights is None:
        placed = program.own_weights(variables)
        notes.append("the port ran with its own weights: give weights= if the dump's may be others")
    else:
        described, found = program.place(read, names, outputs)
        placed, paths = found.place({w.name: x for w, x in described.items()}), match_paths(list(described), found)
    truth, narrow = (program.run(placed, d) for d in ("float64", dtype))
    pairs = _pair(outputs, truth, narrow, paths, layouts)
    if not pairs:
        sides = (", ".join(list(dict.fromkeys(side))[:5]) for side in (outputs, (x.of for x in truth)))
        raise ValueError(
            "no tensor of the dump is one of the port's: the dump has {} …; the port has {} …".format(*sides)
        )
    called = name or type(jax_module).__name__
    case = Case(called, (), TorchSide(lambda *_: None), JaxSide(lambda *_: None))
    judge = Judge(case, Variant("dump", {}), dtype, Run({}), ("PyTorch", "JAX"))
    # Tools may write a tensor in another dtype than it was computed in.
    measured = [judge.measure(x.name, x.dumped.astype(x.narrow.dtype), x.narrow, x.truth) for x in pairs]
    used = {own for pair in pairs for own in pair.dumped_as}
    left = [_label(module, part) for module in outputs for part in outputs[module] if (module, part) not in used]
    report = DumpReport(called, tuple(measured), unpaired=(*left, *others), notes=tuple(notes))
    first = next((number for number, m in enumerate(measured) if m.failed), None)
    if first is None:
        for pair in pairs:
            if np.isnan(pair.dumped).all():
                reason = "NaN everywhere on both sides" if pair.dumped.size else "empty"
                raise ValueError(f"{pair.name} is {reason}, so nothing can be compared: choose other inputs or weights")
        return report
    symptoms = describe(pairs[first].truth, pairs[first].dumped) if dtype in ("float32", "float64") else ()
    agreed = tuple(m.tensor for m in measured[:first])
    divergence = Divergence(**vars(measured[first]), agreed=agreed, symptoms=symptoms, found=None)
    return replace(report, divergence=divergence)


def _weights_in(source: Any) -> Tensors:
    """List the floating tensors of a checkpoint, without the states of optimisers."""
    tensors = open_tensors(source).items()
    return {name: x for name, x in tensors if is_floating(x) and name.partition(".")[0] not in NO_WEIGHTS}


def _label(module: str, part: str) -> str:
    return f"{module}.{part}" if part else module


def read_dump(folder: Path) -> tuple[Outputs, list[str]]:
    """Read the modules' outputs, and the names of those that are no floating numbers of a width that JAX computes in.

    Raises:
        OSError, ValueError: a file cannot be read, or the dump is of several ranks or passes.
    """
    tensors, others = open_tensors(folder), list[str]()
    found = defaultdict[str, dict[str, list[np.ndarray]]](dict)
    for what, pattern in SHARED.items():
        if len(several := {match[1] for name in tensors if (match := re.search(pattern, name))}) > 1:
            raise ValueError(
                f"{folder} holds more than one {what} ({', '.join(sorted(several))}): give a folder of one"
            )
    for name, tensor in sorted(tensors.items(), key=lambda item: _place(item[0])):
        form = next(match for pattern in FORMS if (match := re.fullmatch(pattern, name, re.DOTALL)))
        said = form.groupdict()
        if said.get("kind") == "inputs":
            continue
        if str(tensor.dtype) not in DTYPES:
            others.append(name)
            continue
        module = said["module"]
        if said.get("kind"):  # transformers' names begin with the class of the model
            module = re.sub(r"^[A-Z]\w*(\.|$)", "", module)
        found[module or RESULT].setdefault(re.sub(r"\W", "_", said.get("part") or ""), []).append(tensor.read())
    if not found:
        raise ValueError(f"{folder} holds no outputs of modules in {', '.join(DTYPES)}")
    return found, others


def _place(name: str) -> int:
    """Return the place of a tensor among those of SGLang's dumper, which may write a name several times."""
    found = re.search(r"dump_index=(\d+)", name)
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class _Program:
    """The port with its inputs."""

    port: JaxProgram
    inputs: Inputs
    layouts: Layouts

    def own_weights(self, variables: Any) -> dict[str, Any]:
        """Return the weights that it has."""
        model = self.port.model
        held = {"linen": getattr(model, "params", variables), "function": variables}.get(self.port.kind, model)
        read = {} if held is None else self.port.read(held)
        missing = [path for path in self.port.leaves if isinstance(read.get(path), jax.ShapeDtypeStruct | None)]
        if missing:
            raise ValueError(f"the port has no numbers for {', '.join(missing[:SHOWN])}: give weights=")
        return {path: read[path] for path in self.port.leaves}

    def place(
        self, weights: Tensors, names: Names | None, outputs: Outputs
    ) -> tuple[dict[Weight, np.ndarray], WeightMap]:
        """Put PyTorch's weights into place; where shapes leave it open, in the way that is nearest to the dump."""
        described = {
            Weight(name, x.shape, name, "unknown", "running_" in name): x.read().astype(np.float64)
            for name, x in weights.items()
        }
        values = {weight.name: x for weight, x in described.items()}
        found = match_weights(list(described), self.port.leaves, self.port.role, names, self.layouts)

        def distance(tried: WeightMap) -> float:
            truth = self.run(tried.place(values), "float64")
            pairs = _pair(outputs, truth, truth, match_paths(list(described), tried), self.layouts)
            return float(np.mean([min(1.0, relative_error(pair.dumped, pair.truth)) for pair in pairs] or [1.0]))

        return described, found.choose(distance)

    def run(self, placed: Mapping[str, Any], dtype: str) -> list[Tensor]:
        """Run it operation by operation; return all its tensors in order, the results last."""

        def cast(x: Any) -> Any:
            return jnp.asarray(np.asarray(x).astype(jnp.dtype(dtype))) if is_floating(x) else jnp.asarray(x)

        with enable_x64(dtype == "float64"), recording() as trace:
            arrays = jax.tree.map(cast, to_jax_layout(self.inputs.arrays, self.layouts))
            weights = {path: cast(x) for path, x in placed.items()}
            results, _ = self.port.run(weights, self.inputs.as_arguments(arrays), jnp.dtype(dtype), False)
            leaves = flatten(to_torch_layout(plain(results), self.layouts))[0]
        outputs = {part: x for part, x in leaves.items() if x is not None and is_floating(x)}
        return [
            *trace,
            *(Tensor(RESULT, False, part if len(outputs) > 1 else "", (), to_numpy(x)) for part, x in outputs.items()),
        ]


@dataclass(frozen=True)
class _Pair:
    """A tensor of the dump, in the form of the port's own."""

    dumped_as: Sequence[tuple[str, str]]
    """The modules and parts that it is in the dump: several, where JAX computes a stack of layers at once."""
    name: str
    dumped: np.ndarray
    narrow: np.ndarray
    truth: np.ndarray


def _pair(
    outputs: Outputs,
    truth: Sequence[Tensor],
    narrow: Sequence[Tensor],
    paths: Mapping[str, str],
    layouts: Layouts,
) -> list[_Pair]:
    """Find which tensors of the port are those of the dump, in the order in which the port computes them."""
    in_jax = list(dict.fromkeys(x.of for x in truth if not x.is_input))
    names = {RESULT: [RESULT]} | match_names([name for name in in_jax if name != RESULT], list(outputs), paths)
    found = list[tuple[int, _Pair]]()
    for name in in_jax:
        others = [other for other in names.get(name, ()) if other in outputs]
        runs = [parts_of([x for x in run if not x.is_input], [name]) for run in (truth, narrow)]
        for (part, chosen), calls, again in zip(_parts(others, outputs, runs[0]), *runs, strict=False):
            if not chosen or len(calls) != len(again):
                continue
            wish = wanted_layout(layouts, name, *others)
            whose = [(other, key) for other, key in zip(others, chosen, strict=True) for _ in outputs[other][key]]
            theirs = [x for other, key in zip(others, chosen, strict=True) for x in outputs[other][key]]
            dumped = align(theirs, [x.value for x in calls], wish)
            for number, (x, y, z) in enumerate(zip(dumped, again, calls, strict=False)):
                label = part if len(dumped) == 1 else f"{part}[{number}]"
                own = [whose[number]] if len(whose) == len(dumped) else whose
                found.append((truth.index(z), _Pair(own, label, x, y.value, z.value)))
    return [pair for _, pair in sorted(found, key=lambda item: item[0])]


def _parts(
    others: Sequence[str], outputs: Outputs, in_jax: Sequence[Sequence[Tensor]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each tensor that a module of JAX returns, and what part it is of each of the dump's modules."""
    parts = [re.sub(r"\W", "_", calls[0].part) for calls in in_jax]  # transformers joins names in this way
    named = any(part in outputs[other] for part in parts for other in others)
    for number, (part, calls) in enumerate(zip(parts, in_jax, strict=True)):
        first, chosen = number == 0, list[str]()
        if all(part in outputs[other] for other in others):
            chosen = [part] * len(others)
        elif first and not named:
            chosen = [next(iter(outputs[other])) for other in others]
        yield calls[0].of if first else calls[0].name, chosen

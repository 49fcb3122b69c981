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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
from parity_tests.your_port.weights.given_names import Names
from parity_tests.your_port.weights.layouts import Layouts, wanted_layout
from parity_tests.your_port.weights.match import match_weights
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
        weights: PyTorch's: a file or folder of those that docs/parity.md lists, or a state dict. By default the port
            keeps its own.

    Raises:
        OSError, ValueError: the dump or the weights cannot be read, are of several ranks, or fit nothing in the port.
    """
    dump, others = read_dump(Path(torch_module))
    layouts = dict(layout or {})
    given = read_inputs(inputs, jax_module)
    read = {} if weights is None else _weights_in(weights)
    leaves = {name: Leaf(x.shape) for name, x in read.items()}  # of a function, which takes them under their names
    program = _Program(make_port(jax_module, jax_call, variables, given, layouts, leaves), given, layouts)
    counts = Counter(str(x.value.dtype) for x in dump)
    dtype = next(d for d in DTYPES if d in counts)
    notes, paths = list[str](), dict[str, str]()
    if counts[dtype] < counts.total():
        notes.append(f"{counts[dtype]} of {counts.total()} tensors of the dump are {dtype}, and all are judged by it")
    if weights is None:
        placed = program.own_weights()
        notes.append("the port ran with its own weights: give weights= if the dump's may be others")
    else:
        described, found = program.place(read, names, dump)
        placed, paths = found.place({w.name: x for w, x in described.items()}), match_paths(list(described), found)
    truth, narrow = (program.run(placed, d) for d in ("float64", dtype))
    pairs = _pair(dump, truth, narrow, paths, layouts)
    if not pairs:
        sides = (", ".join(list(dict.fromkeys(x.of for x in side))[:5]) for side in (dump, truth))
        raise ValueError(
            "no tensor of the dump is one of the port's: the dump has {} …; the port has {} …".format(*sides)
        )
    called = name or type(jax_module).__name__
    case = Case(called, (), TorchSide(lambda *_: None), JaxSide(lambda *_: None))
    judge = Judge(case, Variant("dump", {}), dtype, Run({}), ("PyTorch", "JAX"))
    # Tools may write a tensor in another dtype than it was computed in.
    measured = [judge.measure(x.name, x.dumped.astype(x.narrow.dtype), x.narrow, x.truth) for x in pairs]
    used = {x for pair in pairs for x in pair.made_of}
    left = dict.fromkeys(x.name for x in dump if x not in used)
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


def read_dump(folder: Path) -> tuple[list[Tensor], list[str]]:
    """Read the modules' outputs, and the names of those that are no floating numbers of a width that JAX computes in.

    Raises:
        OSError, ValueError: a file cannot be read, or the dump is of several ranks or passes.
    """
    tensors, found, others = open_tensors(folder), list[Tensor](), list[str]()
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
        found.append(Tensor(module or RESULT, False, _plain(said.get("part") or ""), (), tensor.read()))
    if not found:
        raise ValueError(f"{folder} holds no outputs of modules in {', '.join(DTYPES)}")
    return found, others


def _plain(part: str) -> str:
    """Write the name of a part as transformers does it in the names of files."""
    return re.sub(r"\W", "_", part)


def _place(name: str) -> tuple[int, list[str | int]]:
    """Return the place of a tensor in its dump: the dumper of SGLang counts them, and layer 10 is behind layer 2."""
    found = re.search(r"dump_index=(\d+)", name)
    return int(found[1]) if found else 0, [int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class _Program:
    """The port with its inputs."""

    port: JaxProgram
    inputs: Inputs
    layouts: Layouts

    def own_weights(self) -> dict[str, Any]:
        """Return the weights that it has."""
        values = self.port.values
        missing = [path for path in self.port.leaves if isinstance(values.get(path), jax.ShapeDtypeStruct | None)]
        if missing:
            raise ValueError(f"the port has no numbers for {', '.join(missing[:SHOWN])}: give weights=")
        return {path: values[path] for path in self.port.leaves}

    def place(
        self, weights: Tensors, names: Names | None, dump: Sequence[Tensor]
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
            pairs = _pair(dump, truth, truth, match_paths(list(described), tried), self.layouts)
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

    made_of: Sequence[Tensor]
    """What it is in the dump: several tensors, where JAX computes a stack of layers or several calls at once."""
    name: str
    dumped: np.ndarray
    narrow: np.ndarray
    truth: np.ndarray


def _pair(
    dump: Sequence[Tensor],
    truth: Sequence[Tensor],
    narrow: Sequence[Tensor],
    paths: Mapping[str, str],
    layouts: Layouts,
) -> list[_Pair]:
    """Find which tensors of the port are those of the dump, in the order in which the port computes them."""
    in_jax, in_dump = (list(dict.fromkeys(x.of for x in side if not x.is_input)) for side in (truth, dump))
    ours = [name for name in in_jax if name != RESULT]
    known = _names_in_dump(paths or {name: name for name in ours}, in_dump)
    names = {RESULT: [RESULT]} | match_names(ours, in_dump, known)
    found = list[tuple[int, _Pair]]()
    for name in in_jax:
        wish = wanted_layout(layouts, name, *names.get(name, ()))
        theirs = [x for x in dump if x.of in names.get(name, ())]
        runs = [parts_of([x for x in run if not x.is_input], [name]) for run in (truth, narrow)]
        are_named = {x.part for x in theirs} & {_plain(calls[0].part) for calls in runs[0]}
        for number, (calls, again) in enumerate(zip(*runs, strict=False)):
            made_of = [x for x in theirs if x.part == _plain(calls[0].part)]
            if number == 0 and not are_named:
                first = {x.of: x.part for x in reversed(theirs)}
                made_of = [x for x in theirs if x.part == first[x.of]]
            dumped = align([x.value for x in made_of], [x.value for x in calls], wish)
            if len(dumped) != len(again):
                continue
            label = calls[0].of if number == 0 else calls[0].name
            for call, (x, y, z) in enumerate(zip(dumped, again, calls, strict=True)):
                called = label if len(dumped) == 1 else f"{label}[{call}]"
                found.append((truth.index(z), _Pair(made_of, called, x, y.value, z.value)))
    return [pair for _, pair in sorted(found, key=lambda item: item[0])]


def _names_in_dump(names: Mapping[str, str], in_dump: Sequence[str]) -> dict[str, str]:
    """Change the names of modules as the dump has them, if these have a prefix more or less, such as `model.`."""
    dots = ((name, dot) for name in (*names.values(), *in_dump) for dot in islice(re.finditer(r"\.", name), 2))
    prefixes = sorted({name[: dot.end()] for name, dot in dots})
    changes = [("", ""), *((prefix, "") for prefix in prefixes), *(("", prefix) for prefix in prefixes)]
    changed = [{key: new + name.removeprefix(old) for key, name in names.items()} for old, new in changes]
    return max(changed, key=lambda names: len({*names.values()} & {*in_dump}))

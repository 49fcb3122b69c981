"""Hold a port against a file in place of PyTorch, on a machine that has none. This module imports no torch.

    python -m parity_tests.your_port.dump model.py:build --out torch.npz       # where PyTorch is
    compare("torch.npz", jax_module)                                 # where JAX is

The file is an .npz without pickles: arrays, and one text in JSON with the versions, the seeds and a digest of all the
rest, which is checked before anything is used. It holds the inputs, weights and buffers of every draw, and of every run
the outputs, the gradients and the intermediate tensors.
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.case import Case, JaxSide, TorchSide, name_of_draw
from parity_tests.your_port.measure.numbers import Numbers, Run
from parity_tests.your_port.measure.tree import flatten
from parity_tests.your_port.place.taps import Trace
from parity_tests.your_port.weights.original import Inputs, Original, Weight

FORMAT = 1
"""The version of the file's form: larger where an older reader would misread it."""
REMEDY = "write it again: python -m parity_tests.your_port.dump"


class GoldenError(ValueError):
    """A file that is damaged, cut short, newer, or no golden file."""


@dataclass(frozen=True)
class Golden:
    """PyTorch's side of a comparison as it was recorded."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def case(self, jax_side: JaxSide) -> Case:
        """Make the case in which a JAX side is held against the record."""
        case = self.original.case()
        variant = replace(case.variants[0], dtypes=tuple(self.header["draws"]))
        return replace(case, variants=(variant,), jax=jax_side)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name, floats in float64."""
        return _nested(self.header["structure"], self._group("inputs/"))

    @property
    def original(self) -> Original:
        """PyTorch's side, as `compare` takes it."""
        inputs = Inputs(self.inputs, tuple(self.header["positional"]), self.header["others"])
        weights = tuple(Weight(**{name: _tuples(x) for name, x in w.items()}) for w in self.header["weights"])
        return Original(self.header["case"], TorchSide(_cannot_run, golden=self), inputs, weights)

    def draws(self, dtype: str) -> int:
        """Return how many draws there are in a dtype."""
        return self.header["draws"].get(dtype, 0)

    def numbers(self, variant: str, dtype: str) -> Numbers:
        """Return what both sides are given in a draw."""
        given = {part: self._group(f"{variant}/{dtype}/{part}/") for part in ("inputs", "weights", "buffers")}
        directions = self._group(f"{variant}/{dtype}/directions/")
        flat, rebuild = flatten(self.inputs)
        inputs = {name: given["inputs"].get(name) for name in flat}
        moved = tuple(self.header["differentiated"])
        return Numbers(
            inputs, rebuild, given["weights"], moved, lambda name, _: directions[name], buffers=given["buffers"]
        )

    def run(self, variant: str, of: str, dtype: str) -> Run:
        """Return PyTorch's run in `dtype` on numbers rounded to the dtype `of`."""
        key = f"{variant}/{of}/{dtype}"
        facts = self.header["runs"][key]
        tensors = dict.fromkeys(facts["names"]) | self._group(f"{key}/tensors/")
        events = [(name, call) for name, call in facts["trace"]["events"]]  # JSON has no tuples
        trace = Trace(**{**facts["trace"], "events": events})
        for part in ("tensors", "gradients"):
            for name, x in self._group(f"{key}/trace/{part}/").items():
                getattr(trace, part).setdefault(name.rpartition("@")[0], []).append(x)
        return Run({name: tensors[name] for name in facts["names"]}, trace=trace, **_frozen(facts["rest"]))

    def _group(self, prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}


def _cannot_run(*_: Any) -> Any:
    raise GoldenError("PyTorch's side is a record here: it cannot run on other inputs")


class Recorder:
    """Collects what a golden file holds."""

    def __init__(self, original: Original, variant: str, facts: Mapping[str, Any]) -> None:
        inputs = original.inputs
        called = {"structure": _structure(inputs.arrays), "positional": inputs.positional, "others": inputs.others}
        weights = [asdict(weight) for weight in original.weights]
        self.header = {**facts, "case": original.name, "variant": variant, **called, "weights": weights}
        self.header |= {"draws": {}, "runs": {}}
        self.arrays: dict[str, np.ndarray] = {}
        self._put("inputs/", flatten(dict(inputs.arrays))[0])

    def add_numbers(self, draw: int, dtype: str, numbers: Numbers, like: Run) -> None:
        """Add what both sides are given in a draw."""
        prefix = f"{name_of_draw(self.header['variant'], draw)}/{dtype}/"
        parts = {part: getattr(numbers, part) for part in ("inputs", "weights", "buffers")}
        for part, arrays in {**parts, "directions": numbers.directions(like)}.items():
            self._put(f"{prefix}{part}/", arrays)
        self.header["differentiated"] = list(numbers.differentiated)
        self.header["draws"][dtype] = draw + 1

    def add_run(self, draw: int, of: str, dtype: str, run: Run) -> None:
        """Add a run in `dtype` on numbers rounded to the dtype `of`, with its intermediate tensors."""
        key = f"{name_of_draw(self.header['variant'], draw)}/{of}/{dtype}"
        trace = run.trace or Trace()
        self._put(f"{key}/tensors/", run.tensors)
        for part in ("tensors", "gradients"):
            calls = {f"{name}@{i}": x for name, xs in getattr(trace, part).items() for i, x in enumerate(xs)}
            self._put(f"{key}/trace/{part}/", calls)
        facts = {f.name: getattr(trace, f.name) for f in fields(Trace) if f.name not in ("tensors", "gradients")}
        rest = {f.name: getattr(run, f.name) for f in fields(Run) if f.name not in ("tensors", "trace")}
        names = list(run.tensors)
        self.header["runs"][key] = {"names": names, "trace": facts, "rest": _plain(rest)}

    def write(self, path: Path) -> None:
        """Write the file; bfloat16, which NumPy cannot write, as its bits."""
        narrow = [name for name, x in self.arrays.items() if x.dtype == jnp.bfloat16]
        plain = {f"x/{name}": x.view(np.uint16) if name in narrow else x for name, x in self.arrays.items()}
        text = json.dumps({**self.header, "format": FORMAT, "bfloat16": narrow})
        with open(path, "xb") as file:
            np.savez(file, header=np.array(text), digest=np.array(_digest(text, plain)), allow_pickle=False, **plain)

    def _put(self, prefix: str, arrays: Mapping[str, Any]) -> None:
        self.arrays |= {prefix + name: np.asarray(x) for name, x in arrays.items() if x is not None}


def load_golden(path: str | Path) -> Golden:
    """Read a golden file, and check its format and its digest.

    Raises:
        FileNotFoundError: there is no such file.
        GoldenError: the file is no golden file, is damaged or cut short, or was written by a newer version.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            text = str(file["header"])
            header = json.loads(text)
            newer = header["format"] > FORMAT
            arrays = {} if newer else {name: file[name] for name in file.files if name.startswith("x/")}
            whole = newer or str(file["digest"]) == _digest(text, arrays)
    except FileNotFoundError:
        raise
    except (
        OSError,
        EOFError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise GoldenError(f"{path} is damaged, cut short, or no golden file ({error}); {REMEDY}") from error
    if newer:
        written = f"format {header['format']}, by {header.get('versions')}; this package reads up to {FORMAT}"
        raise GoldenError(f"{path} is newer than this package: {written}. Update this package, or {REMEDY}")
    if not whole:
        raise GoldenError(f"{path} is damaged: its numbers do not have its digest; {REMEDY}")
    arrays = {name.removeprefix("x/"): x for name, x in arrays.items()}
    return Golden(header, arrays | {name: arrays[name].view(jnp.bfloat16) for name in header["bfloat16"]})


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    seen = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        x = np.ascontiguousarray(arrays[name])
        seen.update(f"{name} {x.dtype.str} {arrays[name].shape}".encode() + x.tobytes())
    return seen.hexdigest()


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sorted(x) if isinstance(x, frozenset) else x for name, x in facts.items()}


def _frozen(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: frozenset(x) if isinstance(x, list) else x for name, x in facts.items()}


def _tuples(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def _structure(tree: Any, name: str = "") -> Any:
    """Describe nested arguments by names in mappings and lists, which JSON can hold."""
    if isinstance(tree, Mapping):
        return {key: _structure(x, f"{name}.{key}" if name else key) for key, x in tree.items()}
    if isinstance(tree, list | tuple):
        return [_structure(x, f"{name}.{i}") for i, x in enumerate(tree)]
    return None if tree is None else name


def _nested(structure: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(structure, dict):
        return {key: _nested(x, arrays) for key, x in structure.items()}
    if isinstance(structure, list):
        return tuple(_nested(x, arrays) for x in structure)
    return None if structure is None else arrays[structure]

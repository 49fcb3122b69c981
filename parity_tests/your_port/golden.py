"""Hold a port against a file in place of PyTorch, on a machine that has none. This module imports no torch.

    python -m parity_tests.your_port.dump model.py:build --out torch.npz       # where PyTorch is
    compare("torch.npz", jax_module)                                 # where JAX is

The file is an .npz without pickles: arrays, and one text in JSON with the versions and the seeds. It holds the inputs,
weights and buffers of every draw, and of every run the outputs, the gradients and the intermediate tensors. A large
model is a folder: the same text, and a file for each array, which is read when it is needed.
"""

import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import flatten
from parity_tests.your_port.measure.case import Case, JaxSide, TorchSide
from parity_tests.your_port.measure.numbers import Numbers, Run
from parity_tests.your_port.measure.taps import Tensor
from parity_tests.your_port.weights.original import Inputs, Original, Weight

FORMAT = 7
"""The version of the file's form: another where a reader would misread it."""
ARRAY = "name of an array"
"""The key of what stands instead of an array in the file's text."""
REMEDY = "write it again: python -m parity_tests.your_port.dump"


class GoldenError(ValueError):
    """A file that is damaged, cut short, of another format, or no golden file."""


@dataclass(frozen=True)
class Golden:
    """PyTorch's side of a comparison as it was recorded."""

    header: dict[str, Any]
    """What `dump` has recorded."""

    def case(self, jax_side: JaxSide) -> Case:
        """Make the case in which a JAX side is held against the record."""
        case = self.original.case()
        variant = replace(case.variants[0], dtypes=self.dtypes)
        return replace(case, variants=(variant,), jax=jax_side)

    @property
    def original(self) -> Original:
        """PyTorch's side, as `compare` takes it."""
        weights = tuple(Weight(**weight) for weight in self.header["weights"])
        side, inputs = TorchSide(_cannot_run, golden=self), Inputs(**self.header["inputs"])
        return Original(self.header["case"], side, inputs, weights, integers=self.header.get("integers", {}))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in which PyTorch ran, besides the truth."""
        return tuple(self.header["numbers"])

    def _given(self, dtype: str) -> Mapping[str, Any]:
        if dtype not in self.header["numbers"]:
            raise GoldenError(f"the file has no run in {dtype}: write it again, or pass other dtypes")
        return self.header["numbers"][dtype]

    def draws(self, dtype: str) -> int:
        """Return how many draws there are in a dtype."""
        return len(self._given(dtype))

    def numbers(self, variant: str, dtype: str) -> Numbers:
        """Return what both sides are given in a draw."""
        given, (_, rebuild) = {**self._given(dtype)[variant]}, flatten(dict(self.original.inputs.arrays))
        directions = given.pop("directions")
        return Numbers(rebuild=rebuild, direction=lambda name, _: directions[name], **given)

    def run(self, variant: str, of: str, dtype: str, record: bool) -> Run:
        """Return PyTorch's run in `dtype` on numbers rounded to the dtype `of`; float64 is the truth's dtype.

        It always has what was recorded.
        """
        facts = self.header["runs"][of][self.header.get("truth", dtype) if dtype == "float64" else dtype][variant]
        return Run(**{**facts, "trace": [Tensor(**x) for x in facts["trace"]]})


def _cannot_run(*_: Any) -> Any:
    raise GoldenError("PyTorch's side is a record here: it cannot run on other inputs")


def _pack(value: Any, store: Callable[[np.ndarray, str], str], name: str = "") -> Any:
    """Describe nested values and records in what JSON can hold; `store` takes an array and returns its name.

    Raises:
        ValueError: there is a value among the inputs that JSON would change, such as a complex number.
    """
    if isinstance(value, np.ndarray | np.generic):
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        return {ARRAY: store(array, name), "bfloat16": value.dtype == jnp.bfloat16}
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _pack(part, store, f"{name}/{key}") for key, part in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_pack(part, store, name) for part in (sorted(value) if isinstance(value, frozenset) else value)]
    if not isinstance(value, str | int | float | None):
        raise ValueError(
            f"{name[1:]} is {value!r:.80}, which JSON cannot hold: let the module that `build` returns hold it"
        )
    return value


def _writable(array: np.ndarray) -> np.ndarray:
    """Return the bits of a bfloat16 array, which NumPy cannot write; any other as it is."""
    return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array


def _unpack(packed: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return values with their arrays; records are mappings, and lists are tuples."""
    if isinstance(packed, list):
        return tuple(_unpack(part, arrays) for part in packed)
    if not isinstance(packed, dict):
        return packed
    if ARRAY not in packed:
        return {key: _unpack(part, arrays) for key, part in packed.items()}
    array = arrays[packed[ARRAY]]
    return array.view(jnp.bfloat16) if packed["bfloat16"] else array


def write_golden(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a golden file of nested mappings, records and arrays."""
    arrays: dict[str, np.ndarray] = {}

    def store(array: np.ndarray, name: str) -> str:
        arrays[key := f"{len(arrays)} {name}"] = _writable(array)
        return key

    packed = _pack(facts, store)
    sums = {key: _checksum(array) for key, array in arrays.items()}
    text = json.dumps({**packed, "format": FORMAT, "sums": sums})
    with open(path, "xb") as file:
        np.savez(file, header=np.array(text), sum=np.array(zlib.crc32(text.encode())), allow_pickle=False, **arrays)


class GoldenFolder:
    """A golden folder while it is written: arrays are stored when they come, the text at the end.

    It is a context: after an error nothing is left of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[int, tuple[str, np.ndarray]] = {}
        self._sums: dict[str, int] = {}

    def __enter__(self) -> "GoldenFolder":
        self.path.mkdir()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            shutil.rmtree(self.path)

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Write an array, and return it as it lies in its file."""
        key = f"{len(self._sums)}.npy"
        with open(self.path / key, "xb") as file:
            np.save(file, _writable(array), allow_pickle=False)
        kept = np.load(self.path / key, mmap_mode="r", allow_pickle=False)
        self._sums[key] = _checksum(kept)
        kept = kept.view(jnp.bfloat16) if array.dtype == jnp.bfloat16 else kept
        self._kept[id(kept)] = key, kept
        return kept

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the text."""

        def store(array: np.ndarray, _: str) -> str:
            known = array if id(array) in self._kept else self.keep(array)
            return self._kept[id(known)][0]

        text = json.dumps({**_pack(facts, store), "format": FORMAT, "sums": self._sums})
        (self.path / HEADER).write_text(f"{zlib.crc32(text.encode())}\n{text}", encoding="utf-8")


HEADER = "golden.json"


def _checksum(array: np.ndarray) -> int:
    """Return that of the bytes, and of what they mean: `.npy` has none, and a bit of it is the order of the bytes."""
    form = zlib.crc32(f"{array.dtype.str} {array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, form)


def _read(path: Path) -> tuple[str, int, dict[str, np.ndarray]]:
    """Return the text, its checksum, and the arrays; those of a folder are read when they are needed."""
    if path.is_dir():
        total, _, text = (path / HEADER).read_text(encoding="utf-8").partition("\n")
        arrays = {}
        for file in path.glob("*.npy"):
            try:
                arrays[file.name] = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, EOFError, ValueError) as error:
                raise ValueError(f"{file.name} cannot be read: {error}") from error
        return text, int(total), arrays
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
        for entry in file.zip.infolist():  # `write_golden` compresses none, and a small file could fill the memory
            if entry.file_size > (packed := entry.compress_size):
                raise ValueError(f"{entry.filename} is compressed: {packed:,} bytes of {entry.file_size:,}")
        arrays = {name: file[name] for name in file.files}
    return str(arrays["header"]), int(arrays["sum"]), arrays


def load_golden(path: str | Path) -> Golden:
    """Read a golden file or folder; the checksums of its parts and its format are checked.

    Raises:
        FileNotFoundError: there is no such file.
        GoldenError: it is no golden file, is damaged or cut short, or was written by another version.
    """
    try:
        text, total, arrays = _read(Path(path))
        header = json.loads(text)
        if known := header["format"] == FORMAT:
            sums = header["sums"].items()
            wrong = [name for name, sum_ in sums if name not in arrays or _checksum(arrays[name]) != sum_]
            if wrong or zlib.crc32(text.encode()) != total:
                raise ValueError(f"the checksum of {', '.join(wrong) or 'its text'} is wrong")
            golden = Golden(_unpack(header, arrays))
    except FileNotFoundError:
        if Path(path).exists():
            raise GoldenError(
                f"{path} has no {HEADER}, so it was not written to its end; {REMEDY}. "
                "What another tool has dumped is for compare_dump"
            ) from None
        raise
    except (OSError, EOFError, AttributeError, LookupError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as e:
        raise GoldenError(f"{path} is damaged, cut short, or no golden file ({e}); {REMEDY}") from e
    if not known:
        written = f"{header['format']}, by {header.get('versions')}; this package reads format {FORMAT}"
        raise GoldenError(f"{path} has format {written}. Use the same version of this package, or {REMEDY}")
    return golden

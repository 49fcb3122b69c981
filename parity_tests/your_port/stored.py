"""Tensors that others have written into files, by name; each is read when it is asked for. Imports torch for its files.

| what | read as |
|---|---|
| `*.safetensors` | numbers and names |
| `*.npz`, `*.npy` | without pickles |
| `*.pt`, `*.pth`, `*.ckpt`, `*.bin` of `torch.save` | by `torch.load(weights_only=True)`; keys are parts of a name |
| a folder of Orbax, or one that holds one | the arrays of its tree, by their paths |
| any other folder | all files of these kinds in it; a tensor that is alone in its file has the file's name |

In a folder the tensors of a tuple or list have the file's name with their numbers, `name[0]`.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from parity_tests.your_port.measure.arrays import flatten, is_mixed, to_numpy

Shape = tuple[int, ...]
BESIDE_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state*.pth")
"""Files of a folder that a trainer of `transformers` writes beside the weights; some of them are no tensors."""
UNNAMED = ("", "data", "value")
"""A tensor that is alone in its file and has one of these names is called like the file."""
BATCH = 2**26
"""Bytes, until which Orbax is asked for several tensors at once: each request reads the description of all of them."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, or in memory."""

    shape: Shape
    dtype: Any
    """Of NumPy."""
    read: Callable[[], np.ndarray]

    @classmethod
    def of(cls, x: Any) -> "Stored":
        """Describe an array or a tensor in memory."""
        dtype = str(x.dtype).removeprefix("torch.")
        return cls(tuple(x.shape), jnp.dtype(dtype), lambda: to_numpy(x))


Tensors = Mapping[str, Stored]


def open_tensors(source: Any) -> dict[str, Stored]:
    """List the tensors of a file, of a folder, or of nested containers in memory, such as a state dict.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged, or of no kind that is known; the message says which are.
    """
    if not isinstance(source, str | Path):
        return _in_memory(source)
    path = Path(source)
    if not path.is_dir():
        return dict(_in_file(path))
    if (orbax := _orbax_folder(path)) is not None:
        return _in_orbax(orbax)
    return _in_folder(path)


def _in_memory(tree: Any) -> dict[str, Stored]:
    found = dict[str, Stored]()
    for name, x in flatten(tree)[0].items():
        if is_mixed(x):  # such as an index and a word, which JAX cannot sort
            inside = _in_memory({str(key): part for key, part in x.items()})
            found |= {f"{name}.{part}": tensor for part, tensor in inside.items()}
        elif hasattr(x, "shape") and hasattr(x, "dtype") and not str(x.dtype).startswith("key<"):  # of random numbers
            if hasattr(x, "detach") and (x.is_meta or x.is_quantized or str(x.layout) != "torch.strided"):
                kind = f"{x.dtype}, {x.layout}, on {x.device}"
                raise ValueError(f"{name} is no plain array of numbers ({kind}): give it as one, or leave it out")
            found[name] = Stored.of(x)
    return found


# Files


def _in_file(path: Path) -> Iterator[tuple[str, Stored]]:
    """Yield the tensors of a file; one that is alone in it, without a name of its own, is called "".

    Raises:
        OSError, ValueError: see `open_tensors`.
    """
    if path.suffix not in READERS:
        kinds = f"{', '.join(READERS)}, a folder of these, or one of Orbax"
        raise ValueError(f"{path} is of no kind that is read; these are: {kinds}")
    with path.open("rb"):  # whose error names the file
        pass
    try:
        for name, tensor in READERS[path.suffix](path):
            if np.dtype(tensor.dtype).type is np.void:
                dtype = "NumPy's name for a record, and what it makes of bfloat16 and float8: save it as float32"
                raise ValueError(f"{name or 'its array'} has the dtype {tensor.dtype}, {dtype}")
            yield name, tensor
    except (ValueError, TypeError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged, cut short, or not what its name says: {reason}") from error


def _safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy"):  # it checks the whole header against the size of the file
            pass
    except SafetensorError as error:
        raise ValueError(error) from error
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, tensor in header.items():
        if name != "__metadata__":
            try:
                shape, dtype = tuple(tensor["shape"]), _dtype_of(tensor["dtype"])
            except (KeyError, TypeError):
                raise ValueError(f"{name} is of {tensor['dtype']}, which is not read") from None
            yield name, Stored(shape, dtype, _reader(path, shape, dtype, 8 + size + tensor["data_offsets"][0]))


def _dtype_of(name: str) -> Any:
    """Return NumPy's dtype by the name that safetensors has for it, such as BF16; KeyError or TypeError for others."""
    long = {"B": "bfloat" if name == "BF16" else "bool", "F": "float", "I": "int", "U": "uint", "C": "complex"}[name[0]]
    known = {"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    return jnp.dtype(known.get(name, long + name.lstrip("BFIUC")))


def _reader(path: Path, shape: Shape, dtype: Any, offset: int) -> Callable[[], np.ndarray]:
    count = prod(shape)

    def read() -> np.ndarray:
        found = np.fromfile(path, np.dtype((np.void, dtype.itemsize)), count, offset=offset)
        if found.size != count:
            raise ValueError(f"{path} was cut short while it was read")
        return found.view(dtype).reshape(shape)

    return read


def _npy(path: Path) -> Iterator[tuple[str, Stored]]:
    yield "", Stored.of(np.load(path, mmap_mode="r", allow_pickle=False))


def _npz(path: Path) -> Iterator[tuple[str, Stored]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                version = np.lib.format.read_magic(file)
                head = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = head[version](file)
            key = name.removesuffix(".npy")
            yield key, Stored(shape, dtype, partial(_read_npz, path, key))


def _read_npz(path: Path, key: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[key]
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{key} of {path} is damaged: {error}") from error


def _torch(path: Path) -> Iterator[tuple[str, Stored]]:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise OSError(f"{path} is a file of torch.save, and PyTorch is not installed") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # pickle's and torch's own
        others = list[str]()
        with suppress(Exception):  # it is no file of torch.save
            others = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        if others:
            raise OSError(
                f"{path} holds more than tensors ({', '.join(others[:3])}), and to read that may run code: where you "
                "trust it, load it with torch.load(…, weights_only=False), and save its state dict alone"
            ) from error
        raise ValueError(error) from error
    form = "[{}]" if isinstance(loaded, list | tuple) else "" if isinstance(loaded, torch.Tensor) else "{}"
    for name, tensor in _in_memory(loaded).items():
        yield form.format(name), tensor


READERS: dict[str, Callable[[Path], Iterator[tuple[str, Stored]]]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".npy": _npy,
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), _torch),
}


# Folders


def _in_folder(path: Path) -> dict[str, Stored]:
    index = _read_index(path)
    files = [path / part for part in sorted(set(index.values()))] or [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix in READERS and not any(fnmatchcase(file.name, name) for name in BESIDE_WEIGHTS)
    ]
    if not files:
        raise ValueError(f"{path} holds no tensors: no {', '.join(READERS)}, and nothing of Orbax")
    found = dict[str, Stored]()
    for file in files:
        tensors = dict(_in_file(file))
        prefix = ".".join(file.relative_to(path).with_suffix("").parts)
        for name, tensor in tensors.items():
            is_alone = name in UNNAMED and len(tensors) == 1
            own = f"{prefix}{name}" if name.startswith("[") else prefix if is_alone else name
            if own in found:
                raise ValueError(f"{path} holds {own} twice, once in {file.name}: give one of the files")
            found[own] = tensor
    if missing := [name for name in index if name not in found]:
        raise ValueError(f"{path} lacks {missing[0]}, which its index says to be in {index[missing[0]]}")
    return found


def _read_index(path: Path) -> dict[str, str]:
    """Return in which part each tensor is, as `model.safetensors.index.json` says it, if there is one.

    Raises:
        ValueError: it is damaged, or there are several, such as one for another dtype.
    """
    indices = sorted(path.glob("*.safetensors.index.json")) or sorted(path.glob("*.bin.index.json"))
    if len(indices) > 1:
        names = ", ".join(index.name for index in indices)
        raise ValueError(f"{path} holds {len(indices)} checkpoints ({names}): give a folder of one")
    try:
        return {
            name: str(part)
            for index in indices
            for name, part in json.loads(index.read_text("utf-8"))["weight_map"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{indices[0]} is damaged: it has no weight_map") from error


# Orbax


def _orbax_folder(path: Path) -> Path | None:
    """Find the one folder that Orbax has written, at or below a path.

    Raises:
        ValueError: there are several, such as steps of a training.
    """
    found = [file.parent for file in sorted(path.rglob("_METADATA"))]
    if len(found) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in found[:5])
        raise ValueError(f"{path} holds {len(found)} checkpoints of Orbax: give one of {names}")
    return found[0] if found else None


def _in_orbax(path: Path) -> dict[str, Stored]:
    """List the arrays of a checkpoint of Orbax; each is read alone.

    Raises:
        OSError: Orbax is not installed.
        ValueError: the checkpoint is damaged.
    """
    try:
        import orbax.checkpoint as ocp
    except ModuleNotFoundError as error:
        raise OSError(f"{path} is a checkpoint of Orbax: pip install orbax-checkpoint") from error
    reader = ocp.PyTreeCheckpointer()
    try:
        tree = reader.metadata(path.absolute()).item_metadata.tree
    except Exception as error:
        raise ValueError(f"{path} is damaged, or of another version of Orbax: {str(error)[:200]}") from error
    leaves, rebuild = flatten(tree, is_leaf=lambda x: hasattr(x, "shape"))
    tensors = {name: leaf for name, leaf in leaves.items() if getattr(leaf, "shape", None) is not None}
    sizes = {name: prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for name, leaf in tensors.items()}
    order, kept = list(tensors), dict[str, np.ndarray]()

    def read(wanted: str) -> np.ndarray:
        if wanted not in kept:
            kept.clear()
            behind = order[order.index(wanted) :]
            before = accumulate((sizes[name] for name in behind), initial=0)
            batch = [name for name, size in zip(behind, before, strict=False) if size < BATCH]
            item = rebuild({name: 0 if name in batch else ocp.PLACEHOLDER for name in leaves})
            how = rebuild({name: ocp.RestoreArgs(restore_type=np.ndarray) for name in leaves})
            try:
                found = reader.restore(path.absolute(), args=ocp.args.PyTreeRestore(item=item, restore_args=how))
            except Exception as error:
                raise ValueError(f"{wanted} of {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
            kept.update((name, np.asarray(x)) for name, x in flatten(found)[0].items() if name in batch)
        return kept.pop(wanted)

    return {name: Stored(tuple(x.shape), jnp.dtype(x.dtype), partial(read, name)) for name, x in tensors.items()}

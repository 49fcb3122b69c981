"""Read and write safetensors files as NumPy arrays, bit for bit.

A safetensors file holds names, shapes and bytes. A `.pt` file is a pickle, which can run any code when it is read, and
is never read here. `python -m torch_ref.to_safetensors FILE.pt` converts one.
"""

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_attn.weights import to_numpy

PICKLES = (b"PK\x03\x04", b"\x80")
"""The first bytes of a file of `torch.save`: a zip archive since version 1.6, a bare pickle before."""

DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "C64": np.complex64,
}
"""Names of dtypes in safetensors, and the dtypes of NumPy and JAX."""


class SafetensorsFile(Mapping[str, np.ndarray]):
    """The tensors of a file by name, each read into a new array when it is asked for, so that one is held at a time.

        weights = SafetensorsFile("model.safetensors")
        params = from_torch(weights, like)

    Raises:
        OSError: the file does not exist, is a folder or may not be read.
        ValueError: the file is not a safetensors file, is damaged or cut short, or has a dtype that NumPy lacks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from safetensors import SafetensorError, safe_open

        self._file = Path(path).open("rb")  # noqa: SIM115 (a file that is replaced meanwhile is still this one)
        weakref.finalize(self, self._file.close)
        try:
            with safe_open(path, "numpy"):  # it checks the whole header against the size of the file
                pass
        except SafetensorError as error:
            if self._file.read(8).startswith(PICKLES):
                raise ValueError(
                    f"{path} looks like a file of torch.save, which is a pickle and is not read here; "
                    f"`python -m torch_ref.to_safetensors {path}` converts it"
                ) from error
            raise ValueError(f"{path} is not a safetensors file, or is damaged or cut short: {error}") from error
        size = int.from_bytes(self._file.read(8), "little")
        header = json.loads(self._file.read(size))
        self._start = 8 + size
        self._tensors = {name: header[name] for name in sorted(header) if name != "__metadata__"}
        for name, tensor in self._tensors.items():
            if tensor["dtype"] not in DTYPES:
                raise ValueError(f"{name} of {path} has the dtype {tensor['dtype']}, which NumPy does not have")

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        dtype: Any = np.dtype(DTYPES[tensor["dtype"]])
        found = np.empty(tensor["shape"], dtype.newbyteorder("<"))
        self._file.seek(self._start + tensor["data_offsets"][0])
        if self._file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
            raise ValueError(f"{self._file.name} was cut short while it was read")
        return found.astype(dtype, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read all tensors of a file: names to new arrays, in the file's dtypes. See `SafetensorsFile` for errors."""
    return dict(SafetensorsFile(path))


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write names and arrays, such as those of `weights.to_torch`, to a new file, one after the other.

    Only an array that is not in order is copied, while it is written.

    Raises:
        FileExistsError: the file exists already; it is not overwritten.
        ValueError: a name that is not a string, or something that is not an array, is a masked array, or has a dtype
            that safetensors does not have; the message names it.
    """
    tensors = {name: _as_numpy(path, name, array) for name, array in arrays.items()}
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    if strange := [f"{name} ({x.dtype})" for name, x in tensors.items() if x.dtype.newbyteorder("=") not in names]:
        raise ValueError(
            f"{path} cannot be written: {', '.join(strange)} must be an array of a dtype that safetensors has; "
            "convert it to float32, for example"
        )
    # The widest dtypes first, so that each tensor begins at a multiple of its own.
    tensors = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header, end = dict[str, Any](), 0
    for name, x in tensors.items():
        start, end = end, end + x.nbytes
        dtype = names[x.dtype.newbyteorder("=")]
        header[name] = {"dtype": dtype, "shape": x.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            file.write(np.ascontiguousarray(x, x.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)


def _as_numpy(path: str | os.PathLike[str], name: Any, array: Any) -> np.ndarray:
    """Return an array of NumPy; raise ValueError for a name or an array that cannot be written."""
    if not isinstance(name, str) or name == "__metadata__":
        raise ValueError(f"{path} cannot be written: a name must be a string other than '__metadata__'; got {name!r}")
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError(f"{path} cannot be written: the mask of {name} would be lost; give .filled(...) of it")
    try:
        return to_numpy(array)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be written: {name} must be an array that NumPy can read ({reason})") from error

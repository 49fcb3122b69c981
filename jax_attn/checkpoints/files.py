"""Safetensors files to NumPy arrays and back, bit for bit.

Safetensors holds names, shapes and bytes. A `.pt` file is a pickle, which runs whatever program it was made to run, and
is never read here; `python -m torch_ref.to_safetensors FILE.pt` converts one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

PICKLES = (b"PK\x03\x04", b"\x80")
"""How the files of `torch.save` begin: since version 1.6 a zip archive, before it a bare pickle."""

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
"""What safetensors calls a dtype: what NumPy, with JAX's additions, calls it."""


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All tensors of a file: names to arrays of their own memory, in the file's dtypes.

    Raises:
        OSError: no such file, a folder, no right to read it.
        ValueError: not a safetensors file, one that is cut short or damaged, or a dtype that NumPy cannot hold.
    """
    from safetensors import SafetensorError, deserialize

    content = Path(path).read_bytes()
    try:
        tensors = deserialize(content)
    except SafetensorError as error:
        if content.startswith(PICKLES):
            raise ValueError(
                f"{path} looks like a file of torch.save, which is a pickle and not read here; "
                f"`python -m torch_ref.to_safetensors {path}` converts it"
            ) from error
        raise ValueError(f"{path} is not a safetensors file, or damaged or cut short: {error}") from error
    return {name: _array(path, name, **tensor) for name, tensor in sorted(tensors)}


def _array(
    path: str | os.PathLike[str], name: str, dtype: str, shape: list[int], data: bytes | bytearray
) -> np.ndarray:
    if dtype not in DTYPES:
        raise ValueError(f"{name} of {path} has the dtype {dtype}, which NumPy has no name for")
    little_endian = np.dtype(DTYPES[dtype]).newbyteorder("<")
    return np.frombuffer(data, little_endian).reshape(shape).astype(DTYPES[dtype])  # a copy, and writable


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write names and arrays, such as those of `weights.to_torch`, to a new file.

    Raises:
        FileExistsError: the file is there already; nothing is written over.
        ValueError: a dtype that safetensors has no name for.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save

    contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}  # the layout that it writes
    try:
        content = save(contiguous)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    with Path(path).open("xb") as file:
        file.write(content)

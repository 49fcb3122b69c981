"""The registry of checkpoint formats.

To add a format, write a file beside `d2l.py` with the functions that `Format` names, and add a line to `FORMATS`.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flax import linen as nn

from jax_attn.checkpoints import ctranslate2, d2l, marian
from jax_attn.checkpoints.pretrained import Pretrained

StateDict = Mapping[str, Any]
"""Names of tensors to NumPy arrays, JAX arrays or CPU tensors of PyTorch."""


class Format(NamedTuple):
    """The functions of one format, each over the state dict of a whole model."""

    description: str
    """The models that it holds, as a noun phrase."""
    recognise: Callable[[StateDict], bool]
    """Return whether the names of the tensors are those of this format, even if some are missing or wrong."""
    load: Callable[[StateDict], tuple[nn.Module, dict[str, Any]]]
    """Return the Flax module and its parameters."""
    describe: Callable[[StateDict], str]
    """Return the model and its sizes in words."""


FORMATS = {
    "d2l": Format("translators with attention of the d2l.ai book", d2l.recognise, d2l.load, d2l.describe),
}
"""Every format by name, in the order in which they are tried."""


class FolderFormat(NamedTuple):
    """The functions of a format that is a folder: its weights alone do not say what the model is."""

    description: str
    recognise: Callable[[Path], bool]
    """Return whether a folder is of this format, even if files are missing or wrong."""
    read: Callable[[Path], Pretrained]


FOLDERS = {
    "ctranslate2": FolderFormat("CTranslate2's Transformers", ctranslate2.recognise, ctranslate2.read),
    "marian": FolderFormat("Marian's translators of the Hugging Face hub", marian.recognise, marian.read),
}
"""Every format of a folder by name, in the order in which they are tried."""


def read_folder(folder: str | os.PathLike[str]) -> Pretrained:
    """Read a translator's folder of any format in `FOLDERS`.

        module, params = read_folder("opus-mt-en-fr").load()

    Raises:
        OSError, ValueError: no known format, or a folder that the format refuses.
    """
    path = Path(folder)
    for format in FOLDERS.values():
        if format.recognise(path):
            return replace(format.read(path), licence=read_licence(path))
    raise ValueError(f"{path} is no folder of a translator; supported are {marian.SUPPORTED}")


def read_licence(folder: Path) -> str | None:
    """Return the licence that the head of README.md names."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"^license:[ \t]*([^\s].*?)\s*$", text[:10_000], re.MULTILINE)
    return found[1] if found else None


def find_format(state_dict: StateDict) -> Format:
    """Return the first format that recognises a checkpoint; KeyError if none does."""
    for format in FORMATS.values():
        if format.recognise(state_dict):
            return format
    known = ", ".join(f"{name} ({format.description})" for name, format in FORMATS.items())
    raise KeyError(f"no known format has these keys: {sorted(state_dict)}; known formats: {known}")


def load(state_dict: StateDict) -> tuple[nn.Module, dict[str, Any]]:
    """Load a whole model of any format in `FORMATS`: the Flax module and `{"params": ...}` in the checkpoint's dtype.

        module, params = load(read_safetensors("translator.safetensors"))

    Raises:
        KeyError, ValueError, TypeError: keys that no format has, or what the `load` of the format refuses.
    """
    return find_format(state_dict).load(state_dict)

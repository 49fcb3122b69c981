"""The registry of checkpoint formats.

To add a format, write a file beside `d2l.py` with the functions that `Format` names, and add a line to `FORMATS`.
"""

import os
from collections.abc import Callable, Mapping
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


FOLDERS = {"model.bin": ctranslate2.read, "config.json": marian.read}
"""The functions that read a folder, whose weights alone do not say what the model is, by a file that each needs."""


def read_folder(folder: str | os.PathLike[str]) -> Pretrained:
    """Read a translator's folder, of CTranslate2 or of Marian as on the Hugging Face hub.

        module, params = read_folder("opus-mt-en-fr").load()

    Raises:
        OSError, ValueError: a folder that holds none, or one that cannot be read.
    """
    for name, read in FOLDERS.items():
        if (Path(folder) / name).is_file():
            return read(Path(folder))
    raise ValueError(f"{folder} is no folder of a translator; supported are {marian.SUPPORTED}")


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

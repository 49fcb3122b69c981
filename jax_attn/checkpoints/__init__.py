"""Load checkpoints of other programs.

    module, params = load(read_safetensors("translator.safetensors"))
    module, params = read_folder("opus-mt-en-fr").load()

    d2l           the translator with attention of the d2l.ai book: `load` takes its weights
    marian        Marian's translators of the Hugging Face hub
    ctranslate2   the same and others, converted to CTranslate2
    weight_files  safetensors files

The weights alone say what a model of the book is, so that `load` takes a state dict. The others are folders.
"""

import os
from pathlib import Path

from jax_attn.checkpoints import ctranslate2, d2l, marian
from jax_attn.checkpoints.d2l import load
from jax_attn.checkpoints.pretrained import Pretrained
from jax_attn.checkpoints.weight_files import SafetensorsFile, read_safetensors, write_safetensors

__all__ = [
    "Pretrained",
    "SafetensorsFile",
    "ctranslate2",
    "d2l",
    "load",
    "marian",
    "read_folder",
    "read_safetensors",
    "write_safetensors",
]

FOLDERS = {"model.bin": ctranslate2.read, "config.json": marian.read}
"""The functions that read a folder, by a file that each needs. CTranslate2 is first: it has config.json, too."""


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

"""Load checkpoints of other programs.

    module, params = load(read_safetensors("translator.safetensors"))
    module, params = read_folder("opus-mt-en-fr").load()

    d2l           the translator with attention of the d2l.ai book: `load` takes its weights
    marian        Marian's translators of the Hugging Face hub
    m2m100        M2M100's and NLLB's there
    ctranslate2   the same and others, converted to CTranslate2
    weight_files  safetensors files

The weights alone say what a model of the book is, so that `load` takes a state dict. The others are folders.
"""

import os
from pathlib import Path

from jax_attn.checkpoints import ctranslate2, d2l, m2m100, marian
from jax_attn.checkpoints.d2l import load
from jax_attn.checkpoints.pretrained import Pretrained, read_json, shorten
from jax_attn.checkpoints.weight_files import SafetensorsFile, read_safetensors, write_safetensors

__all__ = [
    "Pretrained",
    "SafetensorsFile",
    "ctranslate2",
    "d2l",
    "load",
    "m2m100",
    "marian",
    "read_folder",
    "read_safetensors",
    "write_safetensors",
]

KINDS = {"marian": marian.read, "m2m_100": m2m100.read}
"""The functions that read a folder of the Hugging Face hub, by the model_type of its config.json."""
SUPPORTED = "Marian's, M2M100's and NLLB's models (config.json) and CTranslate2's (model.bin)"


def read_folder(folder: str | os.PathLike[str]) -> Pretrained:
    """Read a translator's folder, of CTranslate2 or as on the Hugging Face hub.

        module, params = read_folder("opus-mt-en-fr").load()

    Raises:
        OSError, ValueError: a folder that holds none, or one that cannot be read.
    """
    path = Path(folder)
    if (path / "model.bin").is_file():  # CTranslate2 has config.json, too
        return ctranslate2.read(path)
    if not (path / "config.json").is_file():
        raise ValueError(f"{folder} is no folder of a translator; supported are {SUPPORTED}")
    config = read_json(path / "config.json")
    kind = config.get("model_type", config.get("architectures", "no model_type"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{folder} holds {shorten(repr(kind))}, which is not supported; supported are {SUPPORTED}")
    return KINDS[kind](path)

"""Load checkpoints of other programs.

    module, params = load(read_safetensors("translator.safetensors"))
    module, params = read_folder("opus-mt-en-fr").load()

    registry   the formats by name, `load` for any file of them, and `read_folder` for any folder
    d2l        the translator with attention of the d2l.ai book
    marian     Marian's translators of the Hugging Face hub
    ctranslate2  the same and others, converted to CTranslate2
    files      safetensors files

`python -m jax_attn.checkpoints FILE` shows what a file holds and which model it makes.
"""

from jax_attn.checkpoints import ctranslate2, d2l, marian
from jax_attn.checkpoints.files import SafetensorsFile, read_safetensors, write_safetensors
from jax_attn.checkpoints.pretrained import Pretrained
from jax_attn.checkpoints.registry import FORMATS, load, read_folder

__all__ = [
    "FORMATS",
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

"""Load checkpoints of other programs.

    module, params = load(read_safetensors("translator.safetensors"))

    registry   the formats by name, and `load` for any of them
    d2l        the translator with attention of the d2l.ai book
    files      safetensors, the only kind of file that is read

`python -m jax_attn.checkpoints FILE` shows what a file holds and which model it makes.
"""

from jax_attn.checkpoints import d2l
from jax_attn.checkpoints.files import read_safetensors, write_safetensors
from jax_attn.checkpoints.registry import FORMATS, load

__all__ = ["FORMATS", "d2l", "load", "read_safetensors", "write_safetensors"]

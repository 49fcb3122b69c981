"""Other people's checkpoints: one file for each format, `load(state_dict) -> (module, params)`.

    d2l     the translator with attention of the d2l.ai book
    files   safetensors, the one kind of file that is read

`python -m jax_attn.checkpoints FILE` says what a file holds and what it would become.
"""

from jax_attn.checkpoints import d2l
from jax_attn.checkpoints.files import read_safetensors, write_safetensors

__all__ = ["d2l", "read_safetensors", "write_safetensors"]

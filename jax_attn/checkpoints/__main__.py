"""What a file of weights holds, and what it would become: `python -m jax_attn.checkpoints FILE`.

Lists the name, shape and dtype of every tensor, and then the model that they make: which generation of the d2l.ai
book's translator, its sizes, and the two lines that load it. Nothing is written.

FILE is a safetensors file. A .pt file of PyTorch is a pickle, and is converted first where torch is installed:
python -m torch_ref.to_safetensors FILE.pt

Exit status: 0, or 2 if the file cannot be read, or makes no model that is known.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from jax_attn.checkpoints import d2l
from jax_attn.checkpoints.files import read_safetensors
from jax_attn.functional.checks import shape_text


def main(arguments: Sequence[str] | None = None) -> int:
    """List, identify, and say what was wrong on one line; the exit status."""
    parser = argparse.ArgumentParser(
        "python -m jax_attn.checkpoints", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE", help="a .safetensors file")
    path = parser.parse_args(arguments).file
    try:
        arrays = read_safetensors(path)
        print(table(path, arrays), flush=True)
        print(becomes(path, d2l.identify(arrays)))
    except OSError as error:
        print(f"error: {path} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError) as error:
        print(f"error: {error.args[0]}", file=sys.stderr)  # str() of a KeyError would put it in quotes
        return 2
    return 0


def table(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """One line for each tensor under a line for all of them."""
    total = sum(array.size for array in arrays.values())
    rows = [(name, shape_text(array.shape), str(array.dtype)) for name, array in arrays.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n  ".join([f"{path}: {len(arrays)} tensors, {total:,} numbers", *lines])


def becomes(path: str, checkpoint: d2l.Checkpoint) -> str:
    """The model in words, and how to load it."""
    generation, sizes, dtype = checkpoint
    biases = "with" if sizes.decoder_bias else "without"
    tanh = "with" if generation.use_tanh else "without"
    return f"""
The d2l.ai book's translator with attention, generation {generation.name}: jax_attn.models.EncoderDecoder in {dtype}
  source     {sizes.source_vocab} words, embeddings of {sizes.source_embed}
  target     {sizes.target_vocab} words, embeddings of {sizes.target_embed}
  network    {generation.cell.upper()}, layers: {sizes.num_layers}, hidden units: {sizes.num_hiddens}; \
the decoder's {biases} biases
  attention  additive, hidden units: {sizes.attention_hiddens}, {tanh} tanh

  from jax_attn.checkpoints import d2l, read_safetensors
  module, params = d2l.load(read_safetensors({path!r}))"""


if __name__ == "__main__":
    sys.exit(main())

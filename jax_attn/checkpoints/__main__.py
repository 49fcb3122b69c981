"""Show what a file of weights holds, and which model it makes: `python -m jax_attn.checkpoints FILE`.

Lists the name, shape and dtype of every tensor. Then names the format and the sizes of the model, and prints the two
lines that load it. Writes nothing.

FILE is a safetensors file. A .pt file of PyTorch is a pickle; convert it first, where torch is installed:
python -m torch_ref.to_safetensors FILE.pt

Exit status: 0, or 2 if the file cannot be read or its model is not known.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from jax_attn.checkpoints.files import read_safetensors
from jax_attn.checkpoints.registry import find_format
from jax_attn.functional.checks import shape_text


def main(arguments: Sequence[str] | None = None) -> int:
    """List the tensors and describe the model; an error is one line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m jax_attn.checkpoints", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE", help="a .safetensors file")
    path = parser.parse_args(arguments).file
    try:
        arrays = read_safetensors(path)
        print(tensor_table(path, arrays), flush=True)
        print(f"\n{find_format(arrays).describe(arrays)}\n\n{loading_code(path)}")
    except OSError as error:
        print(f"error: {path} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError) as error:
        print(f"error: {error.args[0]}", file=sys.stderr)  # str() of a KeyError would put it in quotes
        return 2
    return 0


def tensor_table(path: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return a heading and one line for each tensor."""
    total = sum(array.size for array in arrays.values())
    rows = [(name, shape_text(array.shape), str(array.dtype)) for name, array in arrays.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n  ".join([f"{path}: {len(arrays)} tensors, {total:,} numbers", *lines])


def loading_code(path: str) -> str:
    """Return the lines of Python that load the file."""
    return f"""  from jax_attn.checkpoints import load, read_safetensors
  module, params = load(read_safetensors({path!r}))"""


if __name__ == "__main__":
    sys.exit(main())

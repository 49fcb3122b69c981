"""Convert a PyTorch checkpoint to a safetensors file: `python -m torch_ref.to_safetensors FILE.pt [OUT.safetensors]`.

FILE.pt is what `torch.save(model.state_dict(), "FILE.pt")` wrote, or a dictionary that holds such a state dict under
"state_dict" or "model". It is read by `torch.load(weights_only=True)`, which builds tensors and runs no program from
the file. A whole pickled module is therefore refused: load it where its class is known, and save its `state_dict()`.

Every tensor keeps its name, shape, dtype and bits. Tensors that share memory, such as tied embeddings, are written once
under each name. OUT.safetensors is FILE.safetensors by default. It must not exist yet.

Exit status: 0, or 2 if nothing was written.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WRAPPERS = ("state_dict", "model")
"""The keys under which training programs store the model's state dict beside the optimiser's state and counters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert the file, print one line about it or about the error, and return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m torch_ref.to_safetensors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE.pt", type=Path, help="a file written by torch.save")
    parser.add_argument("out", metavar="OUT.safetensors", type=Path, nargs="?", help="a new file")
    options = parser.parse_args(arguments)
    out = options.out or options.file.with_suffix(".safetensors")
    try:
        tensors, left_out = convert(options.file, out)
    except OSError as error:
        print(f"error: {error.filename or options.file}: {error.strerror or error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {len(tensors)} tensors" + (f"; left out: {', '.join(left_out)}" if left_out else ""))
    return 0


def convert(source: Path, out: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Write the tensors of `source` to `out`; return them, and the keys beside the state dict that were left out.

    Errors: OSError if `source` cannot be read, FileExistsError if `out` exists, ValueError if `source` holds anything
    but tensors.
    """
    from safetensors.torch import save

    if out.exists():
        raise FileExistsError(17, "exists already and is not overwritten; name another file", str(out))
    state_dict, left_out = find_state_dict(source, load_checkpoint(source))
    # safetensors refuses shared memory and strides; a clone has its own, in order.
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state_dict.items()
    }
    content = save(tensors)
    with out.open("xb") as file:
        file.write(content)
    return tensors, left_out


def load_checkpoint(path: Path) -> Any:
    """Read a file by `torch.load(weights_only=True)`; raise ValueError if that fails."""
    path.open("rb").close()  # an OSError here is about the file, not about its content
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many types on a damaged file
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{path} cannot be read with torch.load(weights_only=True): it is damaged, or not written by torch.save, "
            f"or holds more than tensors, such as a whole model; save model.state_dict() instead ({reason})"
        ) from error


def find_state_dict(path: Path, content: Any) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the state dict that the content is or holds, and the keys beside it."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a state dict; it holds a {type(content).__name__}")
    held = [key for key in WRAPPERS if isinstance(content.get(key), Mapping)]
    if len(held) > 1:
        raise ValueError(f"{path} holds both {held[0]!r} and {held[1]!r}; save the right one in a file of its own")
    state_dict = content[held[0]] if held else content
    names = [repr(name) for name in state_dict if not isinstance(name, str) or name == "__metadata__"]
    if names:
        raise ValueError(f"{path} must name its tensors by strings other than '__metadata__'; got {', '.join(names)}")
    others = [str(name) for name, value in state_dict.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{path} must hold only tensors; these are not: {', '.join(others)}")
    if not state_dict:
        raise ValueError(f"{path} holds no tensors")
    strange = [
        f"{name} ({tensor.layout}, {tensor.dtype}, {tensor.device})"
        for name, tensor in state_dict.items()
        if not can_be_written(tensor)
    ]
    if strange:
        raise ValueError(
            f"{path} must hold dense tensors with data, of a dtype that safetensors has; these are not: "
            f"{', '.join(strange)}; convert them, by .to_dense(), .dequantize() or .to(dtype), and save again"
        )
    return state_dict, [str(key) for key in content if held and key not in held]


def can_be_written(tensor: Tensor) -> bool:
    """Return whether safetensors can hold a tensor of this kind, by writing an empty one."""
    from safetensors.torch import save

    try:
        save({"x": tensor.detach().new_empty(0)})
    except Exception:  # for many reasons: quantised, sparse, nested, without data, or a dtype that safetensors lacks
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

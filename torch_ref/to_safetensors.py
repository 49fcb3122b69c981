"""A PyTorch checkpoint as a safetensors file: `python -m torch_ref.to_safetensors FILE.pt [OUT.safetensors]`.

FILE.pt is what `torch.save(model.state_dict(), "FILE.pt")` wrote, or a dictionary that holds such a state dict under
"state_dict" or "model". It is read with `torch.load(weights_only=True)` alone, which builds tensors and runs no program
from the file; so a whole pickled module is refused. Where the class of such a module is known, load it there and save
its `state_dict()`.

Every tensor keeps its name, shape, dtype and bits. Tensors that share memory, such as tied embeddings, are written once
under each name. OUT.safetensors is by default FILE.safetensors, and must not exist.

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
"""Under which keys training programs put the state dict beside the optimiser's and their counters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, and say what was done or what was wrong on one line; the exit status."""
    parser = argparse.ArgumentParser(
        "python -m torch_ref.to_safetensors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", metavar="FILE.pt", type=Path, help="what torch.save wrote")
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
    """Write the tensors of `source` to `out`; returns them, and the keys beside the state dict that were left out.

    Errors: OSError for a file that cannot be read, or FileExistsError for one that is there already; ValueError for one
    that holds anything but tensors.
    """
    from safetensors.torch import save

    if out.exists():
        raise FileExistsError(17, "exists already and is not written over; name another file", str(out))
    state_dict, left_out = find_state_dict(source, read_pickle(source))
    # safetensors refuses shared memory and strides; a clone has its own, in order.
    tensors = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state_dict.items()
    }
    content = save(tensors)
    with out.open("xb") as file:
        file.write(content)
    return tensors, left_out


def read_pickle(path: Path) -> Any:
    """What `torch.load(weights_only=True)` makes of a file; ValueError if that is nothing."""
    path.open("rb").close()  # an OSError here is about the file, and not about what is in it
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise almost anything on a file that is not theirs
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{path} cannot be read with torch.load(weights_only=True): it is damaged, or no file of torch.save, or "
            f"holds more than tensors, such as a whole model; save model.state_dict() instead ({reason})"
        ) from error


def find_state_dict(path: Path, content: Any) -> tuple[Mapping[str, Tensor], list[str]]:
    """The state dict that the content is or holds, and the names of what stands beside it."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a state dict; it holds a {type(content).__name__}")
    held = [key for key in WRAPPERS if isinstance(content.get(key), Mapping)]
    if len(held) > 1:
        raise ValueError(f"{path} holds both {held[0]!r} and {held[1]!r}; save the one that is meant by itself")
    state_dict = content[held[0]] if held else content
    others = [str(name) for name, value in state_dict.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{path} must hold tensors alone; these are none: {', '.join(others)}")
    if not state_dict:
        raise ValueError(f"{path} holds no tensors")
    strange = [f"{name} ({tensor.layout})" for name, tensor in state_dict.items() if tensor.layout != torch.strided]
    if strange:
        raise ValueError(f"{path} must hold dense tensors; these are none: {', '.join(strange)}")
    return state_dict, [str(key) for key in content if held and key not in held]


if __name__ == "__main__":
    sys.exit(main())

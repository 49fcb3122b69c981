"""The command `jax-attn`: `jax-attn train book --data fra.txt` is `python -m train.nmt book --data fra.txt`."""

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {
    "train": ("train.nmt", "train a translator"),
    "import": ("train.import_model", "make a run folder of a pretrained model"),
    "export": ("train.export_model", "write a run as a pretrained model"),
    "translate": ("train.translate", "translate with a run folder"),
    "evaluate": ("train.evaluate", "score a run folder on a test set"),
    "page": ("train.page", "show the attention of any model"),
    "compare": ("parity_tests.your_port.command", "hold a PyTorch module against its JAX port"),
}
"""Each command with its module and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names, with the rest; return its exit status."""
    name, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    if name in PROGRAMS:
        return int(import_module(PROGRAMS[name][0]).main(rest))
    lines = "\n".join(f"  jax-attn {command:<10} {about}" for command, (_, about) in PROGRAMS.items())
    if name in ("-h", "--help"):
        print(f"{lines}\n\njax-attn COMMAND --help shows a command's options.")
        return 0
    print(f"error: there is no command {name!r}; there are:\n{lines}", file=sys.stderr)
    return 2

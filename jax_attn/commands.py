"""The command `jax-attn`: `jax-attn train book --data fra.txt` is `python -m train.nmt book --data fra.txt`.

A program is imported when it is asked for, so that each needs only what its own extra installs.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {
    "train": ("train.nmt", "train", "train a translator"),
    "import": ("train.import_model", "train", "make a run folder of a pretrained model"),
    "export": ("train.export_model", "train", "write a run as a pretrained model"),
    "translate": ("train.translate", "train", "translate with a run folder"),
    "evaluate": ("train.evaluate", "train", "score a run folder on a test set"),
    "compare": ("parity_tests.your_port.command", "torch", "hold a PyTorch module against its JAX port"),
}
"""Each command with its module, the extra that it needs, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names, with the rest; return its exit status."""
    name, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or ["--help"]
    if name in PROGRAMS:
        module, extra, _ = PROGRAMS[name]
        try:
            program = import_module(module)
        except ModuleNotFoundError as error:
            install = f"{sys.executable} -m pip install 'jax-attn[{extra}]'"
            print(f"error: jax-attn {name} needs {error.name}; run: {install}", file=sys.stderr)
            return 2
        return int(program.main(rest))
    lines = "\n".join(f"  jax-attn {command:<10} {about}" for command, (_, _, about) in PROGRAMS.items())
    if name in ("-h", "--help"):
        print(f"{lines}\n\njax-attn COMMAND --help shows a command's options.")
        return 0
    print(f"error: there is no command {name!r}; there are:\n{lines}", file=sys.stderr)
    return 2

"""A program that trains neural machine translation: `python -m train.nmt`."""

import sys
from importlib.util import find_spec

EXTRA = (
    "docstring_parser", "jinja2", "matplotlib", "orbax", "pooch", "regex", "rich", "sacrebleu", "sentencepiece",
    "tensorboardX", "tyro",
)  # fmt: skip
"""What the extra `train` installs, by the names of the imports."""

if missing := [name for name in EXTRA if find_spec(name) is None]:
    command = f"{sys.executable} -m pip install 'jax-attn[train]'"
    message = f"train needs {', '.join(missing)}; run: {command} (in a clone: -e '.[train]')"
    if sys.argv[0] == "-m":  # Python is about to run one of the programs
        sys.exit(f"error: {message}")
    raise ModuleNotFoundError(message, name=missing[0])

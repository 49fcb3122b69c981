"""Attention and translators, recurrent and Transformer, in plain PyTorch: the reference that a reader checks by eye.

Axes: B batch, Q queries, K keys (and values), D features of a query or key, V features of a value, H hidden units,
T time, N vocabulary, beam. Functions take leading axes as `*batch` and compute on the last ones; tensors are
batch-first. Masks are boolean, True = may attend.

The code is naive on purpose: the decoder loops over its steps, greedy search takes one sentence at a time, the
recurrences are nn.LSTM and nn.GRU, and attributes have the names of d2l.ai. It checks only the arguments that
would otherwise give a wrong result without an error.
"""

import sys
from importlib.util import find_spec

if find_spec("torch") is None:
    command = f"{sys.executable} -m pip install 'jax-attn[torch]'"
    message = f"torch_ref needs torch; run: {command} (in a clone: -e '.[torch]')"
    if sys.argv[0] == "-m":  # Python is about to run one of the programs
        sys.exit(f"error: {message}")
    raise ModuleNotFoundError(message, name="torch")

from torch_ref import functional, models, modules, search
from torch_ref.functional import *  # noqa: F403 (limited by __all__)
from torch_ref.functional.scores import *  # noqa: F403
from torch_ref.models import *  # noqa: F403
from torch_ref.modules import *  # noqa: F403
from torch_ref.modules.attention import *  # noqa: F403
from torch_ref.search import *  # noqa: F403

__all__ = [*functional.__all__, *search.__all__, *modules.__all__, *models.__all__]

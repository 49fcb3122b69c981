"""Hold jax_attn against torch_ref, or any PyTorch program against its JAX port (docs/parity.md).

The harness, which everything else here uses:

case                  the records: a case, its variants of inputs, its two sides
numbers, tree         the inputs and weights that both sides are given; nested arguments by name
torch_side, jax_side  one variant run in one framework: outputs and gradients by name
taps                  intermediate tensors, recorded by name
comparison            both sides run, their tensors measured, and the verdict

Its users:

cases                 the registry: every public name, its PyTorch twin and its inputs; third parties' twins
training              whole trainings, step by step: `jax_attn`'s, and one's own (compare_training)
golden, dump          PyTorch's side in a file, for a machine without PyTorch
properties            statements that hold for any numbers, such as "masking equals deleting"
faults                mistakes planted on purpose, in the code of either framework: the comparison must see each
diagnosis             where two programs differ, and which known mistake explains it
port                  `compare`: any PyTorch module and its JAX port in one call
report                tables and a page: `python -m parity_tests`
zoo                   ports of small models, right and with mistakes: how many are caught, located and explained
plugin                the fixture `parity` for pytest
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity_tests.case import Case, JaxSide, TorchSide, Variant
    from parity_tests.comparison import Measurement, compare_case
    from parity_tests.diagnosis.bisect import Divergence, find_divergence
    from parity_tests.golden import GoldenError, load_golden
    from parity_tests.jax_side import jax_function, linen_module
    from parity_tests.port.compare import compare
    from parity_tests.port.report import Report
    from parity_tests.taps import tap, tapped
    from parity_tests.torch_side import torch_function, torch_module
    from parity_tests.training.comparison import TrainingReport, compare_training
    from parity_tests.training.updates import UpdateDivergence, find_update_divergence

EXTRA = ("equinox", "jinja2", "pytest", "rich", "scipy", "torch", "tyro")
"""What the extra `torch` installs, by the names of the imports."""


def _require_extra() -> None:
    """Raise an error that says how to install what is missing."""
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        command = f"{sys.executable} -m pip install 'jax-attn[torch]'"
        message = f"parity_tests needs {', '.join(missing)}; run: {command} (in a clone: -e '.[torch]')"
        raise ModuleNotFoundError(message, name=missing[0])


if sys.argv[0] == "-m":  # Python is about to run one of the programs
    try:
        _require_extra()
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}")

_PLACES = {
    "case": ("Case", "JaxSide", "TorchSide", "Variant"),
    "comparison": ("Measurement", "compare_case"),
    "diagnosis.bisect": ("Divergence", "find_divergence"),
    "training.updates": ("UpdateDivergence", "find_update_divergence"),
    "golden": ("GoldenError", "load_golden"),
    "jax_side": ("jax_function", "linen_module"),
    "port.compare": ("compare",),
    "port.report": ("Report",),
    "taps": ("tap", "tapped"),
    "torch_side": ("torch_function", "torch_module"),
    "training.comparison": ("TrainingReport", "compare_training"),
}
"""File -> the names that it exports. They are imported when they are first used: pytest imports this package wherever
it is installed, and a program that only taps its tensors needs no PyTorch."""


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            try:
                return getattr(import_module(f"{__name__}.{place}"), name)
            except ModuleNotFoundError:
                _require_extra()
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Case",
    "Divergence",
    "GoldenError",
    "JaxSide",
    "Measurement",
    "Report",
    "TorchSide",
    "TrainingReport",
    "UpdateDivergence",
    "Variant",
    "compare",
    "compare_case",
    "compare_training",
    "find_divergence",
    "find_update_divergence",
    "jax_function",
    "linen_module",
    "load_golden",
    "tap",
    "tapped",
    "torch_function",
    "torch_module",
]

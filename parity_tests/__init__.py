"""Hold any PyTorch program against its JAX port, and jax_attn against torch_ref (docs/parity.md).

your_port      the harness: `compare`, `compare_compiled`, `compare_training`, `find_divergence`, `tap`, …
this_library   the proof of jax_attn: cases, planted faults, properties, trainings; `python -m parity_tests`
zoo            the harness's own examination: ports of small models, right and with mistakes

your_port imports nothing of jax_attn but the faults of the compiler, and nothing of torch_ref.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity_tests.your_port.checkpoint import WeightsReport as WeightsReport
    from parity_tests.your_port.checkpoint import compare_weights as compare_weights
    from parity_tests.your_port.compare import compare as compare
    from parity_tests.your_port.compiled import CompiledReport as CompiledReport
    from parity_tests.your_port.compiled import compare_compiled as compare_compiled
    from parity_tests.your_port.divergence import Divergence as Divergence
    from parity_tests.your_port.divergence import find_divergence as find_divergence
    from parity_tests.your_port.dumped import DumpReport as DumpReport
    from parity_tests.your_port.dumped import compare_dump as compare_dump
    from parity_tests.your_port.generation.comparison import compare_generation as compare_generation
    from parity_tests.your_port.generation.decoder import Decoder as Decoder
    from parity_tests.your_port.generation.report import GenerationReport as GenerationReport
    from parity_tests.your_port.golden import GoldenError as GoldenError
    from parity_tests.your_port.golden import load_golden as load_golden
    from parity_tests.your_port.measure.case import Case as Case
    from parity_tests.your_port.measure.case import JaxSide as JaxSide
    from parity_tests.your_port.measure.case import TorchSide as TorchSide
    from parity_tests.your_port.measure.case import Variant as Variant
    from parity_tests.your_port.measure.draw import compare_case as compare_case
    from parity_tests.your_port.measure.jax_side import jax_function as jax_function
    from parity_tests.your_port.measure.judge import Measurement as Measurement
    from parity_tests.your_port.measure.taps import tap as tap
    from parity_tests.your_port.measure.taps import tapped as tapped
    from parity_tests.your_port.measure.torch_side import torch_function as torch_function
    from parity_tests.your_port.measure.torch_side import torch_module as torch_module
    from parity_tests.your_port.report import Report as Report
    from parity_tests.your_port.sharded import ShardedReport as ShardedReport
    from parity_tests.your_port.sharded import compare_sharded as compare_sharded
    from parity_tests.your_port.training.comparison import compare_training as compare_training
    from parity_tests.your_port.training.report import TrainingDivergence as TrainingDivergence
    from parity_tests.your_port.training.report import TrainingReport as TrainingReport
    from parity_tests.your_port.training.updates import find_update_divergence as find_update_divergence

EXTRA = ("equinox", "pytest", "rich", "scipy", "torch", "tyro")
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
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)  # 1 would say that two programs differ

_PLACES = {
    "measure.case": ("Case", "JaxSide", "TorchSide", "Variant"),
    "measure.draw": ("compare_case",),
    "measure.judge": ("Measurement",),
    "divergence": ("Divergence", "find_divergence"),
    "training.updates": ("find_update_divergence",),
    "dumped": ("DumpReport", "compare_dump"),
    "generation.comparison": ("compare_generation",),
    "generation.decoder": ("Decoder",),
    "generation.report": ("GenerationReport",),
    "golden": ("GoldenError", "load_golden"),
    "measure.jax_side": ("jax_function",),
    "compare": ("compare",),
    "checkpoint": ("WeightsReport", "compare_weights"),
    "compiled": ("CompiledReport", "compare_compiled"),
    "report": ("Report",),
    "sharded": ("ShardedReport", "compare_sharded"),
    "measure.taps": ("tap", "tapped"),
    "measure.torch_side": ("torch_function", "torch_module"),
    "training.comparison": ("compare_training",),
    "training.report": ("TrainingDivergence", "TrainingReport"),
}
"""File -> the names that it exports. They are imported when they are first used: pytest imports this package wherever
it is installed, and a program that only taps its tensors needs no PyTorch."""


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            try:
                return getattr(import_module(f"{__name__}.your_port.{place}"), name)
            except ModuleNotFoundError:
                _require_extra()
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [name for names in _PLACES.values() for name in names]

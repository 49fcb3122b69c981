"""jax_attn held against torch_ref; and the harness that does it, for anybody's port (docs/parity.md).

case       the records of the registry: a case, its variants of inputs, its two sides, a refusal
cases      the registry: every public name, its PyTorch twin and its inputs
numbers    inputs and weights as both sides are given them
torch_side, jax_side   one variant run in one framework: outputs and gradients by name
compare    the two sides' results, and how far apart they may be
taps       what lies between inputs and outputs, recorded
bisect     the first tensor in which two programs differ, forward and backward
updates    the first parameter in which two optimisers differ
symptoms   what a wrong tensor looks like
traps      known mistakes, tried out as explanations
refusals   what both frameworks must refuse
faults     faults planted on purpose, to see that the comparison sees them
report     what was measured, as a table; `python -m parity_tests` prints it
plugin     the same from pytest: the fixture `parity`
"""

from parity_tests.bisect import Divergence, find_divergence
from parity_tests.case import Case, JaxSide, TorchSide, Variant
from parity_tests.compare import Measurement, compare_case
from parity_tests.jax_side import jax_function, linen_module
from parity_tests.taps import tap
from parity_tests.torch_side import torch_function, torch_module
from parity_tests.updates import UpdateDivergence, find_update_divergence

__all__ = [
    "Case",
    "Divergence",
    "JaxSide",
    "Measurement",
    "TorchSide",
    "UpdateDivergence",
    "Variant",
    "compare_case",
    "find_divergence",
    "find_update_divergence",
    "jax_function",
    "linen_module",
    "tap",
    "torch_function",
    "torch_module",
]

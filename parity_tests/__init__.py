"""jax_attn held against torch_ref; and the harness that does it, for anybody's port (docs/parity.md).

cases                 the registry: every public name, its PyTorch twin and its inputs; third parties' twins
training              whole trainings, step by step
properties            what holds whatever the numbers

case                  the records of the registry: a case, its variants of inputs, its two sides
numbers, tree         inputs and weights as both sides are given them; nested arguments by name
torch_side, jax_side  one variant run in one framework: outputs and gradients by name
compare               the two sides' results, and how far apart they may be

diagnosis             when they differ: where they part, and which known mistake explains it
faults                whether it would be seen: mistakes planted on purpose, in the code of either framework
report                tables and a page; `python -m parity_tests`
plugin                the same from pytest: the fixture `parity`
"""

from parity_tests.case import Case, JaxSide, TorchSide, Variant
from parity_tests.compare import Measurement, compare_case
from parity_tests.diagnosis.bisect import Divergence, find_divergence
from parity_tests.diagnosis.taps import tap
from parity_tests.diagnosis.updates import UpdateDivergence, find_update_divergence
from parity_tests.jax_side import jax_function, linen_module
from parity_tests.torch_side import torch_function, torch_module

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

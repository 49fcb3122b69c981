"""Hold jax_attn against torch_ref, or any PyTorch program against its JAX port (docs/parity.md).

The harness, which everything else here uses:

case                  the records: a case, its variants of inputs, its two sides
numbers, tree         the inputs and weights that both sides are given; nested arguments by name
torch_side, jax_side  one variant run in one framework: outputs and gradients by name
taps                  intermediate tensors, recorded by name
compare               both sides run, their tensors measured, and the verdict

Its users:

cases                 the registry: every public name, its PyTorch twin and its inputs; third parties' twins
training              whole trainings, step by step
properties            statements that hold for any numbers, such as "masking equals deleting"
faults                mistakes planted on purpose, in the code of either framework: the comparison must see each
diagnosis             where two programs differ, and which known mistake explains it
report                tables and a page: `python -m parity_tests`
plugin                the fixture `parity` for pytest
"""

from parity_tests.case import Case, JaxSide, TorchSide, Variant
from parity_tests.compare import Measurement, compare_case
from parity_tests.diagnosis.bisect import Divergence, find_divergence
from parity_tests.diagnosis.updates import UpdateDivergence, find_update_divergence
from parity_tests.jax_side import jax_function, linen_module
from parity_tests.taps import tap
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

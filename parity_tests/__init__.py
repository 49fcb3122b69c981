"""jax_attn held against torch_ref; and the harness that does it, for anybody's port (docs/parity.md).

What is compared:

    case, cases           the records of the registry, and the registry: every public name, its twin and its inputs
    *_cases, masking      the cases, by what they are cases of; what can be hidden from attention
    training              whole trainings, step by step; `drift_plot` draws what float32 makes of them
    refusals              what both frameworks must refuse
    properties            what holds whatever the numbers, asked of the `subjects` on both sides (`answers`);
                          `python -m parity_tests.trials` counts the cases tried
    twin_differences      what other libraries call by the same name and do not mean

How:

    numbers, tree         inputs and weights as both sides are given them; nested arguments by name
    torch_side, jax_side  one variant run in one framework: outputs and gradients by name
    compare               the two sides' results, and how far apart they may be

When they differ:

    taps, bisect          what lies between inputs and outputs, and the first tensor that differs
    updates               the first parameter in which two optimisers differ
    symptoms, traps       what a wrong tensor looks like; known mistakes, tried out as explanations

Whether they would be seen to:

    fault, *_faults       mistakes planted on purpose, in the code of either framework

What is read:

    report, page          what was measured, as tables and as a page
    work, __main__        `python -m parity_tests`
    plugin                the same from pytest: the fixture `parity`
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

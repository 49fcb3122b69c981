"""jax_attn held against torch_ref: outputs, every gradient, and what both refuse.

case       the records of the registry: a case, its variants of inputs, its two sides, a refusal
cases      the registry: every public name, its PyTorch twin and its inputs
numbers    inputs and weights as both sides are given them
torch_side, jax_side   one variant run in one framework: outputs and gradients by name
compare    the two sides' results, and how far apart they may be
taps       what lies between inputs and outputs, recorded
bisect     the first tensor in which two programs differ
symptoms   what a wrong tensor looks like
traps      known mistakes, tried out as explanations
refusals   what both frameworks must refuse
faults     faults planted on purpose, to see that the comparison sees them
report     what was measured, as a table; `python -m parity_tests` prints it
"""

"""jax_attn held against torch_ref: outputs, every gradient, and what both refuse.

case       the records of the registry: a case, its variants of inputs, a refusal
cases      the registry: every public name, its PyTorch twin and its inputs
sides      one variant run in one framework: outputs and gradients by name
compare    the two sides' results, and how far apart they may be
refusals   what both frameworks must refuse
faults     faults planted on purpose, to see that the comparison sees them
report     what was measured, as a table; `python -m parity_tests` prints it
"""

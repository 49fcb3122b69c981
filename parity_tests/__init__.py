"""jax_attn held against torch_ref: outputs, every gradient, and what both refuse.

case       the records of the registry: a case, its variants of inputs, a refusal
cases      the registry: every public name, its PyTorch twin and its inputs
sides      one variant run in one framework: outputs and gradients by name
compare    the two sides' results, and how far apart they may be
refusals   what both frameworks must refuse; model_refusals of the networks, models and searches
properties what holds whatever the numbers, asked of the `subjects` on both sides (`answers`)
trials     those properties on many drawn cases; `python -m parity_tests.trials` counts them
faults     faults planted on purpose, to see that the comparison sees them
report     what was measured, as a table; `python -m parity_tests` prints it
"""

"""The proof of jax_attn: every public name, its PyTorch twin, and mistakes planted on purpose.

cases       the registry: every public name, its PyTorch twin and its inputs; third parties' twins
faults      mistakes planted in either framework: the comparison must see each
properties  statements that hold for any numbers, such as "masking equals deleting"
trainings   whole trainings of jax_attn and torch_ref, step by step
report      the results as tables: `python -m parity_tests`
"""

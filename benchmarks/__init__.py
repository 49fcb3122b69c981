"""How fast jax_attn is, compared with PyTorch and with JAX's own functions: `python -m benchmarks`.

workloads      the registry: what is timed, which implementations take part, and the ratios with their goals
limits         what a workload needs at least
inputs         the arrays, models, weights and sentences that every implementation is given
jax_side       our functions, search, encoder and first step, and what JAX and Flax have instead
jax_training   our training step
torch_side     torch_ref (the reference) and tuned PyTorch
tuned          the fastest attention seq2seq in plain PyTorch, written out
process        one process for each implementation, which measures time and memory
measure        one workload, and a whole run: outputs compared, times taken in turn, ratios
report         tables and JSON, and the comparison with an earlier run
"""

import train  # noqa: F401 (its training step is measured; if its extra is missing, it says so)

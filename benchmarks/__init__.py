"""How fast jax_attn is, compared with PyTorch and with JAX's own functions: `python -m benchmarks`.

workloads      what is timed, in ours and in other implementations, and the ratios with their goals
inputs         the models, and the sentences and weights that every implementation is given
our_training   our training step
tuned          the fastest attention seq2seq in plain PyTorch
limits         what a workload needs at least, and the programs that measure it
records        the records of all this
process        one process for each implementation, which measures time and memory
measure        a workload, and a whole run: outputs compared, times taken in turn
report         tables and JSON
"""

import train  # noqa: F401 (its training step is measured; if its extra is missing, it says so)

"""How fast jax_attn is, compared with PyTorch and with JAX's own functions: `python -m benchmarks`.

attention, training, search   what is timed, in ours and in other implementations, the ratios and their goals
translators, tuned            the models with their weights and sentences, and their fastest form in PyTorch
records                       what a workload, a ratio and a measurement are
measure                       a process for each implementation: outputs compared, times taken in turn, memory
limits                        the speeds of this machine, and the share of its limit that a workload reaches
report                        tables and JSON
pretrained                    a program of its own: pretrained translators beside transformers and CTranslate2
"""

import train  # noqa: F401 (its training step is measured; if its extra is missing, it says so)

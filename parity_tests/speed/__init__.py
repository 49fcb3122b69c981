"""How fast jax_attn is, compared with PyTorch and with JAX's own functions: `python -m parity_tests.speed`.

records        a workload, its implementations, a ratio
workloads      the registry: what is timed, which implementations take part, and the ratios with their goals
inputs         the arrays, models, weights and sentences that every implementation is given
jax_side       our functions, search and encoder, and what JAX and Flax have instead
jax_training   our training step, and the first step of a fresh process
torch_side     torch_ref (the reference) and tuned PyTorch
tuned          the fastest attention seq2seq in plain PyTorch, written out
process        one process for each implementation, which measures time and memory
measure        one workload, and a whole run: outputs compared, times taken in turn, ratios
limits         what a workload needs at least, and what this machine can do
start          the time to the end of the first training step
report, kept   tables and JSON; comparison with the ratios kept in the repository
"""

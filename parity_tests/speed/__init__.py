"""How fast it is, against PyTorch and against JAX's own: `python -m parity_tests.speed`.

workload, workloads      what is timed, by whom, and the ratios with their goals
inputs, translation      the arrays, models and sentences that every contestant is given
jax_*, torch_*           the contestants; what they run is what parity proves, or a twin that is compared in the run
tuned_*                  the best that plain PyTorch gives, to be read
first_step, start        the wait for the first step
scalar_code              whether XLA made slow code of a training step
worker, processes        a process for each contestant, and the parent's side of it
rounds, memory, limits   how time and memory are measured, and what the machine allows
agreement                that all contestants of a workload compute the same
measure, sitting         one workload, and all of one run
tables, kept             the same printed, and compared with that of before
growth, growth_plot      against length, hidden size, batch and vocabulary
"""

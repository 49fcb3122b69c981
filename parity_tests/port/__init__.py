"""Compare a PyTorch module and its JAX port in one call: `compare(torch_module, jax_module, inputs)`.

compare        the call: it makes a case of the two, runs it and finds where they part
original       PyTorch's side as the others know it, live or from a file
torch_program  PyTorch's side read from a module: its inputs, its weights, and whether it can be compared
adapters       the kinds of JAX modules: Flax NNX, Flax Linen, Equinox, functions
match, words   which weight of PyTorch belongs to which of JAX, by name, shape and layout
weight_map     the result of that, which `compare` prints
layouts        the ways in which the two store the same weight
report         the verdict in at most ten lines, tables on request
"""

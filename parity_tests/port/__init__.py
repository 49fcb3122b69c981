"""Compare a PyTorch module and its JAX port in one call: `compare(torch_module, jax_module, inputs)`.

compare    the call: it makes a case of the two, runs it and finds where they part
adapters   the kinds of JAX modules: Flax NNX, Flax Linen, Equinox, functions
match      which weight of PyTorch belongs to which of JAX, by name, shape and layout
layouts    the ways in which the two store the same weight
report     the verdict in at most ten lines, tables on request
"""

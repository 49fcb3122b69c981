"""Put PyTorch's weights into a JAX program.

original       PyTorch's side as the others know it, live or from a file
torch_program  PyTorch's side read from a module: its inputs, its weights, and whether it can be compared
adapters       the kinds of JAX modules: Flax NNX, Flax Linen, Equinox, functions
match, words   which weight of PyTorch belongs to which of JAX, by name, shape and layout
weight_map     the result of that, which `compare` prints
layouts        the ways in which the two store the same weight
positions      where each number of a weight stands in JAX, found by the user's own converter
"""

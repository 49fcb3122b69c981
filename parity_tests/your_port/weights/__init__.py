"""Put PyTorch's weights into a JAX program.

original       PyTorch's side as the others know it, live or from a file
torch_program  PyTorch's side read from a module: its inputs, its weights, and whether it can be compared
jax_reference  a JAX module in PyTorch's place
adapters       the kinds of JAX modules: Flax NNX, Flax Linen, Equinox, functions
load           the user's own function that loads them, run with positions: the first way of matching
positions      where such a function puts each number, by which factor
given_names    the names that the user gives, such as `query` for a third of `c_attn`
match, words   which weight of PyTorch belongs to which of JAX, by name, shape and layout
weight_map     the result of that, which `compare` prints
layouts        the ways in which the two store the same weight
"""

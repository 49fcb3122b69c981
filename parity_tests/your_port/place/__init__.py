"""Find where two programs part.

bisect   the submodule, and the tensors that differ, in the order of the forward and of the backward pass
pairing  which tensor of JAX is which one of PyTorch
values   the same for a function without submodules, by the values that it computes
"""

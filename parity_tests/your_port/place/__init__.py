"""Find where two programs part.

taps     intermediate tensors, recorded by name
bisect   the submodule, and the first tensor that differs, in the forward or in the backward pass
pairing  which tensor of JAX is which one of PyTorch
values   the same for a function without submodules, by the values that it computes
"""

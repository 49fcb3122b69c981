"""Explain a difference between two programs.

bisect     where they part: the submodule, and the first tensor that differs, in the forward or in the backward pass
pairing    which tensor of JAX is which one of PyTorch
values     the same for a function without submodules, by the values that it computes
updates    the first parameter in which two optimisers differ
symptoms   what a wrong tensor looks like
traps      known mistakes, tried out as explanations: of weights, inputs and settings
mistakes   known mistakes in functions, as a table
"""

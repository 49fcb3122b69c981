"""Explain a difference between two programs by a known mistake.

symptoms    what a wrong tensor looks like
traps       known mistakes, tried out as explanations: of weights, inputs and results
rearranged  those of norms and of how a block is put together
mistakes    those of functions, as a table
plain       PyTorch's fused functions step by step, so that a mistake can be made inside of them
subjects    what a mistake is tried on
"""

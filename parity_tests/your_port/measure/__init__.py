"""Run a case in both frameworks and measure how far apart they are.

case                  the records: a case, its variants of inputs, its two sides
numbers, arrays       the inputs and weights that both sides are given; nested arguments by name
torch_side, jax_side  one variant run in one framework: outputs and gradients by name
draw                  both sides on one draw of numbers: each run is made once, and kept for whoever asks next
judge, errors         how far apart they may be; each entry is measured beside those of about its own size
precision             how good outputs of 16 bits are in JAX, and in PyTorch
bits                  two arrays of weights, bit for bit
op_by_op              a JAX program run operation by operation, so that the compiler fuses nothing
taps                  intermediate tensors, recorded by name in either framework
attention_steps       PyTorch's fused attention step by step
width, users_code     JAX's 64 bits while entered; which line is the user's
strength              inputs and weights that are too weak to show mistakes, and stronger ones
tables                the measurements as rows and as a table
"""

"""Run a case in both frameworks and measure how far apart they are.

case                  the records: a case, its variants of inputs, its two sides
numbers, tree         the inputs and weights that both sides are given; nested arguments by name
torch_side, jax_side  one variant run in one framework: outputs and gradients by name
taps                  intermediate tensors, recorded by name in either framework
errors                the error function: each entry is measured beside those of about its own size
comparison            both sides run, their tensors measured, and the verdict
strength              inputs and weights that are too weak to show mistakes, and stronger ones
tables                the measurements as rows and as a table
x64                   the switch to float64, for every version of JAX
"""

"""The harness's own examination: ports of PyTorch models to Flax Linen, Flax NNX, Equinox and plain functions.

port, score             a port, the bugs planted in it, and how many are caught, located and explained
recurrent, transformer  the ports; each bug is one that people reported in public, with the issue's number
convolution, norm_and_loss
parts                   what ports share
planted                 every mistake of the harness's own table, planted in PyTorch's programs

`python -m parity_tests.zoo` compares them all; `--table` plants the table.
"""

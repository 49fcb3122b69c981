"""The harness's own examination: ports of PyTorch models to Flax Linen, Flax NNX, Equinox and plain functions.

port                    a port, the bugs planted in it, and what the comparison says of each
recurrent, transformer  the ports; each bug is one that people reported in public, with the issue's number
convolution, codebook
planted                 every mistake of the harness's own table, planted in PyTorch's programs
libraries               layers of NNX and Equinox at the first try
large                   a model of many layers, and mistakes in it

`zoo_test.py` compares them all, and plants the table.
"""

from parity_tests.zoo import codebook, convolution, recurrent, transformer
from parity_tests.zoo.port import Port

ZOO: tuple[Port, ...] = (*recurrent.PORTS, *transformer.PORTS, *convolution.PORTS, *codebook.PORTS)

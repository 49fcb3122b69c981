"""Check that a port from PyTorch to Flax is still the same model. Needs the extra `torch`.

Run it: python examples/port.py
"""

import flax.linen as nn
import numpy as np
import torch

from jax_attn import MultiHeadAttention
from jax_attn.compiler import avoid_faults
from parity_tests import compare


class TorchBlock(torch.nn.Module):
    """A block of a Transformer encoder in PyTorch: the original."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y)[0]


class Block(nn.Module):
    """Its port. `LayerNorm` divides by √(variance + epsilon), and the two frameworks have another epsilon."""

    width: int
    heads: int
    epsilon: float

    def setup(self):
        self.norm = nn.LayerNorm(epsilon=self.epsilon)
        self.attention = MultiHeadAttention(self.width, self.heads, use_bias=True)

    def __call__(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y)[0]


def main() -> None:
    avoid_faults()  # of the compiler, in some versions of jaxlib
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    original = TorchBlock(8, 2)
    print(compare(original, Block(8, 2, epsilon=1e-6), x, dtypes=("float64",), name="the port with Flax's epsilon"))
    print()
    print(compare(original, Block(8, 2, epsilon=1e-5), x, dtypes=("float64",), name="the port with PyTorch's"))


if __name__ == "__main__":
    main()

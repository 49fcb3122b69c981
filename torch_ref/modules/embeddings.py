"""Token and position embeddings. Source: Vaswani et al. 2017, sections 3.4 and 3.5; the Annotated Transformer."""

import math

from torch import Tensor, nn

from torch_ref.functional.dropout import drop
from torch_ref.functional.positions import sinusoidal_positions


class Embeddings(nn.Module):
    """embedding[token] * sqrt(d_model).

    Shapes: tokens [...] -> [..., d_model]. Parameters: embedding [vocab_size, d_model].
    """

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens.long()) * math.sqrt(self.embedding.embedding_dim)


class PositionalEncoding(nn.Module):
    """X + sinusoidal positions, then dropout; no parameters.

    Shapes: X [*batch, T, d_model] -> the same. keep_mask, of that shape, sets the dropout explicitly.
    Errors: ValueError when T is above max_len.
    """

    def __init__(self, d_model: int, dropout: float = 0.0, max_len: int = 5000) -> None:
        super().__init__()
        self.d_model, self.dropout, self.max_len = d_model, dropout, max_len

    def forward(self, X: Tensor, *, keep_mask: Tensor | None = None) -> Tensor:
        length = X.shape[-2]
        if length > self.max_len:
            raise ValueError(f"X must have at most max_len = {self.max_len} positions; got {length}")
        X = X + sinusoidal_positions(length, self.d_model, X.dtype, device=X.device)
        return drop(X, self.dropout, keep_mask, self.training)

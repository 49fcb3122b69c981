"""The feed-forward network of a Transformer. Source: Vaswani et al. 2017, section 3.3; d2l.ai, "The Transformer"."""

from collections.abc import Callable

from torch import Tensor, nn

from torch_ref.functional.dropout import drop

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


class FeedForward(nn.Module):
    """dense2(dropout(activation(dense1(x)))), the same at each position.

    Shapes: x [*batch, D] -> [*batch, num_outputs]. keep_mask bool [*batch, num_hiddens] sets the dropout explicitly.
    """

    def __init__(
        self,
        input_size: int,
        num_hiddens: int,
        num_outputs: int,
        dropout: float = 0.0,
        *,
        activation: str = "relu",
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {activation!r}")
        self.dropout, self.activation = dropout, activation
        self.dense1 = nn.Linear(input_size, num_hiddens, bias=use_bias)
        self.dense2 = nn.Linear(num_hiddens, num_outputs, bias=use_bias)

    def forward(self, x: Tensor, *, keep_mask: Tensor | None = None) -> Tensor:
        hidden = ACTIVATIONS[self.activation](self.dense1(x))
        return self.dense2(drop(hidden, self.dropout, keep_mask, self.training))

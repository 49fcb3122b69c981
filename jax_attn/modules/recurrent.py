"""LSTM and GRU of several layers and one or two directions, with PyTorch's parameters."""

from dataclasses import field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from jax_attn.functional.checks import require_bool, require_float, require_rank, require_rate, require_shape
from jax_attn.functional.dropout import drop
from jax_attn.functional.dropout import keep_mask as draw_keep_mask
from jax_attn.functional.recurrence import gru_step, lstm_step, unroll
from jax_attn.modules.dense import project

RecurrentState = Any
"""GRU: h; LSTM: (h, c); each `[layers · directions, *batch, H]`, layer by layer, forward before backward."""


class CellWeights(NamedTuple):
    """The weights of one layer in one direction (G: 4 gates of an LSTM, 3 of a GRU)."""

    kernel_ih: Float[Array, "feature gates"]
    kernel_hh: Float[Array, "hidden gates"]
    bias_ih: Float[Array, "gates"] | None
    bias_hh: Float[Array, "gates"] | None

    def project(self, inputs: Float[Array, "*batch feature"]) -> Float[Array, "*batch gates"]:
        """Return x W_ih + b_ih, the part of the gates that does not depend on the recurrence."""
        return project(inputs, self.kernel_ih, self.bias_ih)


class Recurrent(nn.Module, kw_only=True):
    """The base class of LSTM and GRU. Parameters of layer l, with the suffix `_reverse` for the backward direction:

        kernel_ih_l{l} [D, G·H],  kernel_hh_l{l} [H, G·H],  bias_ih_l{l} [G·H],  bias_hh_l{l} [G·H]

    They are PyTorch's `weight_ih_l{l}` … transposed, and its two biases as two parameters.

    Args of both subclasses:
        num_hiddens: H, in each direction.
        num_layers: each layer reads the outputs of the layer below, both directions side by side.
        dropout: the rate between layers; there is none after the last layer.
        bidirectional: read each sequence from its end as well, with a second set of weights.
        use_bias: False leaves both biases out.
        kernel_init: the initialiser of both kernels; biases start at zero.
        dtype, param_dtype: as in Flax.
    """

    num_gates: ClassVar[int]
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.glorot_uniform()
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    num_hiddens: int = field(kw_only=False)
    num_layers: int = field(default=1, kw_only=False)
    dropout: float = field(default=0.0, kw_only=False)
    bidirectional: bool = field(default=False, kw_only=False)

    def __post_init__(self) -> None:
        if min(self.num_hiddens, self.num_layers) < 1:
            raise ValueError(
                f"num_hiddens and num_layers must be at least 1; got {self.num_hiddens} and {self.num_layers}"
            )
        require_rate(dropout=self.dropout)
        super().__post_init__()

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def advance(
        self, weights: CellWeights, carry: Any, projected: Array, inputs: Array | None = None
    ) -> tuple[Any, Array]:
        """Take one step of one layer.

        Args:
            projected: the projected part of the input, with b_ih.
            inputs: the part that is not projected yet, for `weights.kernel_ih`; None if all of it is.
        """
        if inputs is not None:
            projected = projected + inputs @ weights.kernel_ih
        step = lstm_step if self.num_gates == 4 else gru_step
        return step(carry, projected, weights.kernel_hh, weights.bias_hh)

    @nn.compact
    def weights(self, input_size: int) -> tuple[tuple[CellWeights, ...], ...]:
        """Return all weights as `[layer][direction]`; the first call creates them."""
        gates = self.num_gates * self.num_hiddens
        if self.has_variable("params", "kernel_ih_l0"):
            expected: int = self.get_variable("params", "kernel_ih_l0").shape[0]
            if input_size != expected:
                raise ValueError(f"inputs must have the {expected} features of kernel_ih_l0; got {input_size}")

        def cell(input_size: int, suffix: str) -> CellWeights:
            def parameter(name: str, init: Initializer, *shape: int) -> Array:
                value = self.param(f"{name}_{suffix}", init, shape, self.param_dtype)
                return value if self.dtype is None else value.astype(self.dtype)

            zeros = nn.initializers.zeros
            return CellWeights(
                parameter("kernel_ih", self.kernel_init, input_size, gates),
                parameter("kernel_hh", self.kernel_init, self.num_hiddens, gates),
                parameter("bias_ih", zeros, gates) if self.use_bias else None,
                parameter("bias_hh", zeros, gates) if self.use_bias else None,
            )

        suffixes = ("", "_reverse")[: self.num_directions]
        sizes = [input_size] + [self.num_hiddens * self.num_directions] * (self.num_layers - 1)
        return tuple(tuple(cell(size, f"l{layer}{suffix}") for suffix in suffixes) for layer, size in enumerate(sizes))

    def __call__(
        self,
        inputs: Float[Array, "*batch time feature"],
        valid_lens: Int[Array, "*batch"] | None = None,
        initial_state: RecurrentState | None = None,
        *,
        deterministic: bool = True,
        keep_masks: Bool[Array, "*batch between #time hidden"] | None = None,
    ) -> tuple[Float[Array, "*batch time hidden"], RecurrentState]:
        """Run all layers over time.

        Args:
            inputs: `[*batch, T, D]`.
            valid_lens: `[*batch]`. Each sequence ends at its own length: outputs past it are 0, the final state is
                the one after its last position, and the backward direction begins there. None runs through all T.
            initial_state: in the form of the returned state; zeros by default.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_masks: `[*batch, layers − 1, T, H · directions]`, the entries that dropout keeps between layers, given
                instead of drawn. With 1 instead of T the same ones are kept at all positions.

        Returns:
            The top layer's outputs `[*batch, T, H · directions]`, and the final state: h (GRU) or (h, c) (LSTM), each
            `[layers · directions, *batch, H]`.
        """
        require_float(inputs=inputs)
        require_rank(2, "[*batch, T, D]", inputs=inputs)
        if keep_masks is not None:
            require_bool(keep_masks=keep_masks)
            width = self.num_hiddens * self.num_directions
            steps = 1 if keep_masks.ndim > 1 and keep_masks.shape[-2] == 1 else inputs.shape[-2]
            require_shape((*inputs.shape[:-2], self.num_layers - 1, steps, width), keep_masks=keep_masks)
        weights = self.weights(inputs.shape[-1])
        if self.dtype is not None:
            inputs = inputs.astype(self.dtype)
        dtype = jnp.result_type(inputs, weights[0][0].kernel_ih)
        carries = self._initial_carries(initial_state, inputs.shape[:-2], dtype)
        x, final = inputs, []
        for layer, cells in enumerate(weights):
            if layer > 0:
                x = self._drop_between(x, layer, deterministic, keep_masks)
            outputs = []
            for direction, cell in enumerate(cells):
                carry, output = unroll(
                    partial(self.advance, cell),
                    carries[layer * self.num_directions + direction],
                    x,
                    valid_lens,
                    reverse=direction == 1,
                    project=cell.project,
                )
                final.append(carry)
                outputs.append(output)
            x = jnp.concatenate(outputs, axis=-1)
        return x, jax.tree.map(lambda *parts: jnp.stack(parts), *final)

    def _initial_carries(self, state: RecurrentState | None, batch: tuple[int, ...], dtype: DTypeLike) -> list[Any]:
        """Return the carry of each layer and direction."""
        count = self.num_layers * self.num_directions
        h = jnp.zeros((*batch, self.num_hiddens), dtype)
        zeros = (h, h) if self.num_gates == 4 else h
        if state is None:
            return [zeros] * count
        if jax.tree.structure(state) != jax.tree.structure(zeros):  # type: ignore[operator]  # an incomplete stub
            raise ValueError(
                f"initial_state of {type(self).__name__} must be {'(h, c)' if self.num_gates == 4 else 'h'}; "
                f"got {jax.tree.structure(state)}"
            )
        for part in jax.tree.leaves(state):
            require_float(initial_state=part)
            require_shape((count, *batch, self.num_hiddens), initial_state=part)
        return [jax.tree.map(lambda part, i=i: part[i].astype(dtype), state) for i in range(count)]

    def _drop_between(self, x: Array, layer: int, deterministic: bool, keep_masks: Array | None) -> Array:
        if keep_masks is not None:
            return drop(x, self.dropout, keep_masks[..., layer - 1, :, :])
        if self.dropout > 0 and not deterministic:
            return drop(x, self.dropout, draw_keep_mask(self.make_rng("dropout"), self.dropout, x.shape))
        return x


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997), the same model as `torch.nn.LSTM`."""

    num_gates: ClassVar[int] = 4


class GRU(Recurrent):
    """Gated recurrent unit (Cho et al., 2014), reset after the product: the same model as `torch.nn.GRU`."""

    num_gates: ClassVar[int] = 3


def make_recurrent(cell: str, *args: Any, **kwargs: Any) -> Recurrent:
    """Build the recurrent module of a cell, "gru" or "lstm", from the other arguments."""
    modules = {"gru": GRU, "lstm": LSTM}
    if cell not in modules:
        raise ValueError(f"cell must be one of {tuple(modules)}; got {cell!r}")
    return modules[cell](*args, **kwargs)

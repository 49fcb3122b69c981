"""nn.LSTM and nn.GRU, batch-first, that stop at each sequence's length and can take explicit dropout masks.

The parameters are PyTorch's own, by name and by shape (weight_ih_l0, ..., bias_hh_l1_reverse).
Source: torch.nn.LSTM, torch.nn.GRU; d2l.ai, "Deep Recurrent Neural Networks" and "Bidirectional Recurrent Neural
Networks".
"""

import math
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torch_ref.functional.dropout import dropout as keep_or_drop
from torch_ref.functional.masks import length_mask, sequence_mask
from torch_ref.functional.recurrence import gru_step, lstm_step, unroll

State: TypeAlias = Tensor | tuple[Tensor, Tensor]


class _Recurrent(nn.RNNBase):
    """Share between LSTM and GRU all that surrounds the call of nn.LSTM or nn.GRU.

    Inside, the batch axes are one and the state is a tuple of its parts, (h,) or (h, c), each [L * directions, B, H].
    """

    num_parts: int
    cell_step: staticmethod

    def __init__(
        self,
        input_size: int,
        num_hiddens: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        *,
        bidirectional: bool = False,
        use_bias: bool = True,
    ) -> None:
        super().__init__(
            input_size,
            num_hiddens,
            num_layers,
            bias=use_bias,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,  # PyTorch warns of dropout between the layers of one
            bidirectional=bidirectional,
        )

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def forward(
        self,
        inputs: Tensor,
        valid_lens: Tensor | None = None,
        initial_state: State | None = None,
        *,
        keep_masks: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        *batch, time, features = inputs.shape
        size = math.prod(batch)
        X = inputs.reshape(size, time, features)
        shape = (self.num_layers * self.num_directions, size, self.hidden_size)
        if initial_state is None:
            initial = (X.new_zeros(shape),) * self.num_parts
        else:
            initial = tuple(part.reshape(shape) for part in state_parts(initial_state))
        lens = None
        if valid_lens is not None:
            lens = valid_lens.reshape(size)
            X = sequence_mask(X, lens)  # before the projection: 0 * NaN is NaN in the gradient of weight_ih
        if keep_masks is not None:
            keep = keep_masks.reshape(size, self.num_layers - 1, *keep_masks.shape[-2:])
            outputs, final = self._layer_by_layer(X, lens, initial, keep)
        elif lens is not None:
            outputs, final = self._packed(X, lens, initial)
        else:
            outputs, final = self._library(X, initial)
        final = tuple(part.reshape(shape[0], *batch, self.hidden_size) for part in final)
        return outputs.reshape(*batch, time, outputs.shape[-1]), self._state(final)

    def _library(self, X: Tensor, initial: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Call the forward of nn.LSTM or nn.GRU."""
        outputs, final = super().forward(X, self._state(initial))
        return outputs, state_parts(final)

    def _packed(self, X: Tensor, lens: Tensor, initial: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        time = X.shape[1]
        counts = length_mask(lens, time).sum(-1)  # [B] in 0..T
        # A packed sequence has at least one step: an empty one takes a step of zeros, which is undone below.
        packed = pack_padded_sequence(X, counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        packed, final = self._library(packed, initial)
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=time)
        started = (counts > 0).unsqueeze(-1)  # [B, 1]
        final = tuple(torch.where(started, new, old) for new, old in zip(final, initial, strict=True))
        return sequence_mask(outputs, lens), final

    def _layer_by_layer(
        self, X: Tensor, lens: Tensor | None, initial: tuple[Tensor, ...], keep_masks: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Write the same network out: nn.LSTM takes no masks for the dropout between its layers."""
        finals = []
        for layer in range(self.num_layers):
            directions = []
            for direction in range(self.num_directions):
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                weight_ih, weight_hh = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"weight_hh_{suffix}")
                bias_ih, bias_hh = getattr(self, f"bias_ih_{suffix}", None), getattr(self, f"bias_hh_{suffix}", None)
                carry = self._state(tuple(part[layer * self.num_directions + direction] for part in initial))
                step = partial(self.cell_step, weight_hh=weight_hh, bias_hh=bias_hh)
                carry, outputs = unroll(step, carry, linear(X, weight_ih, bias_ih), lens, reverse=direction == 1)
                finals.append(state_parts(carry))
                directions.append(outputs)
            X = torch.cat(directions, dim=-1)
            if layer < self.num_layers - 1:
                X = keep_or_drop(X, self.dropout, keep_masks[:, layer])
        return X, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))

    def _state(self, parts: tuple[Tensor, ...]) -> State:
        """Return (h, c) for an LSTM, h alone for a GRU."""
        return parts if self.num_parts == 2 else parts[0]


def state_parts(state: State) -> tuple[Tensor, ...]:
    """h -> (h,); (h, c) as it is."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


class LSTM(_Recurrent, nn.LSTM):
    """Layers of i, f, g, o gates over time (see functional.lstm_step), dropout between the layers.

    Shapes: inputs [*batch, T, input_size], valid_lens [*batch], initial_state (h, c) each
    [layers * directions, *batch, H] (None: zeros), keep_masks bool [*batch, layers - 1, T or 1, H * directions] ->
    outputs [*batch, T, H * directions], final (h, c).
    Without valid_lens the network runs through everything. With them each sequence stops at its length: outputs past it
    are 0, the final state is that of the last valid position, and the backward direction starts there; with length 0
    the final state is the initial one.
    """

    num_parts = 2
    cell_step = staticmethod(lstm_step)


class GRU(_Recurrent, nn.GRU):
    """Layers of r, z, n gates over time (see functional.gru_step), dropout between the layers.

    Shapes as LSTM; the state is h [layers * directions, *batch, H] alone.
    """

    num_parts = 1
    cell_step = staticmethod(gru_step)

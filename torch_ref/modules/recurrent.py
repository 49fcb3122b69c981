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

from torch_ref.functional.checks import (
    check_bool,
    check_count,
    check_floating,
    check_min_rank,
    check_rate,
    check_shape,
    check_tensor,
)
from torch_ref.functional.dropout import dropout as keep_or_drop
from torch_ref.functional.masks import length_mask, sequence_mask
from torch_ref.functional.recurrence import gru_step, lstm_step, unroll

State: TypeAlias = Tensor | tuple[Tensor, Tensor]


class _Recurrent(nn.RNNBase):
    """What LSTM and GRU share: everything around the call of nn.LSTM or nn.GRU.

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
        check_count("num_hiddens", num_hiddens, least=1)
        check_count("num_layers", num_layers, least=1)
        check_rate("dropout", dropout)
        super().__init__(
            input_size,
            num_hiddens,
            num_layers,
            bias=use_bias,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,  # between layers: PyTorch warns where there is no between
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
        self._check(inputs, valid_lens, keep_masks)
        *batch, time, features = inputs.shape
        size = math.prod(batch)
        initial = self._initial_parts(initial_state, inputs)
        X = inputs.reshape(size, time, features)
        lens = None
        if valid_lens is not None:
            lens = valid_lens.reshape(size)
            X = sequence_mask(X, lens)  # before the projection: 0 * NaN is NaN in the gradient of weight_ih
        if keep_masks is not None:
            keep = keep_masks.reshape(keep_masks.shape[0], size, time, keep_masks.shape[-1])
            outputs, final = self._layer_by_layer(X, lens, initial, keep)
        elif lens is not None:
            outputs, final = self._packed(X, lens, initial)
        else:
            outputs, final = self._library(X, initial)
        parts = [part.reshape(part.shape[0], *batch, self.hidden_size) for part in final]
        return outputs.reshape(*batch, time, outputs.shape[-1]), self._state(parts)

    def _library(self, X: Tensor, initial: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """nn.LSTM's or nn.GRU's own forward."""
        outputs, final = super().forward(X, self._state(initial))
        return outputs, final if self.num_parts == 2 else (final,)

    def _packed(self, X: Tensor, lens: Tensor, initial: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        time = X.shape[1]
        counts = length_mask(lens, time).sum(-1)  # [B] in 0..T
        # A packed sequence has at least one step: an empty one takes a step of zeros, and what it did is undone below.
        packed = pack_padded_sequence(X, counts.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        packed, final = self._library(packed, initial)
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=time)
        started = (counts > 0).unsqueeze(-1)  # [B, 1]
        final = tuple(torch.where(started, new, old) for new, old in zip(final, initial, strict=True))
        return sequence_mask(outputs, lens), final

    def _layer_by_layer(
        self, X: Tensor, lens: Tensor | None, initial: tuple[Tensor, ...], keep_masks: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The same network written out, for its dropout between the layers is out of reach inside nn.LSTM."""
        finals = []
        for layer in range(self.num_layers):
            directions = []
            for direction in range(self.num_directions):
                suffix = f"l{layer}" + ("_reverse" if direction else "")
                weight_ih, weight_hh = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"weight_hh_{suffix}")
                bias_ih, bias_hh = getattr(self, f"bias_ih_{suffix}", None), getattr(self, f"bias_hh_{suffix}", None)
                carry = self._state([part[layer * self.num_directions + direction] for part in initial])
                step = partial(self.cell_step, weight_hh=weight_hh, bias_hh=bias_hh)
                carry, outputs = unroll(step, carry, linear(X, weight_ih, bias_ih), lens, reverse=direction == 1)
                finals.append(carry if self.num_parts == 2 else (carry,))
                directions.append(outputs)
            X = torch.cat(directions, dim=-1)
            if layer < self.num_layers - 1:
                X = keep_or_drop(X, self.dropout, keep_masks[layer])
        return X, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))

    def _state(self, parts: list[Tensor] | tuple[Tensor, ...]) -> State:
        """(h, c) for an LSTM, h alone for a GRU."""
        return tuple(parts) if self.num_parts == 2 else parts[0]

    def _initial_parts(self, state: State | None, inputs: Tensor) -> tuple[Tensor, ...]:
        batch = inputs.shape[:-2]
        shape = (self.num_layers * self.num_directions, *batch, self.hidden_size)
        if state is None:
            parts = (inputs.new_zeros(shape),) * self.num_parts
        elif self.num_parts == 1:
            parts = (state,)
        elif isinstance(state, tuple) and len(state) == 2:
            parts = state
        else:
            raise TypeError(f"initial_state must be a tuple (h, c); got {type(state).__name__}")
        for part in parts:
            check_floating("initial_state", part, inputs.dtype)
            check_shape("initial_state", part, shape)
        return tuple(part.reshape(shape[0], -1, self.hidden_size) for part in parts)

    def _check(self, inputs: Tensor, valid_lens: Tensor | None, keep_masks: Tensor | None) -> None:
        check_floating("inputs", inputs, self.weight_ih_l0.dtype)
        check_min_rank("inputs", inputs, ["T", "D"])
        *batch, time, _ = inputs.shape
        check_shape("inputs", inputs, (*batch, "T", self.input_size))
        if time == 0:
            raise ValueError("inputs must have at least one time step; got 0")
        if valid_lens is not None:
            check_tensor("valid_lens", valid_lens)
            check_shape("valid_lens", valid_lens, batch)
        if keep_masks is not None:
            check_bool("keep_masks", keep_masks)
            width = self.hidden_size * self.num_directions
            check_shape("keep_masks", keep_masks, (self.num_layers - 1, *batch, time, width))


class LSTM(_Recurrent, nn.LSTM):
    """Layers of i, f, g, o gates over time (see functional.lstm_step), dropout between the layers.

    Shapes: inputs [*batch, T, input_size], valid_lens [*batch], initial_state (h, c) each
    [layers * directions, *batch, H] (None: zeros), keep_masks bool [layers - 1, *batch, T, H * directions] ->
    outputs [*batch, T, H * directions], final (h, c).
    valid_lens None runs through everything. Given, each sequence stops at its length: outputs past it are 0, the final
    state is that of the last valid position, and the backward direction starts there; with length 0 the final state is
    the initial one.
    Errors: ValueError for wrong shapes, with both; TypeError for wrong dtypes.
    """

    num_parts = 2
    cell_step = staticmethod(lstm_step)


class GRU(_Recurrent, nn.GRU):
    """Layers of r, z, n gates over time (see functional.gru_step), dropout between the layers.

    Shapes and errors as LSTM; the state is h [layers * directions, *batch, H] alone.
    """

    num_parts = 1
    cell_step = staticmethod(gru_step)

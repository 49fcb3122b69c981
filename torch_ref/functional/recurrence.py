"""One step of an LSTM and of a GRU, and a loop over time that stops at each sequence's length.

Gates are packed as PyTorch packs them: i, f, g, o for the LSTM and r, z, n for the GRU. `projected` is the input's
part, x W_ih^T + b_ih; the two biases stay two parameters.

Source: the equations of torch.nn.LSTM and torch.nn.GRU; d2l.ai, "Long Short-Term Memory", "Gated Recurrent Units".
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_ref.functional.masks import length_mask, sequence_mask
from torch_ref.functional.trees import map_tensors


def lstm_step(
    carry: tuple[Tensor, Tensor], projected: Tensor, weight_hh: Tensor, bias_hh: Tensor | None = None
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """i, f, g, o = projected + h W_hh^T + b_hh;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c').

    Shapes: carry (h [*batch, H], c [*batch, H]), projected [*batch, 4H], weight_hh [4H, H], bias_hh [4H] or None ->
    (h', c') and the output h'.
    """
    h, c = carry
    i, f, g, o = (projected + linear(h, weight_hh, bias_hh)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def gru_step(
    carry: Tensor, projected: Tensor, weight_hh: Tensor, bias_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """r = s(x_r + h_r);  z = s(x_z + h_z);  n = tanh(x_n + r h_n);  h' = (1 - z) n + z h.

    x_* are the parts of projected, h_* those of h W_hh^T + b_hh: the reset gate multiplies after the product, and the
    bias of h_n lies inside it.
    Shapes: carry h [*batch, H], projected [*batch, 3H], weight_hh [3H, H], bias_hh [3H] or None -> h', h'.
    """
    x_r, x_z, x_n = projected.chunk(3, dim=-1)
    h_r, h_z, h_n = linear(carry, weight_hh, bias_hh).chunk(3, dim=-1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    h = (1 - z) * n + z * carry
    return h, h


def unroll(
    step: Callable[[Any, Tensor], tuple[Any, Tensor]],
    carry: Any,
    inputs: Tensor,
    valid_lens: Tensor | None = None,
    *,
    reverse: bool = False,
) -> tuple[Any, Tensor]:
    """carry, outputs[t] = step(carry, inputs[t]) for each t; past a sequence's length carry stays and the output is 0.

    Shapes: inputs [*batch, T, D], valid_lens [*batch], every tensor of carry [*batch, ...] -> carry,
    outputs [*batch, T, H]. reverse=True goes from each sequence's last valid position to its first; outputs[t] stays
    beside inputs[t]. Inputs past the length, NaN included, reach neither the outputs nor a gradient.
    """
    num_steps = inputs.shape[-2]
    valid = None
    if valid_lens is not None:
        valid = length_mask(valid_lens, num_steps)  # [*batch, T]
        inputs = sequence_mask(inputs, valid_lens)
    outputs: list[Any] = [None] * num_steps
    for t in reversed(range(num_steps)) if reverse else range(num_steps):
        new_carry, output = step(carry, inputs[..., t, :])
        if valid is None:
            carry, outputs[t] = new_carry, output
        else:
            alive = valid[..., t]
            carry = map_tensors(lambda new, old, alive=alive: _where(alive, new, old), new_carry, carry)
            outputs[t] = _where(alive, output, torch.zeros_like(output))
    return carry, torch.stack(outputs, dim=inputs.ndim - 2)


def _where(alive: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(alive.reshape(alive.shape + (1,) * (new.ndim - alive.ndim)), new, old)

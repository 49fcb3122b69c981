"""LSTM and GRU steps, and a loop that runs a step over time.

A step takes its input already projected, as x W_ih + b_ih: that product does not depend on the recurrence, so it is one
large product for all time steps, before the loop. Gates are packed in PyTorch's order. PyTorch's two biases stay two
parameters: in an LSTM one bias in their place gives the same forward pass, but Adam moves it only half as far; in a GRU
it cannot even give the same forward pass (see `gru_step`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Num

from jax_attn.functional.checks import as_array, require_float, require_rank, require_shape
from jax_attn.functional.masks import length_mask, sequence_mask

LSTMCarry = tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]
Carry = TypeVar("Carry")


def lstm_step(
    carry: LSTMCarry,
    projected: Float[Array, "*batch four_hidden"],
    kernel_hh: Float[Array, "hidden four_hidden"],
    bias_hh: Float[Array, "four_hidden"] | None = None,
) -> tuple[LSTMCarry, Float[Array, "*batch hidden"]]:
    r"""Take one step of an LSTM (Hochreiter & Schmidhuber, 1997; Gers et al., 2000).

    .. math::
        i, f, g, o &= σ, σ, \tanh, σ \; (\mathrm{projected} + h W_{hh} + b_{hh}) \\
        c^\prime &= f \odot c + i \odot g \\
        h^\prime &= o \odot \tanh(c^\prime)

    Args:
        carry: (h, c), each `[*batch, H]`.
        projected: x W_ih + b_ih, `[*batch, 4H]`, gates in the order i, f, g, o.
        kernel_hh: `[H, 4H]`, the transpose of PyTorch's `weight_hh`.
        bias_hh: `[4H]`.

    Returns:
        The new carry (h', c') and the output h'.
    """
    h, c = carry
    require_float(c=c)
    require_shape(h.shape, c=c)
    gates = projected + _project_state(h, kernel_hh, bias_hh, projected, num_gates=4)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def gru_step(
    carry: Float[Array, "*batch hidden"],
    projected: Float[Array, "*batch three_hidden"],
    kernel_hh: Float[Array, "hidden three_hidden"],
    bias_hh: Float[Array, "three_hidden"] | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    r"""Take one step of a GRU, in the form of cuDNN and PyTorch that resets after the product (Cho et al., 2014).

    .. math::
        r, z &= σ(\mathrm{projected}_{rz} + h W_{rz} + b_{rz}) \\
        n &= \tanh(\mathrm{projected}_n + r \odot (h W_n + b_n)) \\
        h^\prime &= (1 - z) \odot n + z \odot h

    The reset gate multiplies b_n, so b_n cannot be merged with the bias of `projected`.

    Args:
        carry: h, `[*batch, H]`.
        projected: x W_ih + b_ih, `[*batch, 3H]`, gates in the order r, z, n.
        kernel_hh: `[H, 3H]`, the transpose of PyTorch's `weight_hh`.
        bias_hh: `[3H]`.

    Returns:
        The new carry h' and the output h'.
    """
    h = carry
    recurrent = _project_state(h, kernel_hh, bias_hh, projected, num_gates=3)
    input_r, input_z, input_n = jnp.split(projected, 3, axis=-1)
    hidden_r, hidden_z, hidden_n = jnp.split(recurrent, 3, axis=-1)
    r = jax.nn.sigmoid(input_r + hidden_r)
    z = jax.nn.sigmoid(input_z + hidden_z)
    n = jnp.tanh(input_n + r * hidden_n)
    h = (1 - z) * n + z * h
    return h, h


def _project_state(h: Array, kernel_hh: Array, bias_hh: Array | None, projected: Array, *, num_gates: int) -> Array:
    """Check the shapes, and return h W_hh + b_hh."""
    require_float(carry=h, projected=projected, kernel_hh=kernel_hh)
    require_rank(1, "[*batch, H]", carry=h)
    gates = num_gates * h.shape[-1]
    require_shape((*h.shape[:-1], gates), projected=projected)
    require_shape((h.shape[-1], gates), kernel_hh=kernel_hh)
    recurrent = h @ kernel_hh
    if bias_hh is not None:
        require_float(bias_hh=bias_hh)
        require_shape((gates,), bias_hh=bias_hh)
        recurrent = recurrent + bias_hh
    return recurrent


def unroll(
    step: Callable[[Carry, Array], tuple[Carry, Array]],
    carry: Carry,
    inputs: Num[Array, "*batch time feature"],
    valid_lens: Int[Array, "*batch"] | None = None,
    *,
    reverse: bool = False,
    project: Callable[[Array], Array] = lambda inputs: inputs,
) -> tuple[Carry, Any]:
    """Run a step over time, each sequence up to its own length.

    Past a sequence's length the carry does not change and the output is 0. So the final carry is the one after the last
    valid position, and padding changes neither a result nor a gradient. In reverse, each sequence starts at its last
    valid position.

    Args:
        step: (carry, inputs of one time `[*batch, D]`) -> (carry, output `[*batch, H]`).
        carry: a pytree of arrays `[*batch, ...]`.
        inputs: `[*batch, T, D]`.
        valid_lens: `[*batch]`, or None to run through all T.
        reverse: run from the last position to the first; each output stays at its position.
        project: applied to the inputs of all times at once, `[T, *batch, D]` to `[T, *batch, D']`, before the loop. The
            step then takes `[*batch, D']`.

    Returns:
        The final carry and the outputs `[*batch, T, H]`.
    """
    require_rank(2, "[*batch, T, D]", inputs=inputs)
    if valid_lens is None:
        valid = None
    else:
        valid_lens = as_array("valid_lens", valid_lens)
        require_shape(inputs.shape[:-2], valid_lens=valid_lens)
        valid = jnp.moveaxis(length_mask(valid_lens, inputs.shape[-2]), -1, 0)  # [T, *batch]
        inputs = sequence_mask(inputs, valid_lens)  # 0 · NaN is NaN: what is discarded below must be finite

    def advance(carry, at_time):
        x, valid = at_time
        new_carry, output = step(carry, x)
        if valid is None:
            return new_carry, output
        carry = jax.tree.map(lambda new, old: jnp.where(_align(valid, new), new, old), new_carry, carry)
        return carry, jnp.where(_align(valid, output), output, 0)

    projected = project(jnp.moveaxis(inputs, -2, 0))  # time first, since the projection makes more features
    carry, outputs = scan(advance, carry, (projected, valid), reverse=reverse)
    return carry, jnp.moveaxis(outputs, 0, inputs.ndim - 2)


def scan(
    step: Callable[[Carry, Any], tuple[Carry, Any]], carry: Carry, inputs: Any, *, reverse: bool = False
) -> tuple[Carry, Any]:
    """Run `jax.lax.scan`, keeping only products for the backward pass: activations are cheaper to compute than to keep.

    Under `jax.disable_jit` each step runs operation by operation, so that its values can be looked at.
    """
    if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        step = jax.checkpoint(step, prevent_cse=False, policy=jax.checkpoint_policies.dots_saveable)
    return jax.lax.scan(step, carry, inputs, reverse=reverse)


def _align(valid: Array, array: Array) -> Array:
    """Append axes of size 1 to `valid`, so that it selects whole examples of `array`."""
    return valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))

"""Mistakes that need code of their own: in jax_attn, and some that are the same in either framework."""

from typing import Any

import jax
import jax.numpy as jnp

from parity_tests.this_library.faults.fault import around


@around
def over_queries(softmax: Any, scores: Any, *, mask: Any = None, **options: Any) -> Any:
    """Take the softmax over the wrong axis."""
    return softmax(scores.mT, mask=None if mask is None else mask.mT, **options).mT


def unshifted(scores: Any, *arguments: Any, **options: Any) -> Any:
    """Leave out subtracting the row's maximum: exp overflows at large scores."""
    exponents = jnp.exp(scores)
    return exponents / exponents.sum(-1, keepdims=True)


@around
def in_float32(function: Any, scores: Any, **options: Any) -> Any:
    """Leave a cast in: it cannot be seen at a tolerance of 1e-3."""
    return function(scores.astype(jnp.float32), **options).astype(scores.dtype)


def heads_in_turn(self: Any, x: Any) -> Any:
    """Deal features out to the heads in turn, not in blocks."""
    return x.reshape(*x.shape[:-1], -1, self.num_heads).swapaxes(-1, -2).swapaxes(-2, -3)


# Recurrence


@around
def cell_without_tanh(step: Any, *arguments: Any) -> Any:
    (h, c), _ = step(*arguments)
    h = h * c / jnp.tanh(c)
    return (h, c), h


@around
def bias_outside_reset(step: Any, h: Any, projected: Any, weight: Any, bias: Any = None) -> Any:
    """Add a GRU's b_hn to the input's part: right for every gate but this one."""
    return step(h, projected if bias is None else projected + bias, weight, None)


def reset_before(h: Any, projected: Any, kernel: Any, bias: Any = 0.0) -> Any:
    """Compute the GRU of the first paper: n = tanh(x_n + W_n (r ∘ h) + b_n)."""
    size = h.shape[-1]
    r, z, _ = jnp.split(jax.nn.sigmoid(projected + h @ kernel + bias), 3, axis=-1)
    n = jnp.tanh((projected + (r * h) @ kernel + bias)[..., 2 * size :])
    h = (1 - z) * n + z * h
    return h, h


@around
def update_turned_round(step: Any, h: Any, projected: Any, kernel: Any, bias: Any = 0.0) -> Any:
    """Compute h' = z n + (1 − z) h, the convention of the GRU's first paper."""
    new, _ = step(h, projected, kernel, bias)
    _, z, _ = jnp.split(jax.nn.sigmoid(projected + h @ kernel + bias), 3, axis=-1)
    new = z * (new - z * h) / (1 - z) + (1 - z) * h
    return new, new


def one_step_back(step: Any) -> Any:
    """Let no gradient through the carry."""
    return lambda carry, x: step(jax.lax.stop_gradient(carry), x)


# Models and losses


@around
def parts_exchanged(cells: Any, self: Any, memory: Any) -> Any:
    embedding, (first, *upper) = cells(self, memory)
    if first.kernel_ih.shape != embedding.kernel_ih.shape:
        return embedding, (first, *upper)
    exchanged = embedding._replace(kernel_ih=first.kernel_ih)
    return exchanged, (first._replace(kernel_ih=embedding.kernel_ih), *upper)


@around
def second_step_forgotten(advance: Any, self: Any, cells: Any, projected: Any, state: Any, *rest: Any) -> Any:
    """Carry the first step's state on: the second one then moves the output alone."""
    new, output, weights = advance(self, cells, projected, state, *rest)
    first, _ = self.rnn.advance(cells[0], state.rnn[0], projected, state.feed)
    return new._replace(rnn=(first, *new.rnn[1:])), output, weights


def tie_not_learnt(self: Any, outputs: Any) -> Any:
    """Let no gradient reach the embedding from the output layer."""
    return outputs @ jax.lax.stop_gradient(self.embedding.embedding).T + self.dense_bias


@around
def mean_over_padding(loss: Any, *arguments: Any, **options: Any) -> Any:
    return loss(*arguments, **{**options, "reduction": "none"}).mean()


@around
def first_not_summed(scan: Any, body: Any, carry: Any, xs: Any) -> Any:
    """Leave the first step out of a loop's sums. What the loop stacks is right, and so are the losses."""
    return scan(body, carry, jax.tree.map(lambda x: x[1:], xs))[0], scan(body, carry, xs)[1]

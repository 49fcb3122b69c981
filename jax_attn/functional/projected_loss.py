"""Cross entropy straight from the features under a large output layer, without ever holding all its logits.

A batch of 2048 tokens over a vocabulary of 8000 has 65 MB of logits, which a loss after the output layer writes and
reads a dozen times, as probabilities, gradients and their parts. Here rows are taken block by block. While a block's
logits are in the cache, both the loss and, where it is asked for, the gradient are made of them. Rows that do not count
come last, and no block is made of them alone.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jax_attn.functional.checks import require_float, require_integer, require_shape, wide_dtype

BLOCK = 2**22
"""Logits of one block, 16 MB in float32. Each block costs a pass over the output layer's gradient as well."""


def projected_cross_entropy(
    features: Float[Array, "*batch time feature"],
    kernel: Float[Array, "feature vocab"],
    bias: Float[Array, "vocab"],
    labels: Int[Array, "*batch time"],
    weights: Float[Array, "*batch time"],
    *,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, "*batch time"]]:
    """The weighted sum of the cross entropies of all tokens, and each of them.

        total = Σ_t weights[t] · loss[t]
        loss[t] = −(1 − ε) log p[label_t] − ε/N Σ_n log p[n],   p = softmax(features[t] · kernel + bias)

    `masked_cross_entropy` of the logits is the same sum, with weights of 0 where masked and else of one over the number
    of tokens ("tokens") or over T ("sentences"). The gradient is that of the total, with y = (1 − ε) onehot + ε/N:

        dlogits = weights (p − y)         dfeatures = dlogits kernelᵀ
        dkernel = featuresᵀ dlogits       dbias = Σ_t dlogits

    Args:
        features: `[*batch, T, H]`.
        kernel, bias: `[H, N]` and `[N]`, the output layer.
        labels: `[*batch, T]` integers in [0, N) wherever the weight is not 0, elsewhere anything. One that counts and
            is out of range gives NaN.
        weights: `[*batch, T]`. Where it is 0, features and label reach neither value nor gradient, be they NaN.
        label_smoothing: ε, with the meaning of PyTorch's `cross_entropy`.

    Returns:
        The total, and the losses in nats `[*batch, T]`, 0 where the weight is 0, through which no gradient flows; both
        in float32 or wider. There is no forward mode, and no second derivative.

    Raises:
        ValueError, TypeError: shapes or dtypes that do not fit; a label smoothing outside [0, 1].
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {label_smoothing}")
    require_float(features=features, kernel=kernel, bias=bias, weights=weights)
    require_integer(labels=labels)
    require_shape((features.shape[-1], bias.shape[0]), kernel=kernel)
    require_shape(features.shape[:-1], labels=labels, weights=weights)
    rows = Rows(features.reshape(-1, features.shape[-1]), labels.reshape(-1), weights.reshape(-1))
    rows = rows._replace(features=jnp.where(rows.weights[:, None] != 0, rows.features, 0))
    total, losses = _weighted_sum(label_smoothing, kernel, bias, rows)
    return total, jax.lax.stop_gradient(losses).reshape(labels.shape)


class Rows(NamedTuple):
    """Tokens, one after the other."""

    features: Float[Array, "row feature"]
    labels: Int[Array, "row"]
    weights: Float[Array, "row"]


class Blocks(NamedTuple):
    """The rows in blocks of one size, those that count first."""

    rows: Rows
    """`[blocks, rows of one, …]`; the last is filled up with weights of 0."""
    num_counting: Int[Array, ""]
    """How many of the blocks hold a row that counts."""
    places: Int[Array, "row"] | None
    """Where each row stands; None where they stand as they did."""

    @classmethod
    def of(cls, rows: Rows, vocab_size: int) -> "Blocks":
        total = len(rows.labels)
        count = max(1, -(-total * vocab_size // BLOCK))
        if count == 1:
            return cls(jax.tree.map(lambda x: x[None], rows), jnp.ones((), int), None)
        size = -(-total // count)
        order = jnp.argsort(rows.weights == 0, stable=True)
        filled = jnp.pad(order, (0, count * size - total), constant_values=total)
        taken = jax.tree.map(lambda x: jnp.take(x, filled, axis=0, mode="fill", fill_value=0), rows)
        blocks = jax.tree.map(lambda x: x.reshape(count, size, *x.shape[1:]), taken)
        return cls(blocks, -(-(rows.weights != 0).sum() // size), jnp.argsort(order))

    def put_back(self, found: Float[Array, "block size *feature"]) -> Float[Array, "row *feature"]:
        """What was found for the rows of the blocks, in the order that the rows came in."""
        of_rows = found.reshape(-1, *found.shape[2:])
        return of_rows if self.places is None else of_rows[self.places]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_sum(label_smoothing: float, kernel: Array, bias: Array, rows: Rows) -> tuple[Array, Array]:
    """Σ weights · losses, and the losses `[R]`."""

    def of_all(kernel: Array, bias: Array, blocks: Rows) -> Array:
        return jax.lax.map(lambda block: _losses(label_smoothing, kernel, bias, block)[0], blocks)

    blocks = Blocks.of(rows, len(bias))
    losses = blocks.put_back(of_all(kernel, bias, blocks.rows))
    return (rows.weights * losses).sum(), losses


def _forward(label_smoothing: float, kernel: Array, bias: Array, rows: Rows) -> tuple[tuple[Array, Array], Any]:
    """The gradient of the total is made here, of the same logits."""

    def of_all(kernel: Array, bias: Array, blocks: Rows) -> Any:
        def of_block(so_far: tuple[Array, Array], block: Rows) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
            losses, to_logits = _losses(label_smoothing, kernel, bias, block)
            to_features = jax.lax.dot_general(to_logits, kernel, (((1,), (1,)), ((), ())))
            to_kernel = jax.lax.dot_general(block.features, to_logits, (((0,), (0,)), ((), ())))
            to_bias = to_logits.sum(axis=0, dtype=so_far[1].dtype)
            return (so_far[0] + to_kernel, so_far[1] + to_bias), (losses, to_features.astype(block.features.dtype))

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, wide_dtype(x)), (kernel, bias))
        return jax.lax.scan(of_block, zeros, blocks)

    blocks = Blocks.of(rows, len(bias))
    of_output, of_rows = of_all(kernel, bias, blocks.rows)
    to_kernel, to_bias = (x.astype(like.dtype) for x, like in zip(of_output, (kernel, bias), strict=True))
    losses, to_features = (blocks.put_back(x) for x in of_rows)
    return ((rows.weights * losses).sum(), losses), (to_kernel, to_bias, to_features, losses.astype(rows.weights.dtype))


def _backward(label_smoothing: float, residuals: Any, gradients: tuple[Array, Array]) -> tuple[Array, Array, Rows]:
    to_kernel, to_bias, to_features, to_weights = (gradients[0].astype(x.dtype) * x for x in residuals)
    return to_kernel, to_bias, Rows(to_features, None, to_weights)  # type: ignore[arg-type]  # labels are integers


_weighted_sum.defvjp(_forward, _backward)


def _losses(label_smoothing: float, kernel: Array, bias: Array, rows: Rows) -> tuple[Array, Array]:
    """Of a block's rows the losses `[R]`, 0 where the weight is, and the gradient of their weighted sum `[R, N]`."""
    logits = rows.features @ kernel + bias
    wide = logits.astype(wide_dtype(logits))
    shifted = wide - wide.max(axis=-1, keepdims=True)
    exponents = jnp.exp(shifted)
    total = exponents.sum(axis=-1, keepdims=True)
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == rows.labels[:, None]
    of_label = (1 - label_smoothing) * is_label + label_smoothing / vocab_size
    losses = (of_label * (jnp.log(total) - shifted)).sum(axis=-1)
    known = (rows.labels >= 0) & (rows.labels < vocab_size)
    losses = jnp.where(rows.weights != 0, jnp.where(known, losses, jnp.nan), 0)
    to_logits = rows.weights[:, None] * (exponents / total - of_label)
    return losses, to_logits.astype(logits.dtype)

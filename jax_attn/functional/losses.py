"""Cross entropy of a sequence model: from logits, or from the features under a large output layer."""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Num

from jax_attn.functional.checks import as_array, require_float, require_integer, require_rank, require_shape, wide_dtype
from jax_attn.functional.masks import checked_mask, length_mask
from jax_attn.functional.softmax import row_maximum

Reduction = Literal["tokens", "sentences", "none"]

BLOCK = 2**22
"""The most logits that `projected_cross_entropy` holds at once, 16 MB in float32; but one time step at least."""


def masked_cross_entropy(
    logits: Float[Array, "*batch time vocab"],
    labels: Int[Array, "*batch time"],
    valid_lens: Num[Array, "*batch"] | None = None,
    mask: Bool[Array, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    reduction: Reduction = "tokens",
) -> Float[Array, "..."]:
    r"""Compute the cross entropy of the labels that count, in nats.

    .. math::
        l_t &= -(1 - ε) \log p_t(y_t) - \frac{ε}{N} \sum_n \log p_t(n) \\
        p_t &= \mathrm{softmax}(\mathrm{logits}_t)

    Args:
        logits: `[*batch, T, N]`.
        labels: `[*batch, T]` integers in [0, N) where they count, anything elsewhere (−100 for example). A label that
            counts and is out of range gives NaN: under jit no error can be raised, and a wrong number must not pass.
            A NumPy label that does not fit JAX's dtype (int32 without x64) is an error wherever it stands.
        valid_lens: `[*batch]`, the number of positions that count.
        mask: boolean, broadcastable to `[*batch, T]`; True = counts. If both are given, both must allow.
        label_smoothing: ε, with the meaning of PyTorch's `cross_entropy`.
        reduction: "tokens": the sum divided by the number of tokens that count (0 if there are none);
            "sentences": `[*batch]`, each sentence's sum divided by T, padding included (d2l's `MaskedSoftmaxCELoss`);
            "none": `[*batch, T]`, 0 where masked.

    Returns:
        The loss, in float32 or wider. A masked position changes neither the value nor a gradient, even if it holds NaN.

    Raises:
        ValueError, TypeError: shapes or dtypes that do not fit, an unknown reduction, a label smoothing outside [0, 1].
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}; got {reduction!r}")
    _require_smoothing(label_smoothing)
    require_float(logits=logits)
    require_integer(labels=labels)
    require_rank(2, "[*batch, T, N]", logits=logits)
    require_shape(logits.shape[:-1], labels=labels)
    is_counted = jnp.ones(labels.shape, bool)
    if valid_lens is not None:
        require_shape(labels.shape[:-1], valid_lens=as_array("valid_lens", valid_lens))
        is_counted &= length_mask(valid_lens, labels.shape[-1])
    if mask is not None:
        is_counted &= checked_mask(mask, labels.shape)

    logits = jnp.where(is_counted[..., None], logits, 0).astype(wide_dtype(logits))
    labels = _wide(labels)
    in_range = (labels >= 0) & (labels < logits.shape[-1])
    # A comparison instead of a gather: XLA fuses it with the sums around it, and its gradient is no scatter.
    is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
    shifted = logits - row_maximum(jax.lax.stop_gradient(logits))
    log_total = jnp.log(jnp.exp(shifted).sum(axis=-1))
    losses = log_total - (1 - label_smoothing) * jnp.where(is_label, shifted, 0).sum(axis=-1)
    if label_smoothing:
        losses = losses - label_smoothing * shifted.mean(axis=-1)
    losses = jnp.where(is_counted, jnp.where(in_range, losses, jnp.nan), 0)
    if reduction == "none":
        return losses
    if reduction == "sentences":
        return losses.mean(axis=-1)
    return losses.sum() / jnp.maximum(is_counted.sum(), 1)


def projected_cross_entropy(
    features: Float[Array, "*batch time feature"],
    kernel: Float[Array, "feature vocab"],
    bias: Float[Array, "vocab"],
    labels: Int[Array, "*batch time"],
    weights: Float[Array, "*batch time"],
    *,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, "*batch time"]]:
    r"""Compute the weighted sum of all tokens' cross entropies from the features under the output layer.

    .. math::
        \mathrm{total} &= \sum_t w_t l_t \\
        l_t &= -(1 - ε) \log p_t(y_t) - \frac{ε}{N} \sum_n \log p_t(n) \\
        p_t &= \mathrm{softmax}(\mathrm{features}_t \, \mathrm{kernel} + \mathrm{bias})

    The logits are made block by block, a few time steps each, and never held all at once: 2048 tokens over a vocabulary
    of 8000 have 65 MB of them, which a loss after the output layer writes and reads a dozen times. The gradient is made
    together with the loss, from the same logits. With y = (1 − ε) onehot + ε/N it is

        dlogits = weights (p − y)         dfeatures = dlogits kernelᵀ
        dkernel = featuresᵀ dlogits       dbias = Σ_t dlogits

    `masked_cross_entropy` of the logits is the same sum with weights of 0 where masked, and elsewhere 1 divided by the
    number of tokens ("tokens") or by T ("sentences").

    The second result has no smoothing, so that a training's number can be compared with a validation's.

    Args:
        features: `[*batch, T, H]`.
        kernel, bias: `[H, N]` and `[N]`, the output layer.
        labels: `[*batch, T]` integers in [0, N) where the weight is not 0, anything elsewhere. A label that counts and
            is out of range gives NaN. A NumPy label must fit JAX's dtype, see `masked_cross_entropy`.
        weights: `[*batch, T]`. Where a weight is 0, feature and label change neither the value nor a gradient, even if
            they are NaN.
        label_smoothing: ε, with the meaning of PyTorch's `cross_entropy`.

    Returns:
        The total, and −log p[label_t] in nats `[*batch, T]`, 0 where the weight is 0, which has no gradient; both in
        float32 or wider. There is no forward mode, and no second derivative.

    Raises:
        ValueError, TypeError: shapes or dtypes that do not fit, a label smoothing outside [0, 1].
    """
    _require_smoothing(label_smoothing)
    require_float(features=features, kernel=kernel, bias=bias, weights=weights)
    require_integer(labels=labels)
    require_shape((features.shape[-1], bias.shape[0]), kernel=kernel)
    require_shape(features.shape[:-1], labels=labels, weights=weights)
    features, labels = jnp.where(weights[..., None] != 0, features, 0), _wide(labels)

    batch, time = math.prod(labels.shape[:-1]), labels.shape[-1]
    most = max(1, BLOCK // max(1, batch * bias.size))  # time steps of a block
    num_blocks = max(1, -(-time // most))
    steps = -(-time // num_blocks)  # as few as that number of blocks allows: what is left over is computed, too

    def in_blocks(x: Array) -> Array:
        """`[*batch, T, …]` as `[blocks, rows, …]`: a block holds a few time steps of the whole batch."""
        features = x.shape[labels.ndim :]
        x = x.reshape(batch, time, *features)
        x = jnp.pad(x, [(0, num_blocks * steps - time if axis == 1 else 0) for axis in range(x.ndim)])
        x = jnp.moveaxis(x.reshape(batch, num_blocks, steps, *features), 1, 0)
        return x.reshape(num_blocks, batch * steps, *features)

    total, nats = _sum_of_blocks(label_smoothing, kernel, bias, Rows(*map(in_blocks, (features, labels, weights))))
    nats = jnp.moveaxis(nats.reshape(num_blocks, batch, steps), 0, 1).reshape(batch, num_blocks * steps)
    return total, jax.lax.stop_gradient(nats[:, :time].reshape(labels.shape))


class Rows(NamedTuple):
    """Tokens in blocks of one size, `[blocks, rows of one, …]`; or, within a loop over the blocks, `[rows, …]`."""

    features: Float[Array, "*blocks row feature"]
    labels: Int[Array, "*blocks row"]
    weights: Float[Array, "*blocks row"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_of_blocks(label_smoothing: float, kernel: Array, bias: Array, blocks: Rows) -> tuple[Array, Array]:
    """Return Σ weights · losses, and the nats `[blocks, rows]`."""
    losses, nats = jax.lax.map(lambda block: _losses_and_gradient(label_smoothing, kernel, bias, block)[:2], blocks)
    return (blocks.weights * losses).sum(), nats


def _forward(label_smoothing: float, kernel: Array, bias: Array, blocks: Rows) -> tuple[tuple[Array, Array], Any]:
    """Make the gradient of the total as well, while a block's logits are in the cache."""

    def add_block(so_far: tuple[Array, Array], block: Rows) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        losses, nats, d_logits = _losses_and_gradient(label_smoothing, kernel, bias, block)
        # The weights come in here, and not in the logits' gradient: they are small, and so are most of p − y. In
        # float16 their product would be 0.
        weights = block.weights.astype(wide)
        d_features = jax.lax.dot_general(d_logits, kernel, (((1,), (1,)), ((), ())), preferred_element_type=wide)
        weighted = (block.features * weights[:, None]).astype(block.features.dtype)
        d_kernel = jax.lax.dot_general(weighted, d_logits, (((0,), (0,)), ((), ())))
        d_bias = jnp.matmul(weights, d_logits, preferred_element_type=wide)  # see `modules.dense.project`
        return (so_far[0] + d_kernel, so_far[1] + d_bias), (losses, nats, d_features * weights[:, None])

    wide = wide_dtype(blocks.features, kernel, bias)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, wide), (kernel, bias))
    (d_kernel, d_bias), (losses, nats, d_features) = jax.lax.scan(add_block, zeros, blocks)
    dtypes = [jnp.zeros((), x.dtype) for x in (kernel, bias, blocks.features, blocks.weights)]
    return ((blocks.weights * losses).sum(), nats), ((d_kernel, d_bias, d_features, losses), dtypes)


def _backward(label_smoothing: float, residuals: Any, d_outputs: tuple[Array, Array]) -> tuple[Array, Array, Rows]:
    """Multiply by the gradient of the total before the cast to the arguments' dtypes: it may be a large factor."""
    d_kernel, d_bias, d_features, d_weights = (
        (d_outputs[0] * gradient).astype(like.dtype) for gradient, like in zip(*residuals, strict=True)
    )
    return d_kernel, d_bias, Rows(d_features, None, d_weights)  # type: ignore[arg-type]  # labels are integers


_sum_of_blocks.defvjp(_forward, _backward)


def _losses_and_gradient(label_smoothing: float, kernel: Array, bias: Array, rows: Rows) -> tuple[Array, Array, Array]:
    """Compute one block.

    Returns:
        The losses `[R]`; the nats `[R]`, which are the losses without smoothing; and the gradient of each loss with
        respect to its logits `[R, N]`.
    """
    logits = rows.features @ kernel + bias
    wide = logits.astype(wide_dtype(logits))
    shifted = wide - row_maximum(wide)
    exponents = jnp.exp(shifted)
    total = exponents.sum(axis=-1, keepdims=True)
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == rows.labels[:, None]
    surprise = jnp.log(total) - shifted  # −log p
    losses = nats = jnp.where(is_label, surprise, 0).sum(axis=-1)
    if label_smoothing:
        losses = (1 - label_smoothing) * nats + label_smoothing * surprise.mean(axis=-1)
    in_range = (rows.labels >= 0) & (rows.labels < vocab_size)
    losses, nats = (jnp.where(rows.weights != 0, jnp.where(in_range, x, jnp.nan), 0) for x in (losses, nats))
    target = (1 - label_smoothing) * is_label + label_smoothing / vocab_size
    return losses, nats, (exponents / total - target).astype(logits.dtype)


def _wide(labels: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Return the labels in 32 bits or more: the number of classes may not fit into their own dtype."""
    return labels if labels.dtype.itemsize >= 4 else labels.astype(jnp.int32)


def _require_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1]; got {label_smoothing}")

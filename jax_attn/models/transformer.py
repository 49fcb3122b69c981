"""The Transformer's encoder and decoder (Vaswani et al., 2017). Teacher forcing and search go through the same layers.

`EncoderDecoder` makes one model of the two:

    model = EncoderDecoder(TransformerEncoder(10_000, 128, 256), TransformerDecoder(10_000, 128, 256))
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from jax_attn.functional.checks import (
    require_ids,
    require_lengths,
    require_rate,
    require_shape,
    shape_text,
    wide_dtype,
)
from jax_attn.functional.dropout import draw_keep_masks, drop, require_keep_masks
from jax_attn.functional.masks import causal_mask, length_mask
from jax_attn.functional.positions import sinusoidal_positions
from jax_attn.functional.softmax import masked_log_softmax
from jax_attn.models.base_decoder import BaseDecoder
from jax_attn.models.interface import AttentionMaps
from jax_attn.modules.attention import Memory, MultiHeadAttention
from jax_attn.modules.feed_forward import ACTIVATIONS, FeedForward
from jax_attn.search.step import Stationary
from jax_attn.settings import Norm, Positions


class TransformerKeepMasks(NamedTuple):
    """The entries that the dropout of a stack of layers keeps."""

    embedding: Bool[Array, "batch time feature"] | None = None
    residual: Bool[Array, "batch layers sublayers time feature"] | None = None
    """For the result of each sublayer: self-attention, attention to the source (decoder), feed-forward."""
    hidden: Bool[Array, "batch layers time hidden"] | None = None
    """For the features between the two layers of the feed-forward network."""
    self_attention: Bool[Array, "batch layers heads time time"] | None = None
    """For the attention weights."""
    cross_attention: Bool[Array, "batch layers heads time source"] | None = None

    def layer(self, number: int) -> "TransformerKeepMasks":
        """Return the masks of one layer, without that axis."""
        return TransformerKeepMasks(None, *(None if mask is None else mask[:, number] for mask in self[1:]))


KEEP_ALL = TransformerKeepMasks()


class TransformerState(NamedTuple):
    """What a decoding step leaves for the next. Every leaf but the cache leads with batch × beam."""

    time: Int[Array, "rows"]
    """The number of tokens read, the same in every row."""
    places: Int[Array, "rows length"]
    """The place in the beam that each hypothesis had at each time. The keys and values of that time stand there in the
    cache, so that the cache need not be copied when the beam is reordered."""
    cache: Stationary
    """(keys, values) of each layer, each `[batch, heads, length · beam, H / heads]`; time t begins at t · beam."""


AttendSelf = Callable[[MultiHeadAttention, Array], tuple[Array, Any]]
"""(attention of a layer, its queries) -> context, and the attention weights or the new cache."""


def make_norm(epsilon: float, dtype: DTypeLike | None, param_dtype: DTypeLike) -> nn.LayerNorm:
    """Make a layer norm. The fast variance, E[x²] − E[x]², would lose digits of features whose mean is large."""
    return nn.LayerNorm(epsilon, dtype, param_dtype, use_fast_variance=False)


class TransformerLayer(nn.Module):
    r"""Self-attention, attention to the source in a decoder, and a feed-forward network, each with a residual sum.

    With `norm="post"` (Vaswani et al., 2017) and `norm="pre"` (Xiong et al., 2020), for each of them:

    .. math::
        \mathrm{post:} \quad x &\leftarrow \mathrm{norm}(x + \mathrm{dropout}(f(x))) \\
        \mathrm{pre:} \quad x &\leftarrow x + \mathrm{dropout}(f(\mathrm{norm}(x)))

    It is a part of `TransformerEncoder` and `TransformerDecoder`, which explain the arguments.
    """

    embed_size: int
    num_hiddens: int
    num_heads: int
    reads_source: bool
    dropout: float
    dropout_attention: float
    dropout_hidden: float
    activation: str
    norm: Norm
    norm_epsilon: float
    use_bias: bool
    dtype: DTypeLike | None
    param_dtype: DTypeLike

    def setup(self) -> None:
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        def attention() -> MultiHeadAttention:
            size, xavier = self.embed_size, nn.initializers.xavier_uniform()
            return MultiHeadAttention(
                size, self.num_heads, self.dropout_attention, self.use_bias, kernel_init=xavier, **dtypes
            )

        def norm() -> nn.LayerNorm:
            return make_norm(self.norm_epsilon, **dtypes)

        self.self_attention, self.self_attention_norm = attention(), norm()
        if self.reads_source:
            self.cross_attention, self.cross_attention_norm = attention(), norm()
        self.feed_forward = FeedForward(
            self.num_hiddens, self.embed_size, self.dropout_hidden,
            activation=self.activation, use_bias=self.use_bias, **dtypes,
        )  # fmt: skip
        self.feed_forward_norm = norm()

    def prepare(self, encoded: Array, valid_lens: Array | None) -> Memory:
        """Project the encoder's outputs to keys and values, once for all steps."""
        return self.cross_attention.prepare(encoded, encoded, valid_lens)

    def __call__(
        self,
        x: Float[Array, "batch query feature"],
        attend_self: AttendSelf,
        memory: Memory | None = None,
        keep: TransformerKeepMasks = KEEP_ALL,
        *,
        return_weights: bool = False,
    ) -> tuple[Float[Array, "batch query feature"], Any, Float[Array, "batch heads query source"] | None]:
        """Return the layer's result, the second result of `attend_self`, and the weights on the source."""
        context, found = attend_self(self.self_attention, self._before(self.self_attention_norm, x))
        x, weights = self._add(self.self_attention_norm, x, context, keep, 0), None
        if memory is not None:
            queries = self._before(self.cross_attention_norm, x)
            context, weights = self.cross_attention.attend(
                queries, memory, keep_mask=keep.cross_attention, return_weights=return_weights
            )
            x = self._add(self.cross_attention_norm, x, context, keep, 1)
        result = self.feed_forward(self._before(self.feed_forward_norm, x), keep_mask=keep.hidden)
        return self._add(self.feed_forward_norm, x, result, keep, -1), found, weights

    def _before(self, norm: nn.LayerNorm, x: Array) -> Array:
        return norm(x) if self.norm == "pre" else x

    def _add(self, norm: nn.LayerNorm, x: Array, result: Array, keep: TransformerKeepMasks, sublayer: int) -> Array:
        mask = None if keep.residual is None else keep.residual[:, sublayer]
        x = x + drop(result, self.dropout, mask)
        return x if self.norm == "pre" else norm(x)


class TransformerStack(nn.Module):
    """The base class of encoder and decoder: embeddings with positions, and layers.

    Args of both:
        vocab_size: N.
        embed_size: features of an embedding and of every layer's result.
        num_hiddens: features between the two layers of a feed-forward network.
        num_layers: the number of layers.
        num_heads: heads of every attention; must divide `embed_size`.
        dropout: the rate of the embeddings and of each sublayer's result.
        dropout_attention: the rate of the attention weights.
        dropout_hidden: the rate of the features between the two layers of a feed-forward network.
        activation: "relu", "gelu" or "silu", of the feed-forward networks.
        norm: where a layer is normalised, see `TransformerLayer`. With "pre" the last result is normalised too.
        norm_epsilon: added to the variance.
        positions: a form of `sinusoidal_positions`, or "learnt".
        max_len: the number of learnt positions.
        scale_embedding: multiply the embeddings by √embed_size, before the positions are added.
        use_bias: whether the dense layers of attention and feed-forward networks have biases.
        dtype, param_dtype: as in Flax.
    """

    vocab_size: int
    embed_size: int
    num_hiddens: int
    num_layers: int = 2
    num_heads: int = 4
    dropout: float = 0.0
    dropout_attention: float = field(default=0.0, kw_only=True)
    dropout_hidden: float = field(default=0.0, kw_only=True)
    activation: str = field(default="relu", kw_only=True)
    norm: Norm = field(default="post", kw_only=True)
    norm_epsilon: float = field(default=1e-5, kw_only=True)
    positions: Positions = field(default="interleaved", kw_only=True)
    max_len: int = field(default=512, kw_only=True)
    scale_embedding: bool = field(default=True, kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    reads_source: ClassVar[bool] = False

    def __post_init__(self) -> None:
        choices = {"norm": get_args(Norm), "positions": get_args(Positions), "activation": tuple(ACTIVATIONS)}
        for name, names in choices.items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name} must be one of {names}; got {getattr(self, name)!r}")
        for name in ("vocab_size", "embed_size", "num_hiddens", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.embed_size % self.num_heads:
            raise ValueError(
                f"embed_size must be a multiple of num_heads; got {self.embed_size} for {self.num_heads} heads"
            )
        require_rate(dropout=self.dropout, dropout_attention=self.dropout_attention, dropout_hidden=self.dropout_hidden)
        super().__post_init__()

    def setup(self) -> None:
        draw = nn.initializers.normal(self.embed_size**-0.5)
        self.embedding = nn.Embed(self.vocab_size, self.embed_size, self.dtype, self.param_dtype, draw)
        if self.positions == "learnt":
            self.position_embedding = nn.Embed(self.max_len, self.embed_size, self.dtype, self.param_dtype, draw)
        shared = (name for name in TransformerLayer.__dataclass_fields__ if name not in ("parent", "name"))
        settings = {name: getattr(self, name) for name in shared}
        self.layers = [TransformerLayer(**settings) for _ in range(self.num_layers)]
        if self.norm == "pre":
            self.last_norm = make_norm(self.norm_epsilon, self.dtype, self.param_dtype)

    def first_positions(self, length: int) -> Float[Array, "{length} feature"]:
        """Return what is added to the embeddings of positions 0 … length − 1; ValueError if fewer are learnt."""
        if self.positions != "learnt":
            dtype = self.dtype or self.param_dtype
            return sinusoidal_positions(length, self.embed_size, dtype, form=self.positions)
        if length > self.max_len:
            raise ValueError(f"max_len = {self.max_len} positions are learnt; got {length} tokens")
        return self.position_embedding(jnp.arange(length))

    def embed(
        self, embedding: Callable[[Array], Array], tokens: Array, positions: Array, keep_mask: Array | None = None
    ) -> Array:
        """Embed tokens and add their positions, which broadcast to `[batch, time, feature]`."""
        scale = self.embed_size**0.5 if self.scale_embedding else 1.0
        return drop(embedding(tokens) * scale + positions, self.dropout, keep_mask)

    def _run(
        self, x: Array, keep: TransformerKeepMasks, valid_lens: Any, mask: Any, memory: Any, return_weights: bool
    ) -> tuple[Array, list[Any], list[Any]]:
        """Run all layers on whole sentences. Return the result, and each layer's weights on its side and the source."""
        own_weights, weights = [], []
        for number, layer in enumerate(self.layers):
            of_layer, source = keep.layer(number), None if memory is None else memory[number]
            attend_self = _attend_to_all(of_layer, valid_lens, mask, return_weights)
            x, own, on_source = layer(x, attend_self, source, of_layer, return_weights=return_weights)
            own_weights.append(own)
            weights.append(on_source)
        return self._last(x), own_weights, weights

    def _last(self, x: Array) -> Array:
        return self.last_norm(x) if self.norm == "pre" else x

    @nn.nowrap
    def draw_keep_masks(self, key: PRNGKeyArray, shape: tuple[int, ...], source_len: int = 0) -> TransformerKeepMasks:
        """Draw the masks of `[B, T]` tokens, and of sources of this length. Parameters are not needed."""
        attention = self.dropout_attention
        cross = attention if self.reads_source else 0.0
        rates = (self.dropout, self.dropout, self.dropout_hidden, attention, cross)
        return TransformerKeepMasks(*draw_keep_masks(key, rates, self._keep_mask_shapes(shape, source_len)))

    @nn.nowrap
    def _keep_mask_shapes(self, shape: tuple[int, ...], source_len: int) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each of the `TransformerKeepMasks`."""
        batch, time = shape
        layers, heads = (batch, self.num_layers), (batch, self.num_layers, self.num_heads)
        return (
            (batch, time, self.embed_size),
            (*layers, 3 if self.reads_source else 2, time, self.embed_size),
            (*layers, time, self.num_hiddens),
            (*heads, time, time),
            (*heads, time, source_len),
        )

    def _choose_keep_masks(
        self, given: TransformerKeepMasks | None, deterministic: bool, shape: tuple[int, ...], source_len: int = 0
    ) -> TransformerKeepMasks:
        """Check the masks that are given, or draw them from the stream "dropout" unless the call is deterministic."""
        if given is None:
            drops = not deterministic and any((self.dropout, self.dropout_attention, self.dropout_hidden))
            key = self.make_rng("dropout") if drops else None
            return KEEP_ALL if key is None else self.draw_keep_masks(key, shape, source_len)
        require_keep_masks(given, self._keep_mask_shapes(shape, source_len))
        return given


class TransformerEncoder(TransformerStack):
    """Embeddings, positions, and layers of self-attention. `TransformerStack` explains the arguments.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/transformer.html
    """

    def __call__(
        self,
        tokens: Int[Array, "batch time"],
        valid_lens: Int[Array, "batch"] | None = None,
        *,
        deterministic: bool = True,
        keep_masks: TransformerKeepMasks | None = None,
        embedding: nn.Module | None = None,
    ) -> Float[Array, "batch time feature"]:
        """Encode `[B, T]` ids to a vector for each.

        Args:
            tokens, valid_lens: `[B, T]` ids and `[B]` lengths.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_masks: the entries that dropout keeps, given instead of drawn.
            embedding: used instead of the encoder's own, which then has no parameters.
        """
        return self._encode(tokens, valid_lens, embedding, deterministic, keep_masks, return_weights=False)[0]

    def attention_maps(
        self,
        tokens: Int[Array, "batch time"],
        valid_lens: Int[Array, "batch"] | None = None,
        *,
        embedding: nn.Module | None = None,
    ) -> Float[Array, "batch layers heads time time"]:
        """Return the attention weights of every layer and head."""
        _, weights = self._encode(tokens, valid_lens, embedding, True, None, return_weights=True)
        return jnp.stack(weights, axis=1)

    def _encode(
        self, tokens: Array, valid_lens: Any, embedding: Any, deterministic: bool, keep_masks: Any, return_weights: bool
    ) -> tuple[Array, list[Any]]:
        """Return the result, and the weights `[B, heads, T, T]` of each layer."""
        require_ids(self.vocab_size, tokens=tokens)
        if tokens.ndim != 2:
            raise ValueError(f"tokens must be [B, T]; got {shape_text(tokens.shape)}")
        keep = self._choose_keep_masks(keep_masks, deterministic, tokens.shape)
        table: Any = self.embedding if embedding is None else embedding
        x = self.embed(table, tokens, self.first_positions(tokens.shape[1]), keep.embedding)
        if valid_lens is not None:
            require_lengths(tokens.shape[1], valid_lens=valid_lens)
            require_shape(tokens.shape[:1], valid_lens=valid_lens)
            x = jnp.where(length_mask(valid_lens, tokens.shape[1])[..., None], x, 0)  # a NaN must reach no product
        return self._run(x, keep, valid_lens, None, None, return_weights)[:2]


class TransformerDecoder(TransformerStack, BaseDecoder):
    """A language model of the target whose layers attend to the source, too. `TransformerStack` explains the arguments.

    Args beside those:
        tie_embeddings: logits = output · embeddingᵀ + bias (Press & Wolf, 2017).
        output_bias: whether the output layer has a bias.
        start_token: the token that is read first, whatever is given in its place; None reads what is given.
        fixed_start: whether the embedding of the first token gets no gradient.
        never: tokens that are never produced: a step gives them log p = −inf.
        renormalize: whether the probabilities of the other tokens then sum to 1.
        alignment_layer: the layer whose attention to the source is returned as the weights of a token; −1 is the last.
        alignment_head: the head whose weights they are; None is the mean of all.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/transformer.html
    """

    tie_embeddings: bool = field(default=False, kw_only=True)
    output_bias: bool = field(default=True, kw_only=True)
    start_token: int | None = field(default=None, kw_only=True)
    fixed_start: bool = field(default=False, kw_only=True)
    never: tuple[int, ...] = field(default=(), kw_only=True)
    renormalize: bool = field(default=True, kw_only=True)
    alignment_layer: int = field(default=-1, kw_only=True)
    alignment_head: int | None = field(default=None, kw_only=True)

    reads_source: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 0 <= token < self.vocab_size for token in self.never):
            raise ValueError(f"never must be ids in [0, {self.vocab_size}); got {self.never}")
        if self.start_token is not None and not 0 <= self.start_token < self.vocab_size:
            raise ValueError(f"start_token must be an id in [0, {self.vocab_size}); got {self.start_token}")
        if not -self.num_layers <= self.alignment_layer < self.num_layers:
            raise ValueError(
                f"alignment_layer must be one of {self.num_layers} layers, counted from 0; got {self.alignment_layer}"
            )
        if self.alignment_head is not None and not 0 <= self.alignment_head < self.num_heads:
            raise ValueError(
                f"alignment_head must be one of {self.num_heads} heads, counted from 0; got {self.alignment_head}"
            )

    def setup(self) -> None:
        super().setup()
        self._setup_output(nn.initializers.xavier_uniform(), self.output_bias)

    def prepare(
        self, encoded: Float[Array, "batch source feature"], valid_lens: Int[Array, "batch"] | None = None
    ) -> tuple[Memory, ...]:
        """Project the encoder's outputs to the keys and values of each layer, once for all steps.

        Args:
            encoded: `[B, S, D]`, the encoder's outputs.
            valid_lens: `[B]`, the sources' lengths.
        """
        return tuple(layer.prepare(encoded, valid_lens) for layer in self.layers)

    def initial_state(self, memory: tuple[Memory, ...], max_len: int | None = None) -> TransformerState:
        """Return the state before the first token, with a cache for `max_len` tokens.

        A step beyond these gives NaN.

        Raises:
            ValueError: no `max_len`, or more than there are learnt positions.
        """
        if max_len is None:
            raise ValueError("initial_state needs max_len, the most tokens that a search may take; got None")
        self.first_positions(max_len)  # an error if there are fewer
        sentences, width = memory[0].keys.shape[0], self.embed_size // self.num_heads
        dtype = self.dtype or jnp.result_type(memory[0].keys, self.embedding.embedding)
        empty = jnp.zeros((sentences, self.num_heads, max_len, width), dtype)
        return TransformerState(
            time=jnp.zeros(sentences, jnp.int32),
            places=jnp.zeros((sentences, max_len), jnp.int32),
            cache=Stationary(tuple((empty, empty) for _ in self.layers)),
        )

    def step(
        self, tokens: Int[Array, "rows"], state: TransformerState, memory: tuple[Memory, ...]
    ) -> tuple[Float[Array, "rows vocab"], TransformerState, Float[Array, "rows source"]]:
        """Read one token and predict the next.

        Args:
            tokens: `[B · beam]` ids, the hypotheses of a sentence side by side.
            state: see `TransformerState`.
            memory: of B sentences.

        Returns:
            log p of the next token `[B · beam, N]` in float32 or wider, the new state, and the attention weights
            `[B · beam, S]` of the chosen layer and head.
        """
        require_ids(self.vocab_size, tokens=tokens)
        sentences, (rows, length) = memory[0].keys.shape[0], state.places.shape
        if tokens.ndim != 1 or tokens.shape[0] != rows or rows % sentences:
            raise ValueError(
                f"tokens must be [{sentences} · beam], as many as the state has rows, {rows}; "
                f"got {shape_text(tokens.shape)}"
            )
        beam, time = rows // sentences, state.time[0]
        places = state.places.at[:, time].set(jnp.arange(rows, dtype=state.places.dtype) % beam)
        is_own = places.reshape(sentences, beam, length, 1) == jnp.arange(beam)  # [B, beam, length, beam]
        allowed = is_own & (jnp.arange(length) <= time)[:, None]
        mask = allowed.reshape(sentences, 1, beam, length * beam)

        embedding = partial(self._embed_targets, time == 0)
        x = self.embed(embedding, tokens.reshape(sentences, beam), self.first_positions(length)[time])
        caches, weights = [], []
        for layer, cache, of_source in zip(self.layers, state.cache.leaves, memory, strict=True):
            x, cache, on_source = layer(x, _attend_to_past(cache, mask, time * beam), of_source, return_weights=True)
            caches.append(cache)
            weights.append(on_source)
        logits = self._logits(self._last(x)).reshape(rows, -1)
        is_never = np.isin(np.arange(self.vocab_size), self.never)
        if self.never and self.renormalize:
            logits = jnp.where(is_never, -jnp.inf, logits)
        log_probs = masked_log_softmax(logits.astype(wide_dtype(logits)))
        if self.never:
            log_probs = jnp.where(is_never, -jnp.inf, log_probs)  # with gradient 0
        log_probs = jnp.where(time < length, log_probs, jnp.nan)  # the cache is full
        new = TransformerState(state.time + 1, places, Stationary(tuple(caches)))
        return log_probs, new, self._choose(weights).reshape(rows, -1)

    def features(
        self,
        targets: Int[Array, "batch time"],
        memory: tuple[Memory, ...],
        *,
        deterministic: bool = True,
        keep_masks: TransformerKeepMasks | None = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "batch time feature"], Float[Array, "batch time source"] | None]:
        """Run teacher forcing up to the output layer, and return what it reads, `[B, T, D]`, not the logits."""
        result, _, weights = self._decode(targets, memory, deterministic, keep_masks, return_weights)
        return result, self._choose(weights) if return_weights else None

    def attention_maps(self, targets: Int[Array, "batch time"], memory: tuple[Memory, ...]) -> AttentionMaps:
        """Return the attention weights of every layer and head while the call reads these targets."""
        _, own, cross = self._decode(targets, memory, True, None, return_weights=True)
        layer = self.alignment_layer % self.num_layers
        return AttentionMaps(jnp.stack(cross, axis=1), target=jnp.stack(own, axis=1), layer=layer)

    def _decode(
        self, targets: Array, memory: tuple[Memory, ...], deterministic: bool, keep_masks: Any, return_weights: bool
    ) -> tuple[Array, list[Any], list[Any]]:
        """Return what the output layer reads, and of each layer the weights on the targets and on the source."""
        require_ids(self.vocab_size, targets=targets)
        sentences, source_len = memory[0].keys.shape[0], memory[0].keys.shape[-2]
        if targets.ndim != 2 or targets.shape[0] != sentences:
            raise ValueError(f"targets must be [{sentences}, T]; got {shape_text(targets.shape)}")
        keep = self._choose_keep_masks(keep_masks, deterministic, targets.shape, source_len)
        embedding = partial(self._embed_targets, jnp.arange(targets.shape[1]) == 0)
        x = self.embed(embedding, targets, self.first_positions(targets.shape[1]), keep.embedding)
        return self._run(x, keep, None, causal_mask(targets.shape[1]), memory, return_weights)

    def _embed_targets(self, is_first: Array, targets: Array) -> Array:
        """Embed tokens; of those that are first, by the rules of `start_token` and `fixed_start`."""
        if self.start_token is not None:
            targets = jnp.where(is_first, self.start_token, targets)
        x = self.embedding(targets)
        return jnp.where(is_first[..., None], jax.lax.stop_gradient(x), x) if self.fixed_start else x

    def _choose(self, weights: Sequence[Any]) -> Array:
        """Choose the weights `[B, T, S]` of a token from each layer's `[B, heads, T, S]`."""
        of_layer = weights[self.alignment_layer]
        return of_layer.mean(axis=1) if self.alignment_head is None else of_layer[:, self.alignment_head]


def _attend_to_all(
    keep: TransformerKeepMasks, valid_lens: Array | None, mask: Array | None, return_weights: bool
) -> AttendSelf:
    """Attend to all positions at once, within lengths or a mask. The second result is the weights, or None."""

    def attend(attention: MultiHeadAttention, x: Array) -> tuple[Array, Array | None]:
        return attention(x, x, x, valid_lens, mask, keep_mask=keep.self_attention, return_weights=return_weights)

    return attend


def _attend_to_past(cache: tuple[Array, Array], mask: Array, start: Array) -> AttendSelf:
    """Write keys and values of the newest tokens into the cache, and attend to what the mask allows of it."""

    def attend(attention: MultiHeadAttention, x: Array) -> tuple[Array, tuple[Array, Array]]:
        newest = attention.project_keys(x, x.shape[-1]), attention.project_values(x)  # [B, heads, beam, H / heads]
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=-2)
            for old, new in zip(cache, newest, strict=True)
        )
        return attention.attend(x, Memory(keys, values, mask), return_weights=False)[0], (keys, values)

    return attend

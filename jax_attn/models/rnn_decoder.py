"""The recurrent decoder with attention. Teacher forcing and search take the same step."""

from dataclasses import field
from typing import Any, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int, Num, PRNGKeyArray

from jax_attn.functional.checks import (
    require_float,
    require_ids,
    require_rate,
    require_shape,
    shape_text,
    wide_dtype,
)
from jax_attn.functional.dropout import draw_keep_masks, drop, require_keep_masks
from jax_attn.functional.recurrence import scan
from jax_attn.functional.softmax import masked_log_softmax
from jax_attn.models.base_decoder import BaseDecoder
from jax_attn.models.interface import AttentionMaps
from jax_attn.models.rnn_encoder import EncoderOutput
from jax_attn.modules.attention import Memory, make_attention
from jax_attn.modules.dense import Dense
from jax_attn.modules.recurrent import CellWeights, make_recurrent
from jax_attn.settings import Query


class DecoderMemory(NamedTuple):
    """What the steps share, one entry for each source sentence. Search passes it on unchanged."""

    attention: Memory
    """Projected keys, values and mask. Without attention, keys and values both hold the fixed context `[B, 1, V]`."""
    initial: tuple[Float[Array, "batch layers hidden"], ...]
    """The initial state: (h,) for a GRU, (h, c) for an LSTM."""


class DecoderState(NamedTuple):
    """What changes from step to step. Every leaf leads with batch × beam."""

    rnn: tuple[Any, ...]
    """The carry of each layer: h `[B, H]` for a GRU, (h, c) for an LSTM."""
    feed: Float[Array, "batch output"] | None
    """The attentional vector of the previous step; None without input feeding."""


class DecoderKeepMasks(NamedTuple):
    """The entries that the decoder's dropout keeps. Variational dropout has 1 instead of T, where marked by #."""

    layers: Bool[Array, "batch between #time hidden"] | None = None
    attention: Bool[Array, "batch time *heads key"] | None = None
    """For the attention weights; several heads have their own axis."""
    words: Bool[Array, "batch time 1"] | None = None
    embedding: Bool[Array, "batch #time feature"] | None = None
    output: Bool[Array, "batch #time output"] | None = None
    """For the features that the output layer reads."""


class NoAttention(nn.Module):
    """Give every query the same context, as in the book's model without attention: there are no weights."""

    heads = ()
    dropout = 0.0

    def prepare(self, keys: Array, values: Array, *_: Any, **__: Any) -> Memory:
        """Keep the context `[B, 1, V]`, which keys and values both are."""
        return Memory(keys, values, None)

    def context_size(self, memory: Memory) -> int:
        """Return V."""
        return memory.values.shape[-1]

    def attend(self, queries: Array, memory: Memory, **_: Any) -> tuple[Array, None]:
        """Repeat the context for each query."""
        return jnp.repeat(memory.values, queries.shape[-2], axis=-2), None


class Seq2SeqAttentionDecoder(BaseDecoder):
    r"""A recurrent language model of the target that attends to the source at each step.

    s is the state, of which attention and the output layer read the top layer's h; x is the embedded token. With
    `query="previous"` (the book; Bahdanau et al., 2015):

    .. math::
        \mathrm{context} &= \mathrm{attention}(s_{t-1}) \\
        s_t &= \mathrm{rnn}([\mathrm{context}; x], s_{t-1}) \\
        \mathrm{logits} &= \mathrm{dense}(s_t)

    With `query="new"` (Luong et al., 2015), where the feed is part of the input only with `input_feeding`:

    .. math::
        s_t &= \mathrm{rnn}([\mathrm{feed}_{t-1}; x], s_{t-1}) \\
        \mathrm{context} &= \mathrm{attention}(s_t) \\
        \mathrm{feed}_t &= \tanh(\mathrm{attentional}([\mathrm{context}; s_t])) \\
        \mathrm{logits} &= \mathrm{dense}(\mathrm{feed}_t)

    With `query="between"` two recurrent steps are taken for each token, and the first one's state attends: the
    conditional GRU of Nematus (Sennrich et al., 2017), or LSTM. The second step moves the top layer:

    .. math::
        \tilde{s}_t &= \mathrm{rnn}([\mathrm{feed}_{t-1}; x], s_{t-1}) \\
        \mathrm{context} &= \mathrm{attention}(\tilde{s}_t) \\
        s_t &= \mathrm{transition}(\mathrm{context}, \tilde{s}_t)

    and feed and logits as above.

    Args:
        vocab_size: N of the target.
        embed_size: features of an embedding, drawn from N(0, 1).
        num_hiddens: H.
        num_layers: layers of the recurrent network.
        dropout: the rate between its layers and on the attention weights, as in the book.
        dropout_words: the rate of whole tokens, whose embeddings become zero; drawn for each position.
        dropout_embedding: the rate of the embeddings' entries.
        dropout_output: the rate of the features that the output layer reads. The feed keeps them all.
        variational: drop the same entries between layers, of the embeddings and of the output's features at all steps
            of a sentence (Gal & Ghahramani, 2016).
        cell: "gru" or "lstm".
        attention: an attention module, with its own rate of dropout, or one of the names in
            `jax_attn.modules.attention.ATTENTIONS`. The weights of several heads are returned as their mean. "none":
            the context of every step is the encoder's final state, as in the book's model without attention.
        num_heads: for attention "multi_head".
        query: what attends: the state before the step, after it, or between its two halves, see above.
        input_feeding: see above; it needs `query="new"` or "between".
        bridge: compute the initial state from the encoder's final state by tanh of a Dense layer (one for h, one for c,
            shared by the layers). Without it the initial state is the final state, its directions side by side, and
            the sizes must be equal.
        tie_embeddings: logits = output · embeddingᵀ + bias (Press & Wolf, 2017). The attentional vector then has
            `embed_size` features; `query="previous"` has none, and needs `embed_size == num_hiddens`.
        use_bias: whether the recurrent network has biases.
        dtype, param_dtype: as in Flax.

    Source: https://d2l.ai/chapter_attention-mechanisms-and-transformers/bahdanau-attention.html
    """

    vocab_size: int
    embed_size: int
    num_hiddens: int
    num_layers: int = 1
    dropout: float = 0.0
    dropout_words: float = field(default=0.0, kw_only=True)
    dropout_embedding: float = field(default=0.0, kw_only=True)
    dropout_output: float = field(default=0.0, kw_only=True)
    variational: bool = field(default=False, kw_only=True)
    cell: str = field(default="gru", kw_only=True)
    attention: nn.Module | str = field(default="additive", kw_only=True)
    num_heads: int = field(default=4, kw_only=True)
    query: Query = field(default="previous", kw_only=True)
    input_feeding: bool = field(default=False, kw_only=True)
    bridge: bool = field(default=False, kw_only=True)
    tie_embeddings: bool = field(default=False, kw_only=True)
    use_bias: bool = field(default=True, kw_only=True)
    dtype: DTypeLike | None = field(default=None, kw_only=True)
    param_dtype: DTypeLike = field(default=jnp.float32, kw_only=True)

    def __post_init__(self) -> None:
        if self.query not in get_args(Query):
            raise ValueError(f"query must be one of {get_args(Query)}; got {self.query!r}")
        if self.input_feeding and self.query == "previous":
            raise ValueError(
                'input_feeding needs query="new" or "between"; got "previous", which feeds its context in already'
            )
        if self.tie_embeddings and self.query == "previous" and self.embed_size != self.num_hiddens:
            raise ValueError(
                f'tie_embeddings with query="previous" needs embed_size == num_hiddens; got {self.embed_size} and '
                f"{self.num_hiddens}"
            )
        require_rate(
            dropout_words=self.dropout_words,
            dropout_embedding=self.dropout_embedding,
            dropout_output=self.dropout_output,
        )
        if self.attention == "none":
            self.attention = NoAttention()
        elif isinstance(self.attention, str):
            self.attention = make_attention(
                self.attention, self.num_hiddens, self.dropout, num_heads=self.num_heads,
                dtype=self.dtype, param_dtype=self.param_dtype,
            )  # fmt: skip
        super().__post_init__()

    @property
    def _attention(self) -> Any:
        """The module of `attention`: a name has become one in `__post_init__`."""
        return self.attention

    @property
    def output_size(self) -> int:
        """The number of features that the output layer reads."""
        return self.embed_size if self.tie_embeddings else self.num_hiddens

    def setup(self) -> None:
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        draw = nn.initializers.normal(self.embed_size**-0.5 if self.tie_embeddings else 1.0)
        self.embedding = nn.Embed(self.vocab_size, self.embed_size, embedding_init=draw, **dtypes)
        sizes = self.num_hiddens, self.num_layers
        self.rnn = make_recurrent(self.cell, *sizes, self.dropout, use_bias=self.use_bias, **dtypes)
        if self.bridge:
            self.bridge_h = Dense(self.num_hiddens, use_bias=True, **dtypes)
            if self.cell == "lstm":
                self.bridge_c = Dense(self.num_hiddens, use_bias=True, **dtypes)
        if self.query == "between":
            self.transition = make_recurrent(self.cell, self.num_hiddens, use_bias=self.use_bias, **dtypes)
        if self.query != "previous":
            self.attentional = Dense(self.output_size, use_bias=False, **dtypes)
        self._setup_output(nn.initializers.lecun_normal())

    def prepare(
        self,
        encoder_output: EncoderOutput,
        valid_lens: Num[Array, "batch"] | None = None,
        mask: Bool[Array, "batch #query key"] | None = None,
    ) -> DecoderMemory:
        """Compute what all steps share: the projected keys, the values, the mask, and the initial state.

        Args:
            encoder_output: outputs `[B, K, V]` and final state of the encoder.
            valid_lens: `[B]`, the number of source positions that may be attended to.
            mask: boolean, broadcastable to `[B, 1, K]`.
        """
        self._require_encoded(*encoder_output)
        if valid_lens is not None:
            require_shape(encoder_output.outputs.shape[:1], valid_lens=valid_lens)
        # The loop's state has one dtype at all steps, so an encoder of another dtype must not bring its own.
        dtype = self.dtype or jnp.result_type(encoder_output.outputs, self.param_dtype)
        encoder_output = jax.tree.map(lambda x: x.astype(dtype), encoder_output)
        outputs = encoder_output.outputs
        parts = jax.tree.leaves(encoder_output.state)  # each [layers · directions, B, H]
        final = [self._by_layer(part, outputs.shape[-1]) for part in parts]  # each [B, layers, directions · H]
        read = final[0][:, -1:] if isinstance(self._attention, NoAttention) else outputs
        attention = self._attention.prepare(read, read, valid_lens, mask, query_size=self.num_hiddens)
        return DecoderMemory(attention, self._initial(final))

    @staticmethod
    def _require_encoded(outputs: Array, state: Any) -> None:
        """Raise unless outputs and final state fit together."""
        require_float(outputs=outputs)
        if outputs.ndim != 3:
            raise ValueError(f"encoder_output.outputs must be [B, K, V]; got {shape_text(outputs.shape)}")
        batch, _, size = outputs.shape
        for part in jax.tree.leaves(state):
            require_float(state=part)
            fits = jnp.ndim(part) == 3 and part.shape[1] == batch and size % part.shape[2] == 0
            if not fits or part.shape[0] % (size // part.shape[2]):
                raise ValueError(
                    f"encoder_output.state must be [layers · directions, {batch}, {size} / directions] for outputs "
                    f"{shape_text(outputs.shape)}; got {shape_text(jnp.shape(part))}"
                )

    @staticmethod
    def _by_layer(part: Array, output_size: int) -> Array:
        """Reshape h or c `[layers · directions, B, H]` to `[B, layers, directions · H]`."""
        directions = output_size // part.shape[-1]
        layered = part.reshape(part.shape[0] // directions, directions, *part.shape[1:])  # [layers, directions, B, H]
        return jnp.moveaxis(layered, 2, 0).reshape(part.shape[1], layered.shape[0], output_size)

    def _initial(self, final: list[Array]) -> tuple[Array, ...]:
        expected_parts = 2 if self.cell == "lstm" else 1
        if len(final) != expected_parts:
            raise ValueError(
                f"a decoder with cell={self.cell!r} needs an encoder of the same cell; "
                f"its final state must have {expected_parts} parts; got {len(final)}"
            )
        if final[0].shape[1] != self.num_layers:
            raise ValueError(
                f"encoder and decoder must have as many layers; got {final[0].shape[1]} and {self.num_layers}"
            )
        if self.bridge:
            denses = (self.bridge_h, self.bridge_c) if self.cell == "lstm" else (self.bridge_h,)
            return tuple(jnp.tanh(dense(part)) for dense, part in zip(denses, final, strict=True))
        if final[0].shape[-1] != self.num_hiddens:
            raise ValueError(
                f"the encoder's final state has {final[0].shape[-1]} features, its directions side by side, and the "
                f"decoder's num_hiddens is {self.num_hiddens}: make them equal, or set bridge=True"
            )
        return tuple(final)

    def initial_state(self, memory: DecoderMemory, max_len: int | None = None) -> DecoderState:
        """Return the state before the first token, which has one size for any number of tokens."""
        carries = tuple(
            tuple(part[:, layer] for part in memory.initial) if self.cell == "lstm" else memory.initial[0][:, layer]
            for layer in range(self.num_layers)
        )
        initial = memory.initial[0]
        return DecoderState(
            carries, jnp.zeros((len(initial), self.output_size), initial.dtype) if self.input_feeding else None
        )

    def step(
        self, tokens: Int[Array, "rows"], state: DecoderState, memory: DecoderMemory
    ) -> tuple[Float[Array, "rows vocab"], DecoderState, Float[Array, "rows key"] | None]:
        """Read one token and predict the next.

        Args:
            tokens: `[B · beam]` ids, the hypotheses of a sentence side by side.
            state: every leaf leads with B · beam.
            memory: of B sentences.

        Returns:
            log p of the next token `[B · beam, N]` in float32 or wider, the new state, and the attention weights
            `[B · beam, K]`, None without attention.
        """
        require_ids(self.vocab_size, tokens=tokens)
        sentences = memory.initial[0].shape[0]
        if tokens.ndim != 1 or tokens.shape[0] % sentences:
            raise ValueError(f"tokens must be [{sentences} · beam]; got {shape_text(tokens.shape)}")
        embedding_weights, cells = self._cells(memory)
        projected = embedding_weights.project(self.embedding(tokens))
        state, output, weights = self._advance(cells, projected, state, memory, DecoderKeepMasks())
        logits = self._logits(output)
        return masked_log_softmax(logits.astype(wide_dtype(logits))), state, weights

    def features(
        self,
        targets: Int[Array, "batch time"],
        memory: DecoderMemory,
        *,
        deterministic: bool = True,
        keep_masks: DecoderKeepMasks | None = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "batch time output"], Float[Array, "batch time key"] | None]:
        """Run teacher forcing up to the output layer, and return what it reads, `[B, T, output_size]`, not the logits.

        The embeddings' part of the gates does not depend on the recurrence: it is one product for all steps, before the
        loop. The loop takes the same step as `step`.
        """
        state = self.initial_state(memory)
        features, _, weights = self._unroll(targets, state, memory, deterministic, keep_masks, return_weights)
        return features, weights

    def attention_maps(self, targets: Int[Array, "batch time"], memory: DecoderMemory) -> AttentionMaps:
        """Return the weights of `features` as those of one layer and one head, `[B, 1, 1, T, K]`."""
        _, weights = self.features(targets, memory)
        return AttentionMaps(cross=None if weights is None else weights[:, None, None])

    def steps(
        self,
        tokens: Int[Array, "batch time"],
        state: DecoderState,
        memory: DecoderMemory,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "batch time vocab"], DecoderState, Float[Array, "batch time key"] | None]:
        """Read the given tokens from a state on, as the call does from the initial state.

        Returns:
            Logits `[B, T, N]`, the state after the last token, and attention weights `[B, T, K]`.
        """
        features, state, weights = self._unroll(tokens, state, memory, deterministic, None, return_weights=True)
        return self._logits(features), state, weights

    def _unroll(
        self,
        targets: Array,
        state: DecoderState,
        memory: DecoderMemory,
        deterministic: bool,
        keep_masks: DecoderKeepMasks | None,
        return_weights: bool,
    ) -> tuple[Array, DecoderState, Array | None]:
        """Return what the output layer reads `[B, T, output_size]`, the last state, and the weights `[B, T, K]`."""
        require_ids(self.vocab_size, targets=targets)
        if targets.ndim != 2 or targets.shape[0] != memory.initial[0].shape[0]:
            raise ValueError(f"targets must be [{memory.initial[0].shape[0]}, T]; got {shape_text(targets.shape)}")
        source_len = memory.attention.values.shape[-2]
        if keep_masks is None:
            drops = not deterministic and any(self._rates)
            keep_masks = DecoderKeepMasks()
            if drops:
                keep_masks = self.draw_keep_masks(self.make_rng("dropout"), targets.shape, source_len)
        require_keep_masks(keep_masks, self._keep_mask_shapes(targets.shape, source_len))
        keep = _time_first(keep_masks, targets.shape[1])

        embedding_weights, cells = self._cells(memory)
        embedded = drop(self.embedding(targets.T), self.dropout_words, keep.words)
        embedded = drop(embedded, self.dropout_embedding, keep.embedding)
        projected = embedding_weights.project(embedded)  # [T, B, gates]
        if self.is_initializing():  # parameters cannot be made within the loop
            self._advance(cells, projected[0], state, memory, DecoderKeepMasks())
        decoder, variables = self._unbound()

        def advance(state: DecoderState, at_time: tuple[Array, DecoderKeepMasks]) -> tuple[DecoderState, Any]:
            inputs, keep = at_time
            result: Any = decoder.apply(variables, cells, inputs, state, memory, keep, method="_advance")
            state, output, weights = result
            return state, (output, weights if return_weights else None)

        of_steps = DecoderKeepMasks(layers=keep.layers, attention=keep.attention)
        state, (outputs, weights) = scan(advance, state, (projected, of_steps))
        features = drop(outputs, self.dropout_output, keep.output)
        return jnp.swapaxes(features, 0, 1), state, None if weights is None else jnp.swapaxes(weights, 0, 1)

    def _unbound(self) -> tuple["Seq2SeqAttentionDecoder", Any]:
        """Return this module without its parameters, and the parameters; its name is its path, for recordings."""
        module, variables = self.unbind()
        return module.clone(name=".".join(self.path) or None), variables

    def _cells(self, memory: DecoderMemory) -> tuple[CellWeights, tuple[CellWeights, ...]]:
        """Return the weights that project the embedding (with b_ih), and the layers' weights without that part.

        The first layer's input is [context or feed; embedding], in this order, as in the book. With `query="between"`
        the weights of the second step come last.
        """
        (first,), *upper = self.rnn.weights(self._joined_size(memory) + self.embed_size)
        embedding_weights = first._replace(kernel_ih=first.kernel_ih[-self.embed_size :])
        joined_weights = first._replace(kernel_ih=first.kernel_ih[: -self.embed_size])
        second = (
            self.transition.weights(self._attention.context_size(memory.attention))[0]
            if self.query == "between"
            else ()
        )
        return embedding_weights, (joined_weights, *(cell for (cell,) in upper), *second)

    def _joined_size(self, memory: DecoderMemory) -> int:
        """Return the number of features before the embedding in the recurrent network's input."""
        if self.query == "previous":
            return self._attention.context_size(memory.attention)
        return self.output_size if self.input_feeding else 0

    def _advance(
        self,
        cells: tuple[CellWeights, ...],
        projected: Array,
        state: DecoderState,
        memory: DecoderMemory,
        keep: DecoderKeepMasks,
    ) -> tuple[DecoderState, Array, Array | None]:
        """Take a step from a projected embedding `[rows, gates]`.

        Returns:
            The new state, the output `[rows, output_size]`, and the attention weights `[rows, K]` or None.
        """
        weights = None
        joined = state.feed
        if self.query == "previous":
            joined, weights = self._attend(_top(state), memory, keep.attention)
        carry, output = self.rnn.advance(cells[0], state.rnn[0], projected, joined)
        carries = [carry]

        def advance(cell: CellWeights, carry: Any, inputs: Array) -> tuple[Any, Array]:
            bias = jnp.zeros_like(projected)  # the inputs are projected within the step
            return self.rnn.advance(cell, carry, bias if cell.bias_ih is None else bias + cell.bias_ih, inputs)

        for layer, cell in enumerate(cells[1 : self.num_layers], start=1):
            below = drop(output, self.dropout, None if keep.layers is None else keep.layers[:, layer - 1])
            carry, output = advance(cell, state.rnn[layer], below)
            carries.append(carry)
        if self.query != "previous":
            context, weights = self._attend(output, memory, keep.attention)
            if self.query == "between":
                carries[-1], output = advance(cells[-1], carries[-1], context)
            output = jnp.tanh(self.attentional(jnp.concatenate([context, output], axis=-1)))
        return DecoderState(tuple(carries), output if self.input_feeding else None), output, weights

    def _attend(self, queries: Array, memory: DecoderMemory, keep_mask: Array | None) -> tuple[Array, Array | None]:
        """Return context `[rows, V]` and weights `[rows, K]`; the hypotheses of a sentence are its queries."""
        sentences = memory.initial[0].shape[0]
        beam = queries.shape[0] // max(sentences, 1)
        context, weights = self._attention.attend(
            queries.reshape(sentences, beam, queries.shape[-1]),
            memory.attention,
            keep_mask=None if keep_mask is None else jnp.expand_dims(keep_mask, -2),  # teacher forcing: one query
        )
        if weights is not None:
            weights = _rows(weights.mean(axis=1) if weights.ndim == 4 else weights)  # over the heads
        return _rows(context), weights

    @nn.nowrap
    def draw_keep_masks(self, key: PRNGKeyArray, shape: tuple[int, ...], source_len: int) -> DecoderKeepMasks:
        """Draw the masks of `[B, T]` targets and sources of this length, for all steps. Parameters are not needed."""
        return DecoderKeepMasks(*draw_keep_masks(key, self._rates, self._keep_mask_shapes(shape, source_len)))

    @nn.nowrap
    def _keep_mask_shapes(self, shape: tuple[int, ...], source_len: int) -> tuple[tuple[int, ...], ...]:
        """Return the shape of each of the `DecoderKeepMasks`."""
        batch, time = shape
        steps = 1 if self.variational else time
        return (
            (batch, self.num_layers - 1, steps, self.num_hiddens),
            (batch, time, *self._attention.heads, source_len),
            (batch, time, 1),
            (batch, steps, self.embed_size),
            (batch, steps, self.output_size),
        )

    @property
    def _rates(self) -> tuple[float, ...]:
        """The rate of each of the `DecoderKeepMasks`."""
        between = self.dropout if self.num_layers > 1 else 0.0
        return between, self._attention.dropout, self.dropout_words, self.dropout_embedding, self.dropout_output


def _time_first(masks: DecoderKeepMasks, time: int) -> DecoderKeepMasks:
    """Put the axis of time first. The masks between layers are repeated for all steps, since the loop reads them."""
    layers, *others = masks
    if layers is not None:
        layers = jnp.moveaxis(layers, 2, 0)  # [T, B, layers − 1, H]
        layers = jnp.broadcast_to(layers, (time, *layers.shape[1:]))
    return DecoderKeepMasks(layers, *(None if mask is None else jnp.swapaxes(mask, 0, 1) for mask in others))


def _top(state: DecoderState) -> Array:
    """Return h of the top layer."""
    return jax.tree.leaves(state.rnn[-1])[0]


def _rows(x: Array) -> Array:
    """Turn `[B, beam, F]` into `[B · beam, F]`."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])

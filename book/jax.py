"""The book's names in JAX: `from book import jax as d2l`.

Modules are Flax Linen modules, called as in the book's JAX tab: `attention.init_with_output(key, queries, …)`. They
return attention weights beside the output. Where only the book's PyTorch cells exist, `initialize` gives a module its
parameters, and then it is called as in PyTorch. The same lines run over `book.torch`:

    encoder = d2l.initialize(d2l.Seq2SeqEncoder(10, 8, 16, 2), X)
    output, state = encoder(X)

    net = d2l.train_seq2seq(net, train_iter, lr, num_epochs, tgt_vocab, device)     # returns what was trained

The import sets the flags of XLA that this version of jaxlib needs (see `jax_attn.compiler`).
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from jax import Array

import jax_attn
from book.arguments import (
    add_to_class,
    as_floating,
    book_names,
    check_len,
    check_shape,
    read_arguments,
    read_mlp_arguments,
)
from book.data import (
    Batches,
    Epochs,
    MTFraEng,
    Vocab,
    bleu,
    build_array_nmt,
    encode_source,
    load_array,
    load_data_nmt,
    preprocess_nmt,
    read_data_nmt,
    require_batches,
    require_positive,
    teacher_forcing,
    tokenize_nmt,
    truncate_pad,
)
from book.pictures import plot, show_list_len_pair_hist
from jax_attn import EncoderOutput, masked_cross_entropy, show_heatmaps
from jax_attn.compiler import avoid_faults
from jax_attn.functional.checks import as_array, require_ids, require_shape
from jax_attn.models.transformer import make_norm
from jax_attn.modules import FeedForward
from jax_attn.optim import clip_by_global_norm

__all__ = [
    "GRU", "AddNorm", "AdditiveAttention", "AttentionDecoder", "Batches", "Decoder", "DotProductAttention",
    "Embeddings", "Encoder", "EncoderDecoder", "MLPAttention", "MTFraEng", "MaskedSoftmaxCELoss",
    "MultiHeadAttention", "PositionWiseFFN", "PositionalEncoding", "Seq2Seq", "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder", "Trainer", "TransformerDecoder", "TransformerDecoderBlock", "TransformerEncoder",
    "TransformerEncoderBlock", "Vocab", "add_to_class", "attention", "bleu", "build_array_nmt", "check_len",
    "check_shape", "get_key", "grad_clipping", "initialize", "load_array", "load_data_nmt", "masked_softmax",
    "plot", "predict_s2s_ch9", "predict_seq2seq", "preprocess_nmt", "read_data_nmt", "sequence_mask",
    "show_heatmaps", "show_list_len_pair_hist", "tokenize_nmt", "train_s2s_ch9", "train_seq2seq", "translate",
    "truncate_pad", "try_gpu",
]  # fmt: skip

avoid_faults()

# The book's short names of array functions.
arange, concat, float32, int32, int64, matmul, ones, zeros = (
    jnp.arange, jnp.concatenate, jnp.float32, jnp.int32, jnp.int64, jnp.matmul, jnp.ones, jnp.zeros,
)  # fmt: skip
expand_dims, numpy, reshape, swapaxes, tensor, transpose = (
    jnp.expand_dims, np.asarray, jnp.reshape, jnp.swapaxes, jnp.asarray, jnp.transpose,
)  # fmt: skip
argmax, astype, reduce_mean, reduce_sum = jnp.argmax, jnp.astype, jnp.mean, jnp.sum


def get_key() -> Array:
    """Return a new key for random numbers, drawn from Python's generator: `random.seed(0)` makes it repeatable."""
    return jax.random.key(random.randint(0, 10**6))


def normal(mean: float, std: float, shape: Sequence[int]) -> Array:
    """Draw from a normal distribution: `d2l.normal(0, 1, (2, 1, 20))`."""
    return mean + std * jax.random.normal(get_key(), tuple(shape))


def try_gpu(i: int = 0) -> Any:
    """Return GPU i, or the CPU where there is none."""
    try:
        return jax.devices("gpu")[i]
    except (RuntimeError, IndexError):
        return jax.devices("cpu")[0]


def initialize(module: nn.Module, *inputs: Any, seed: int = 0, **options: Any) -> Any:
    """Return a module that is bound to new parameters, and so can be called: `initialize(encoder, X)`.

    The book's MXNet cells say `encoder.initialize()`. Linen needs the inputs, whose sizes the parameters depend on.
    """
    variables = jax.jit(partial(module.init, **options))(jax.random.key(seed), *inputs)
    return module.bind({"params": variables.get("params", {})})


# Attention scoring functions


def masked_softmax(X: Array, valid_lens: Array | None = None, **options: Any) -> Array:
    """Compute the softmax of `[*batch, Q, K]` over the first `valid_lens` keys (all editions).

    It stands for `jax_attn.masked_softmax`, which has the options. X stays as it is.
    """
    (X,) = as_floating(jnp.float32, X=X)
    with book_names(scores="X"):
        return jax_attn.masked_softmax(X, valid_lens, **options)


def sequence_mask(X: Array, valid_len: Array, value: Any = 0) -> Array:
    """Copy X, with `value` past each sequence's length (2020, 0.17); see `jax_attn.sequence_mask`."""
    with book_names(valid_lens="valid_len"):
        return jax_attn.sequence_mask(X, valid_len, value)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout: Callable[[Array], Array] | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """Compute scaled dot-product attention; the mask may be of numbers, where 0 forbids.

    It stands for `jax_attn.attention`. Its option `empty_row="uniform"` gives 0.25 for each of four keys where the
    mask is all zeros, as the book's large negative number does; by default such a query gets zeros.
    """
    query, key, value = as_floating(jnp.float32, query=query, key=key, value=value)
    mask = None if mask is None else as_array("mask", mask) != 0
    return jax_attn.attention(query, key, value, mask, dropout, **options)


class Module(nn.Module):
    """A Linen module that says what to write instead of what it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name in ("eval", "train"):
            raise AttributeError(f"leave .{name}() out: a Flax module has no mode, and training=True turns dropout on")
        if name == "initialize":
            raise AttributeError("write module = d2l.initialize(module, X), with the inputs X, for module.initialize()")
        if name == "attention_weights":
            raise AttributeError(
                "a Flax module keeps no weights: write output, attention_weights = attention(queries, keys, values, "
                "valid_lens); those of a decoder come from d2l.predict_seq2seq(…, save_attention_weights=True)"
            )
        try:
            return super().__getattr__(name)
        except AttributeError:
            if self.scope is not None:
                raise
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; a module has its layers after "
                "module = d2l.initialize(module, X), with the inputs X"
            ) from None


class Scored(Module):
    """The book's call of an attention."""

    def __call__(
        self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None, training: bool = False
    ) -> Any:
        """Return the output `[B, Q, V]` and the weights `[B, Q, K]`; `training=True` turns dropout on."""
        inputs = as_floating(jnp.float32, queries=queries, keys=keys, values=values)
        return super().__call__(*inputs, valid_lens, deterministic=not training)  # type: ignore[misc]  # of the attention


class DotProductAttention(Scored, jax_attn.DotProductAttention):  # type: ignore[misc]  # the book's call
    """Scaled dot-product attention: `DotProductAttention(dropout=0.5)` (all editions)."""


class Additive(Scored, jax_attn.AdditiveAttention):  # type: ignore[misc]  # the book's call
    """What `AdditiveAttention` makes."""


class MultiHead(Scored, jax_attn.MultiHeadAttention):  # type: ignore[misc]  # the book's call
    """What `MultiHeadAttention` makes; the weights are `[B · num_heads, Q, K]`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().__call__(*args, **kwargs)
        return output, weights.reshape(-1, *weights.shape[-2:])


def AdditiveAttention(*args: Any, **kwargs: Any) -> Additive:  # noqa: N802 (a class in the book)
    """Make additive attention: `(num_hiddens, dropout)` (1.0) or `(key_size, query_size, num_hiddens, dropout)` (0.17).

    It stands for `jax_attn.AdditiveAttention`. Flax takes the sizes from the inputs.
    """
    forms = ("num_hiddens / dropout", "key_size query_size num_hiddens dropout")
    return Additive(**_without_sizes(read_arguments("AdditiveAttention", forms, args, kwargs)))


def _without_sizes(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("query_size", "key_size", "value_size")}


def MLPAttention(*args: Any, **kwargs: Any) -> Additive:  # noqa: N802 (a class in the book)
    """Make additive attention: `(units, dropout)`, `(ipt_dim, units, dropout)` or with four arguments (2020)."""
    return Additive(**_without_sizes(read_mlp_arguments(args, kwargs)))


def MultiHeadAttention(*args: Any, **kwargs: Any) -> MultiHead:  # noqa: N802 (a class in the book)
    """Make multi-head attention.

    `(num_hiddens, num_heads, dropout, bias=False)` (1.0), or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)` (0.17).
    """
    new = "num_hiddens num_heads dropout / bias"
    given = read_arguments("MultiHeadAttention", (new, f"key_size query_size value_size {new}"), args, kwargs)
    return MultiHead(use_bias=given.pop("bias", False), **_without_sizes(given))


class PositionalEncoding(Module):
    """Add sinusoidal positions: `PositionalEncoding(num_hiddens, dropout, max_len=1000)` (all editions).

    It stands for `jax_attn.PositionalEncoding`. The table `[1, max_len, num_hiddens]` is `P`; as in the book's JAX tab
    it is also sown: `X, found = pos_encoding.apply({}, X, mutable="intermediates")`.
    """

    num_hiddens: int
    dropout: float = 0.0
    max_len: int = 1000

    @property
    def P(self) -> Array:  # noqa: N802 (the book's name)
        return jax_attn.sinusoidal_positions(self.max_len, self.num_hiddens)[None]

    def setup(self) -> None:
        self.encoding = jax_attn.PositionalEncoding(self.num_hiddens, float(self.dropout), self.max_len)

    def __call__(self, X: Array, training: bool = False) -> Array:
        """Return dropout(X + P[:, :T]) for X of `[B, T, num_hiddens]`."""
        with book_names(x="X", d_model="num_hiddens"):
            Y = self.encoding(X, deterministic=not training)
        self.sow("intermediates", "P", self.P)
        return Y


class Embeddings(Module, jax_attn.Embeddings):  # type: ignore[misc]  # what a module lacks
    """Embed tokens, times √d_model: `Embeddings(d_model, vocab)` (Annotated Transformer); see `jax_attn.Embeddings`."""


# The encoder-decoder architecture


class Encoder(Module):
    """The interface of an encoder: `encoder(X, *args, training=False)` (all editions)."""

    def __call__(self, X: Array, *args: Any, training: bool = False) -> Any:
        raise NotImplementedError


class Decoder(Module):
    """The interface of a decoder: `init_state(enc_outputs, *args)`, `decoder(X, state, training=False)`."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        raise NotImplementedError

    def __call__(self, X: Array, state: Any, training: bool = False) -> Any:
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of a decoder with attention (0.17, 1.0).

    In Flax the weights are no property. A decoder sows them: `self.sow("intermediates", "dec_attention_weights", …)`,
    one entry `[B, 1, K]` for each step.
    """


class EncoderDecoder(Module):
    """An encoder and a decoder as one: `net(enc_X, dec_X, enc_valid_lens)` returns the output and the state.

    It takes this file's classes, and your own of the same interface. (1.0 returns the output alone: see `Seq2Seq`.)
    """

    encoder: nn.Module
    decoder: nn.Module

    def __call__(self, enc_X: Array, dec_X: Array, *args: Any, training: bool = False) -> Any:
        enc_outputs = self.encoder(enc_X, *args, training=training)
        dec_state = self.decoder.init_state(enc_outputs, *args)
        return self.decoder(dec_X, dec_state, training=training)

    @nn.nowrap
    def predict_step(
        self, params: Any, batch: Sequence[Any], num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Array, tuple[list[Any], list[Any]]]:
        """Translate a batch greedily (1.0): `model.predict_step(trainer.state.params, data.build(…), data.num_steps)`.

        Returns:
            The ids `[B, num_steps]`, and the attention weights of decoder (one entry a step) and encoder, if asked for.
        """
        src, tgt, src_valid_len, _ = (jnp.asarray(x) for x in batch)
        state, of_encoder = _encode(self.encoder, self.decoder, params, src, src_valid_len)
        outputs, attention_weights = [tgt[:, :1]], []
        for _ in range(num_steps):
            Y, state, weights = _decode(self.decoder, params, outputs[-1], state)
            outputs.append(Y)
            if save_attention_weights:
                attention_weights.append(_require_weights(weights))
        return jnp.concatenate(outputs[1:], 1), (attention_weights, of_encoder if save_attention_weights else [])


class GRU(Module):
    """The recurrent network of the chapters' own classes: `d2l.GRU(num_hiddens, num_layers, dropout)` (1.0).

    It stands for `jax_attn.GRU`, with time as the first axis.
    """

    num_hiddens: int
    num_layers: int = 1
    dropout: float = 0.0

    def setup(self) -> None:
        self.rnn = jax_attn.GRU(num_hiddens=self.num_hiddens, num_layers=self.num_layers, dropout=float(self.dropout))

    def __call__(self, X: Array, state: Array | None = None, training: bool = False) -> tuple[Array, Array]:
        """Return outputs `[num_steps, B, num_hiddens]` and state `[num_layers, B, num_hiddens]`; X has time first."""
        with book_names(inputs="X", initial_state="state"):
            outputs, state = self.rnn(jnp.swapaxes(X, 0, 1), None, state, deterministic=not training)
        return jnp.swapaxes(outputs, 0, 1), state


class Seq2SeqEncoder(Module, jax_attn.Seq2SeqEncoder):
    """The recurrent encoder: `Seq2SeqEncoder(vocab_size, embed_size, num_hiddens, num_layers, dropout=0)`.

    It stands for `jax_attn.Seq2SeqEncoder`, which has the options; `cell="lstm"` is the edition of 2020. Returned are
    the outputs with time first, `[num_steps, B, num_hiddens]`, and the state of all layers, `[num_layers, B,
    num_hiddens]` (of an LSTM a pair). With lengths the state is the one at each sentence's end.
    """

    def __call__(  # type: ignore[override]  # the book's call
        self, X: Array, enc_valid_lens: Array | None = None, *args: Any, training: bool = False
    ) -> Any:
        with book_names(tokens="X", valid_lens="enc_valid_lens"):
            outputs, state = super().__call__(X, enc_valid_lens, deterministic=not training)
        return jnp.swapaxes(outputs, 0, 1), state


class Seq2SeqAttentionDecoder(Module, jax_attn.Seq2SeqAttentionDecoder):
    """The decoder with attention, with the arguments of `Seq2SeqEncoder`.

    It stands for `jax_attn.Seq2SeqAttentionDecoder`, which has the options; `cell="lstm"` is the edition of 2020. The
    state has three parts: the encoder's outputs `[B, num_steps, num_hiddens]`, the hidden state `[num_layers, B,
    num_hiddens]` (of an LSTM a pair), and the source's lengths or None.
    """

    @nn.nowrap
    def init_state(self, enc_outputs: Any, enc_valid_lens: Array | None = None, *args: Any) -> tuple[Any, ...]:
        """Return the state before the first token, from the encoder's result."""
        outputs, hidden_state = enc_outputs
        return jnp.swapaxes(outputs, 0, 1), hidden_state, enc_valid_lens

    def __call__(  # type: ignore[override]  # the book's call
        self, X: Array, state: Any, training: bool = False
    ) -> Any:
        """Return the logits `[B, num_steps, vocab_size]` and the new state; the weights are sown for each step."""
        enc_outputs, hidden_state, enc_valid_lens = state
        names = {"encoder_output.outputs": "state[0]", "encoder_output.state": "state[1]"}
        with book_names(targets="X", valid_lens="state[2]", **names):
            memory = self.prepare(EncoderOutput(enc_outputs, hidden_state), enc_valid_lens)
            start = self.initial_state(memory)
            logits, end, weights = self.steps(X, start, memory, deterministic=not training)
        if weights is not None:
            self.sow("intermediates", "dec_attention_weights", jnp.swapaxes(weights, 0, 1)[:, :, None])
        hidden_state = jax.tree.map(lambda *layers: jnp.stack(layers), *end.rnn)
        return logits, [enc_outputs, hidden_state, enc_valid_lens]


# The Transformer (1.0)


class TwoLayers(Module, FeedForward):
    """What `PositionWiseFFN` makes."""


def PositionWiseFFN(ffn_num_hiddens: int, ffn_num_outputs: int) -> TwoLayers:  # noqa: N802 (a class in the book)
    """Make the two layers that act on each position alone: dense2(relu(dense1(X)))."""
    return TwoLayers(ffn_num_hiddens, ffn_num_outputs)


class AddNorm(Module):
    """Add a sublayer's result to its input, and normalise: `AddNorm(dropout)(X, Y)` is norm(X + dropout(Y))."""

    dropout: float

    def setup(self) -> None:
        self.drop, self.ln = nn.Dropout(self.dropout), make_norm(1e-5, None, jnp.float32)

    def __call__(self, X: Array, Y: Array, training: bool = False) -> Array:
        require_shape(X.shape, Y=Y)
        return self.ln(X + self.drop(Y, deterministic=not training))


class TransformerEncoderBlock(Module):
    """A layer of the encoder: self-attention and a feed-forward network, each followed by `AddNorm`."""

    num_hiddens: int
    ffn_num_hiddens: int
    num_heads: int
    dropout: float
    use_bias: bool = False

    def setup(self) -> None:
        self.attention = MultiHeadAttention(self.num_hiddens, self.num_heads, self.dropout, self.use_bias)
        self.ffn = PositionWiseFFN(self.ffn_num_hiddens, self.num_hiddens)
        self.addnorm1, self.addnorm2 = AddNorm(self.dropout), AddNorm(self.dropout)

    def __call__(self, X: Array, valid_lens: Array | None, training: bool = False) -> tuple[Array, Array]:
        """Return the result `[B, T, num_hiddens]`, and the attention weights `[B · num_heads, T, T]`."""
        output, weights = self.attention(X, X, X, valid_lens, training=training)
        Y = self.addnorm1(X, output, training)
        return self.addnorm2(Y, self.ffn(Y), training), weights


class TransformerDecoderBlock(Module):
    """Layer i of the decoder: self-attention, attention to the source, a feed-forward network, each with `AddNorm`.

    A token attends to itself and to those before it, in training and in use.
    """

    num_hiddens: int
    ffn_num_hiddens: int
    num_heads: int
    dropout: float
    i: int

    def setup(self) -> None:
        self.attention1, self.attention2 = (
            MultiHeadAttention(self.num_hiddens, self.num_heads, self.dropout) for _ in range(2)
        )
        self.ffn = PositionWiseFFN(self.ffn_num_hiddens, self.num_hiddens)
        self.addnorm1, self.addnorm2, self.addnorm3 = (AddNorm(self.dropout) for _ in range(3))

    def __call__(self, X: Array, state: Any, training: bool = False) -> tuple[Array, list[Any], Array, Array]:
        """Return the result, the new state, and the weights of self-attention and of attention to the source."""
        enc_outputs, enc_valid_lens, inputs = state
        before = inputs[self.i]
        key_values = X if before is None else jnp.concatenate([before, X], 1)
        num_keys, num_steps = key_values.shape[1], X.shape[1]
        lens = jnp.broadcast_to(jnp.arange(num_keys - num_steps, num_keys) + 1, X.shape[:2])
        X2, self_weights = self.attention1(X, key_values, key_values, lens, training=training)
        Y = self.addnorm1(X, X2, training)
        Y2, source_weights = self.attention2(Y, enc_outputs, enc_outputs, enc_valid_lens, training=training)
        Z = self.addnorm2(Y, Y2, training)
        inputs = [*inputs[: self.i], key_values, *inputs[self.i + 1 :]]
        result = self.addnorm3(Z, self.ffn(Z), training)
        return result, [enc_outputs, enc_valid_lens, inputs], self_weights, source_weights


class TransformerStack(Module):
    """What encoder and decoder share: embeddings, positions and layers."""

    vocab_size: int
    num_hiddens: int
    ffn_num_hiddens: int
    num_heads: int
    num_blks: int
    dropout: float

    def setup(self) -> None:
        self.embedding = nn.Embed(self.vocab_size, self.num_hiddens)
        self.pos_encoding = PositionalEncoding(self.num_hiddens, self.dropout)
        self.blks = [self.make_block(i) for i in range(self.num_blks)]

    def make_block(self, i: int) -> Any:
        raise NotImplementedError

    def embed(self, X: Array, start: int, training: bool) -> Array:
        """Embed tokens, the first of which has the position `start`."""
        require_ids(self.vocab_size, X=X)
        X = jnp.pad(self.embedding(X) * self.num_hiddens**0.5, ((0, 0), (start, 0), (0, 0)))
        return self.pos_encoding(X, training)[:, start:]


class TransformerEncoder(TransformerStack, Encoder):
    """`TransformerEncoder(vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout, use_bias=False)`.

    The weights of its layers are sown as `enc_attention_weights`, a list of `[B · num_heads, T, T]`.
    """

    use_bias: bool = False

    def make_block(self, i: int) -> TransformerEncoderBlock:
        sizes = self.num_hiddens, self.ffn_num_hiddens, self.num_heads
        return TransformerEncoderBlock(*sizes, self.dropout, self.use_bias)

    def __call__(  # type: ignore[override]  # the book's call
        self, X: Array, valid_lens: Array | None = None, training: bool = False
    ) -> Array:
        """Return `[B, T, num_hiddens]` for ids `[B, T]` and lengths `[B]`."""
        X, attention_weights = self.embed(X, 0, training), []
        for blk in self.blks:
            X, weights = blk(X, valid_lens, training)
            attention_weights.append(weights)
        self.sow("intermediates", "enc_attention_weights", attention_weights)
        return X


class TransformerDecoder(TransformerStack, AttentionDecoder):
    """`TransformerDecoder(vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout)`.

    The state has three parts: the encoder's outputs, the sources' lengths or None, and what each layer has read so far,
    `[B, tokens, num_hiddens]` or None. Sown are `dec_attention_weights`: a list of self-attention's weights in each
    layer, and a list of those on the source.
    """

    def make_block(self, i: int) -> TransformerDecoderBlock:
        return TransformerDecoderBlock(self.num_hiddens, self.ffn_num_hiddens, self.num_heads, self.dropout, i)

    def setup(self) -> None:
        super().setup()
        self.dense = nn.Dense(self.vocab_size)

    @nn.nowrap
    def init_state(self, enc_outputs: Any, enc_valid_lens: Array | None = None, *args: Any) -> list[Any]:
        """Return the state before the first token."""
        return [enc_outputs, enc_valid_lens, [None] * self.num_blks]

    def __call__(self, X: Array, state: Any, training: bool = False) -> tuple[Array, list[Any]]:
        """Return the logits `[B, T, vocab_size]` and the new state."""
        before, attention_weights = state[2][0], []
        X = self.embed(X, 0 if before is None else before.shape[1], training)
        for blk in self.blks:
            X, state, *weights = blk(X, state, training)
            attention_weights.append(weights)
        self.sow(
            "intermediates", "dec_attention_weights", [list(kind) for kind in zip(*attention_weights, strict=True)]
        )
        return self.dense(X), state


# Training


class MaskedSoftmaxCELoss:
    """The cross entropy of each sentence: `loss(pred, label, valid_len)` (2020, 0.17).

    It stands for `masked_cross_entropy(…, reduction="sentences")`: the mean over all positions, those past the length
    counted as 0.
    """

    def __call__(self, pred: Array, label: Array, valid_len: Array) -> Array:
        """Return `[B]` for logits `[B, T, N]`, labels `[B, T]` and lengths `[B]`."""
        with book_names(logits="pred", labels="label", valid_lens="valid_len"):
            return masked_cross_entropy(pred, label, valid_len, reduction="sentences")


def grad_clipping(grads: Any, theta: float, *args: Any) -> Any:
    """Return gradients whose norm is at most theta. (In PyTorch the book calls `grad_clipping(net, theta)`.)"""
    if isinstance(grads, nn.Module):
        raise TypeError("grads must be the gradients, since a Flax module has none; got a module")
    clipped, _ = clip_by_global_norm(float(theta)).update(grads, optax.EmptyState())
    return clipped


def train_seq2seq(
    net: nn.Module, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any = None, *, seed: int = 0
) -> Any:
    """Train from new parameters, and return the net with them: `net = d2l.train_seq2seq(net, …)` (0.17).

    Adam minimises the sum of `MaskedSoftmaxCELoss`, with gradients clipped to norm 1. Printed is the book's measure:
    the sum of the sentences' losses, divided by the number of label tokens.

    Args:
        net: an `EncoderDecoder`, or another module of the same call.
        data_iter: batches from `load_data_nmt`.
        device: from `try_gpu`, or a kind of device such as "cpu"; by default JAX's.
        seed: what the parameters and dropout are drawn from.
    """
    return _train(net, data_iter, lr, num_epochs, tgt_vocab["<bos>"], device, seed)


def train_s2s_ch9(
    net: nn.Module,
    data_iter: Any,
    lr: float,
    num_epochs: int,
    tgt_vocab: Any = None,
    device: Any = None,
    *,
    seed: int = 0,
) -> Any:
    """Train as `train_seq2seq` does: `(model, data_iter, lr, num_epochs, device)` (2020), or with `tgt_vocab, device`.

    Without `tgt_vocab` the targets begin with `<bos>`: load the data with `edition="2020"`.
    """
    if isinstance(tgt_vocab, Vocab):
        return train_seq2seq(net, data_iter, lr, num_epochs, tgt_vocab, device, seed=seed)
    return _train(net, data_iter, lr, num_epochs, None, device if tgt_vocab is None else tgt_vocab, seed)


def _train(net: Any, data_iter: Any, lr: float, num_epochs: int, bos: int | None, device: Any, seed: int) -> Any:
    require_batches(data_iter)
    require_positive(num_epochs=num_epochs)
    if net.scope is not None:
        net, _ = net.unbind()
    loss = MaskedSoftmaxCELoss()
    optimizer = optax.chain(clip_by_global_norm(1.0), optax.adam(lr))

    @jax.jit
    def init(key: Array, batch: Any) -> tuple[Any, Any]:
        X, X_valid_len, dec_input, *_ = batch
        params = net.init(key, X, dec_input, X_valid_len)["params"]
        return params, optimizer.init(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, key: Array, batch: Any) -> tuple[Any, Any, Array]:
        def total(params: Any) -> Array:
            X, X_valid_len, dec_input, label, label_len = batch
            Y_hat, _ = net.apply({"params": params}, X, dec_input, X_valid_len, training=True, rngs={"dropout": key})
            return loss(Y_hat, label, label_len).sum()

        value, grads = jax.value_and_grad(total)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    for_params, for_dropout = jax.random.split(jax.random.key(seed))
    params, num_batches = None, 0
    with jax.default_device(device):
        for epoch in range(1, num_epochs + 1):
            start, loss_sum, num_tokens = time.perf_counter(), 0.0, 0
            for arrays in data_iter:
                batch = teacher_forcing([np.asarray(x) for x in arrays], bos)
                if params is None:
                    params, opt_state = init(for_params, batch)
                key = jax.random.fold_in(for_dropout, num_batches)
                params, opt_state, value = step(params, opt_state, key, batch)
                loss_sum, num_tokens, num_batches = loss_sum + value, num_tokens + int(batch[-1].sum()), num_batches + 1
            measure = loss_sum / num_tokens
            if epoch % max(1, num_epochs // 5) == 0:
                print(f"epoch {epoch:4d}, loss {measure:.3f}")
    jax.block_until_ready(params)
    speed = num_tokens / (time.perf_counter() - start)
    print(f"loss {measure:.3f}, {speed:.1f} tokens/sec on {value.device.platform}")
    return net.bind({"params": params})


# Translating


@partial(jax.jit, static_argnums=(0, 1))
def _encode(encoder: Any, decoder: Any, params: Any, X: Array, valid_len: Array) -> tuple[Any, Any]:
    """Return the decoder's state before the first token, and the weights that the encoder sows, if any."""
    outputs, found = encoder.apply({"params": params.get("encoder", {})}, X, valid_len, mutable="intermediates")
    return _as_tuple(decoder.init_state(outputs, valid_len)), _sown(found, "enc_attention_weights", [])


@partial(jax.jit, static_argnums=0)
def _decode(decoder: Any, params: Any, X: Array, state: Any) -> tuple[Array, Any, Any]:
    """Return the most probable next tokens `[B, T]`, the new state, and the weights that the decoder sows, if any."""
    variables = {"params": params.get("decoder", {})}
    (Y, state), found = decoder.apply(variables, X, state, mutable="intermediates")
    return Y.argmax(2), _as_tuple(state), _sown(found, "dec_attention_weights", None)


def _sown(found: Any, name: str, default: Any) -> Any:
    return found.get("intermediates", {}).get(name, (default,))[0]


def _as_tuple(state: Any) -> Any:
    """Return a list as a tuple: the book's decoders take the one and return the other."""
    return tuple(state) if isinstance(state, list) else state


def _require_weights(weights: Any) -> Any:
    if weights is None:
        raise ValueError(
            "save_attention_weights needs a decoder that keeps them: "
            'self.sow("intermediates", "dec_attention_weights", weights)'
        )
    return weights


def predict_seq2seq(
    net: nn.Module,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    device: Any = None,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """Translate a sentence greedily (0.17): `predict_seq2seq(net, "go .", src_vocab, tgt_vocab, num_steps, device)`.

    Args:
        net: from `train_seq2seq`.
        src_sentence: words and punctuation marks, separated by spaces. An unknown one is read as `<unk>`.
        num_steps: the longest translation, and the length to which the source is padded or cut.

    Returns:
        The translation, and for each token one entry whose `[0][0][0]` are its weights `[num_steps]`, if asked for.
    """
    if net.scope is None:
        raise ValueError(
            "net must have parameters; take the one that train_seq2seq returns: net = d2l.train_seq2seq(net, …)"
        )
    module, variables = net.unbind()
    params = variables["params"]
    with jax.default_device(device):
        X, valid_len = encode_source(src_sentence, src_vocab, num_steps)
        state, _ = _encode(module.encoder, module.decoder, params, X, valid_len)
        dec_X, output_seq, attention_weight_seq = jnp.array([[tgt_vocab["<bos>"]]]), [], []
        for _ in range(num_steps):
            dec_X, state, weights = _decode(module.decoder, params, dec_X, state)
            if save_attention_weights:
                attention_weight_seq.append(_require_weights(weights))
            if int(dec_X[0, 0]) == tgt_vocab["<eos>"]:
                break
            output_seq.append(int(dec_X[0, 0]))
    return " ".join(tgt_vocab.to_tokens(output_seq)), attention_weight_seq


def predict_s2s_ch9(
    model: nn.Module, src_sentence: str, src_vocab: Vocab, tgt_vocab: Vocab, num_steps: int, device: Any = None
) -> str:
    """Translate a sentence greedily (2020): `predict_seq2seq` without the weights."""
    return predict_seq2seq(model, src_sentence, src_vocab, tgt_vocab, num_steps, device)[0]


translate = predict_s2s_ch9  # in the PyTorch port of 2020, there also `translate_ch7`


# 1.0: a model that knows its loss, and a trainer


class Seq2Seq(EncoderDecoder):
    """A model with its loss (1.0): `Seq2Seq(encoder, decoder, tgt_pad=tgt_vocab["<pad>"], lr=0.005, training=True)`.

    `model(src, tgt, src_valid_len)` returns the logits alone.
    """

    tgt_pad: int
    lr: float
    training: bool = False

    def __call__(self, enc_X: Array, dec_X: Array, *args: Any) -> Any:  # type: ignore[override]  # `training` is a field
        return super().__call__(enc_X, dec_X, *args, training=self.training)[0]

    @nn.nowrap
    def loss(self, params: Any, X: Sequence[Any], Y: Array, state: Any) -> tuple[Array, dict[str, Any]]:
        """Return the mean cross entropy of the labels that are no padding; `state` has `apply_fn` and `dropout_rng`."""
        Y_hat = state.apply_fn({"params": params}, *X, rngs={"dropout": state.dropout_rng})
        return masked_cross_entropy(Y_hat, Y, mask=jnp.not_equal(Y, self.tgt_pad)), {}

    @nn.nowrap
    def configure_optimizers(self) -> optax.GradientTransformation:
        return optax.adam(self.lr)


class TrainState(train_state.TrainState):
    """Parameters and optimiser, with the key of dropout."""

    dropout_rng: Any


class Trainer(Epochs):
    """The training of 1.0: `trainer = Trainer(max_epochs=30, gradient_clip_val=1)`, `trainer.fit(model, data)`.

    Afterwards `trainer.state.params` are the parameters, and `trainer.losses` the losses (training, validation) of each
    epoch. JAX chooses the device; `num_gpus` is accepted as in the book.
    """

    def fit(self, model: Any, data: Any, key: Array | None = None) -> None:
        """Train from new parameters, drawn from `key`."""
        for_params, for_dropout = jax.random.split(get_key() if key is None else key)
        inputs = next(iter(data.val_dataloader()))[:-1]
        params = jax.jit(model.init)({"params": for_params, "dropout": for_dropout}, *inputs)["params"]
        optimizer = model.configure_optimizers()
        if self.gradient_clip_val:
            optimizer = optax.chain(clip_by_global_norm(float(self.gradient_clip_val)), optimizer)
        self.state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer, dropout_rng=for_dropout)
        evaluated = model.clone(training=False)

        @jax.jit
        def step(state: Any, batch: Any) -> tuple[Any, Array]:
            state = state.replace(dropout_rng=jax.random.split(state.dropout_rng)[0])
            to_value = jax.value_and_grad(model.loss, has_aux=True)
            (value, _), grads = to_value(state.params, batch[:-1], batch[-1], state)
            return state.apply_gradients(grads=grads), value

        @jax.jit
        def evaluate(state: Any, batch: Any) -> Array:
            return evaluated.loss(state.params, batch[:-1], batch[-1], state.replace(apply_fn=evaluated.apply))[0]

        self.losses = []
        for _ in range(self.max_epochs):
            values = []
            for batch in data.train_dataloader():
                self.state, value = step(self.state, batch)
                values.append(value)
            validation = [evaluate(self.state, batch) for batch in data.val_dataloader()]
            self.end_epoch(values, validation)

"""The book's names in PyTorch: `from book import torch as d2l`.

Modules are called as in the book's PyTorch tab: they return the output alone, and keep the attention weights as
`attention_weights`. Importing this file imports no JAX. `initialize` and the value of `train_seq2seq` are there so that
the same lines run over `book.jax`.
"""

import torch_ref  # first, since it says what to install where there is no PyTorch

# isort: split
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from book import data
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
    Vocab,
    bleu,
    encode_source,
    load_array,
    preprocess_nmt,
    read_data_nmt,
    require_batches,
    require_positive,
    teacher_forcing,
    tokenize_nmt,
    truncate_pad,
)
from book.pictures import plot, show_list_len_pair_hist
from torch_ref import Embeddings, masked_cross_entropy
from torch_ref.functional.losses import clip_gradients
from torch_ref.models.rnn_encoder import EncoderOutput
from torch_ref.modules.feed_forward import FeedForward

__all__ = [
    "GRU", "AddNorm", "AdditiveAttention", "AttentionDecoder", "Batches", "Decoder", "DotProductAttention",
    "Embeddings", "Encoder", "EncoderDecoder", "MLPAttention", "MTFraEng", "MaskedSoftmaxCELoss",
    "MultiHeadAttention", "PositionWiseFFN", "PositionalEncoding", "Seq2Seq", "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder", "Trainer", "TransformerDecoder", "TransformerDecoderBlock", "TransformerEncoder",
    "TransformerEncoderBlock", "Vocab", "add_to_class", "attention", "bleu", "build_array_nmt", "check_len",
    "check_shape", "grad_clipping", "init_seq2seq", "initialize", "load_array", "load_data_nmt", "masked_softmax",
    "plot", "predict_s2s_ch9", "predict_seq2seq", "preprocess_nmt", "read_data_nmt", "sequence_mask",
    "show_heatmaps", "show_list_len_pair_hist", "tokenize_nmt", "train_s2s_ch9", "train_seq2seq", "translate",
    "truncate_pad", "try_gpu",
]  # fmt: skip

# The book's short names of tensor functions.
arange, concat, float32, int32, int64, matmul, ones, zeros = (
    torch.arange, torch.cat, torch.float32, torch.int32, torch.int64, torch.matmul, torch.ones, torch.zeros,
)  # fmt: skip
expand_dims, normal, reshape, swapaxes, tensor = (
    torch.unsqueeze, torch.normal, torch.reshape, torch.swapaxes, torch.tensor,
)  # fmt: skip
argmax, reduce_mean, reduce_sum = torch.argmax, torch.mean, torch.sum

Module = nn.Module  # the book's has methods for its own Trainer, which are not here


def astype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to a dtype."""
    return x.to(dtype)


def numpy(x: Tensor) -> np.ndarray:
    """Convert a tensor to NumPy."""
    return x.detach().cpu().numpy()


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Put the axes in another order, by default the reverse one."""
    return x.permute(*(axes or range(x.ndim)[::-1]))


def try_gpu(i: int = 0) -> torch.device:
    """Return GPU i, or the CPU where there is none."""
    return torch.device(f"cuda:{i}" if torch.cuda.device_count() > i else "cpu")


def initialize(module: nn.Module, *inputs: Any, seed: int | None = None, **options: Any) -> nn.Module:
    """Return the module without dropout: `encoder = d2l.initialize(encoder, X)`; over `book.jax` it gets parameters.

    The inputs give layers their sizes that have none yet.
    """
    module.eval()
    with torch.no_grad():
        module(*inputs, **options)
    return module


def show_heatmaps(matrices: Any, *args: Any, **options: Any) -> Any:
    """Draw a grid of heatmaps of `[rows, columns, Q, K]`, by `jax_attn.show_heatmaps`, which is imported only here."""
    from jax_attn import show_heatmaps as show

    return show(numpy(torch.as_tensor(matrices)), *args, **options)


# Data: as in `book.data`, but tensors


def build_array_nmt(lines: list[list[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """Turn sentences into ids and lengths, see `book.data.build_array_nmt`."""
    ids, lens = data.build_array_nmt(lines, vocab, num_steps)
    return _tensor(ids), _tensor(lens)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).long()


def load_data_nmt(*args: Any, **options: Any) -> tuple[Any, ...]:
    """Return batches of tensors and vocabularies, see `book.data.load_data_nmt`."""
    found = data.load_data_nmt(*args, **options)
    for part in found:
        if isinstance(part, Batches):
            part.data_arrays = tuple(map(_tensor, part.data_arrays))
    return found


class MTFraEng(data.MTFraEng):
    """The English-French data of 1.0 as tensors, see `book.data.MTFraEng`."""

    def _arrays(self, source: list[list[str]], target: list[list[str]]) -> tuple[Tensor, ...]:
        return tuple(map(_tensor, super()._arrays(source, target)))


# Attention scoring functions


def masked_softmax(X: Tensor, valid_lens: Tensor | None = None, **options: Any) -> Tensor:
    """Compute the softmax of `[*batch, Q, K]` over the first `valid_lens` keys; see `torch_ref.masked_softmax`."""
    (X,) = as_floating(Tensor.float, X=X)
    with book_names(scores="X"):
        return torch_ref.masked_softmax(X, valid_lens, **options)


def sequence_mask(X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    """Copy X, with `value` past each sequence's length (0.17); see `torch_ref.sequence_mask`."""
    if valid_len.ndim >= X.ndim or X.shape[: valid_len.ndim] != valid_len.shape:
        raise ValueError(
            f"valid_len must have the leading axes of X {list(X.shape)}, without time; got {list(valid_len.shape)}"
        )
    return torch_ref.sequence_mask(X, valid_len, value)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention; the mask may be of numbers, where 0 forbids. See `torch_ref.attention`."""
    query, key, value = as_floating(Tensor.float, query=query, key=key, value=value)
    return torch_ref.attention(query, key, value, None if mask is None else mask != 0, dropout, **options)


class _Kept(nn.Module):
    """Return the output of an attention module alone, and keep the weights."""

    attention_weights: Tensor

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        queries, keys, values = as_floating(Tensor.float, queries=queries, keys=keys, values=values)
        for name, x in (("W_q", queries), ("W_k", keys), ("W_v", values)):
            if isinstance(layer := getattr(self, name, None), nn.LazyLinear):
                layer(x)  # gives it its size
        output, self.attention_weights = super().forward(queries, keys, values, valid_lens)
        return output


def _lazy(num_hiddens: int, bias: bool) -> nn.LazyLinear:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls its lazy modules new
        return nn.LazyLinear(num_hiddens, bias=bias)


class DotProductAttention(_Kept, torch_ref.DotProductAttention):  # type: ignore[misc]  # the book's call
    """Scaled dot-product attention: `DotProductAttention(dropout=0.5)` (all editions)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)


class AdditiveAttention(_Kept, torch_ref.AdditiveAttention):  # type: ignore[misc]  # the book's call
    """Additive attention: `(num_hiddens, dropout)` (1.0), or `(key_size, query_size, num_hiddens, dropout)` (0.17)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        forms = ("num_hiddens / dropout", "key_size query_size num_hiddens dropout")
        self._build(read_arguments("AdditiveAttention", forms, args, kwargs))

    def _build(self, given: dict[str, Any]) -> None:
        super().__init__(**given)
        if "key_size" not in given:
            self.W_q, self.W_k = (_lazy(given["num_hiddens"], bias=False) for _ in range(2))


class MLPAttention(AdditiveAttention):
    """Additive attention: `(units, dropout)`, `(ipt_dim, units, dropout)` or with four arguments (2020)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._build(read_mlp_arguments(args, kwargs))


class MultiHeadAttention(_Kept, torch_ref.MultiHeadAttention):  # type: ignore[misc]  # the book's call
    """Multi-head attention.

    `(num_hiddens, num_heads, dropout, bias=False)` (1.0), or
    `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)` (0.17).
    The weights are `[B · num_heads, Q, K]`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        new = "num_hiddens num_heads dropout / bias"
        forms = (new, f"key_size query_size value_size {new}")
        given = read_arguments("MultiHeadAttention", forms, args, kwargs)
        width, bias = given["num_hiddens"], given.pop("bias", False)
        super().__init__(use_bias=bias, **given)
        if "key_size" not in given:
            self.W_q, self.W_k, self.W_v = (_lazy(width, bias) for _ in range(3))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output = super().forward(*args, **kwargs)
        self.attention_weights = self.attention_weights.flatten(0, -3)
        return output

    @property
    def attention(self) -> nn.Module:
        """What keeps the weights: the chapters' classes read `attention.attention_weights`."""
        return self


class PositionalEncoding(nn.Module):
    """Add sinusoidal positions: `PositionalEncoding(num_hiddens, dropout, max_len=1000)`; `P` is `[1, max_len, …]`."""

    def __init__(self, num_hiddens: int, dropout: float = 0.0, max_len: int = 1000) -> None:
        super().__init__()
        self.encoding = torch_ref.PositionalEncoding(num_hiddens, dropout, max_len)
        self.P = torch_ref.sinusoidal_positions(max_len, num_hiddens)[None]

    def forward(self, X: Tensor) -> Tensor:
        if X.shape[-1] != self.encoding.d_model:
            raise ValueError(f"X must have num_hiddens = {self.encoding.d_model} features; got {list(X.shape)}")
        return self.encoding(X)


# The encoder-decoder architecture


class Encoder(nn.Module):
    """The interface of an encoder: `encoder(X, *args)` (all editions)."""

    def forward(self, X: Tensor, *args: Any) -> Any:
        raise NotImplementedError


class Decoder(nn.Module):
    """The interface of a decoder: `init_state(enc_outputs, *args)`, `decoder(X, state)` (all editions)."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        raise NotImplementedError

    def forward(self, X: Tensor, state: Any) -> Any:
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of a decoder with attention: it keeps the weights of each step (0.17, 1.0)."""

    @property
    def attention_weights(self) -> Any:
        raise NotImplementedError


class EncoderDecoder(nn.Module):
    """An encoder and a decoder as one: `net(enc_X, dec_X, enc_valid_lens)` returns the output and the state.

    It takes this file's classes, and your own of the same interface. (1.0 returns the output alone: see `Seq2Seq`.)
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Any:
        enc_outputs = self.encoder(enc_X, *args)
        return self.decoder(dec_X, self.decoder.init_state(enc_outputs, *args))

    @torch.no_grad()
    def predict_step(
        self, batch: Sequence[Tensor], device: Any, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Translate a batch greedily (1.0): `model.predict_step(data.build(…), d2l.try_gpu(), data.num_steps)`.

        Returns:
            The ids `[B, num_steps]`, and the attention weights, one entry a step, if asked for.
        """
        self.eval()
        src, tgt, src_valid_len, _ = (x.to(device) for x in batch)
        state = self.decoder.init_state(self.encoder(src, src_valid_len), src_valid_len)
        outputs, attention_weights = [tgt[:, :1]], []
        for _ in range(num_steps):
            Y, state = self.decoder(outputs[-1], state)
            outputs.append(Y.argmax(2))
            if save_attention_weights:
                attention_weights.append(_weights_of(self.decoder))
        return torch.cat(outputs[1:], 1), attention_weights


class GRU(nn.GRU):
    """PyTorch's GRU, time first: `d2l.GRU(num_inputs, num_hiddens, num_layers, dropout)` (1.0)."""

    def __init__(self, num_inputs: int, num_hiddens: int, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__(num_inputs, num_hiddens, num_layers, dropout=dropout)


class Seq2SeqEncoder(torch_ref.Seq2SeqEncoder):
    """The recurrent encoder: `Seq2SeqEncoder(vocab_size, embed_size, num_hiddens, num_layers, dropout=0)`.

    It stands for `torch_ref.Seq2SeqEncoder`, which has the options. Outputs and state are those of
    `book.jax.Seq2SeqEncoder`.
    """

    def forward(  # type: ignore[override]  # the book's call
        self, X: Tensor, enc_valid_lens: Tensor | None = None, *args: Any
    ) -> Any:
        if enc_valid_lens is not None and enc_valid_lens.shape != X.shape[:1]:
            raise ValueError(f"enc_valid_lens must be {list(X.shape[:1])}; got {list(enc_valid_lens.shape)}")
        outputs, state = super().forward(X, enc_valid_lens)
        return outputs.transpose(0, 1), state


class Seq2SeqAttentionDecoder(torch_ref.Seq2SeqAttentionDecoder):
    """The decoder with attention, with the arguments of `Seq2SeqEncoder`.

    It stands for `torch_ref.Seq2SeqAttentionDecoder`, which has the options. The state is that of
    `book.jax.Seq2SeqAttentionDecoder`. `attention_weights` has one entry `[B, 1, K]` for each step.
    """

    attention_weights: list[Tensor]

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None = None, *args: Any) -> tuple[Any, ...]:
        """Return the state before the first token, from the encoder's result."""
        outputs, hidden_state = enc_outputs
        return outputs.transpose(0, 1), hidden_state, enc_valid_lens

    def forward(self, X: Tensor, state: Any) -> Any:  # type: ignore[override]  # the book's call
        """Return the logits `[B, num_steps, vocab_size]` and the new state."""
        enc_outputs, hidden_state, enc_valid_lens = state
        memory = self.prepare(EncoderOutput(enc_outputs, hidden_state), enc_valid_lens)
        logits, end, weights = self.steps(X, self.initial_state(memory), memory)
        if weights is not None:
            self.attention_weights = [step[:, None] for step in weights.unbind(1)]
        if isinstance(hidden_state, Tensor):
            return logits, [enc_outputs, torch.stack(end.rnn), enc_valid_lens]
        return logits, [enc_outputs, tuple(map(torch.stack, zip(*end.rnn, strict=True))), enc_valid_lens]


# The Transformer (1.0)


class PositionWiseFFN(FeedForward):
    """The two layers that act on each position alone: `PositionWiseFFN(ffn_num_hiddens, ffn_num_outputs)`."""

    def __init__(self, ffn_num_hiddens: int, ffn_num_outputs: int) -> None:
        super().__init__(ffn_num_hiddens, ffn_num_hiddens, ffn_num_outputs)
        self.dense1 = _lazy(ffn_num_hiddens, bias=True)


class AddNorm(nn.Module):
    """Add a sublayer's result to its input, and normalise: `AddNorm(norm_shape, dropout)(X, Y)`."""

    def __init__(self, norm_shape: Any, dropout: float) -> None:
        super().__init__()
        self.dropout, self.ln = nn.Dropout(dropout), nn.LayerNorm(norm_shape)

    def forward(self, X: Tensor, Y: Tensor) -> Tensor:
        if X.shape != Y.shape:
            raise ValueError(f"Y must be {list(X.shape)}; got {list(Y.shape)}")
        return self.ln(X + self.dropout(Y))


class TransformerEncoderBlock(nn.Module):
    """A layer of the encoder: `(num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias=False)`."""

    def __init__(
        self, num_hiddens: int, ffn_num_hiddens: int, num_heads: int, dropout: float, use_bias: bool = False
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(num_hiddens, num_heads, dropout, use_bias)
        self.addnorm1, self.addnorm2 = AddNorm(num_hiddens, dropout), AddNorm(num_hiddens, dropout)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens)

    def forward(self, X: Tensor, valid_lens: Tensor | None) -> Tensor:
        Y = self.addnorm1(X, self.attention(X, X, X, valid_lens))
        return self.addnorm2(Y, self.ffn(Y))


class TransformerDecoderBlock(nn.Module):
    """Layer i of the decoder: `(num_hiddens, ffn_num_hiddens, num_heads, dropout, i)`.

    A token attends to itself and to those before it, in training and in use.
    """

    def __init__(self, num_hiddens: int, ffn_num_hiddens: int, num_heads: int, dropout: float, i: int) -> None:
        super().__init__()
        self.i = i
        self.attention1 = MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm1 = AddNorm(num_hiddens, dropout)
        self.attention2 = MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm2 = AddNorm(num_hiddens, dropout)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens)
        self.addnorm3 = AddNorm(num_hiddens, dropout)

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
        """Return the result and the new state."""
        enc_outputs, enc_valid_lens, inputs = state
        before = inputs[self.i]
        key_values = X if before is None else torch.cat([before, X], 1)
        num_keys, num_steps = key_values.shape[1], X.shape[1]
        lens = torch.arange(num_keys - num_steps, num_keys, device=X.device) + 1
        Y = self.addnorm1(X, self.attention1(X, key_values, key_values, lens.expand(X.shape[:2])))
        Z = self.addnorm2(Y, self.attention2(Y, enc_outputs, enc_outputs, enc_valid_lens))
        inputs = [*inputs[: self.i], key_values, *inputs[self.i + 1 :]]
        return self.addnorm3(Z, self.ffn(Z)), [enc_outputs, enc_valid_lens, inputs]


class TransformerStack(nn.Module):
    """What encoder and decoder share: embeddings, positions and layers."""

    def __init__(self, vocab_size: int, num_hiddens: int, dropout: float, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.num_hiddens, self.num_blks = num_hiddens, len(blocks)
        self.embedding = nn.Embedding(vocab_size, num_hiddens)
        self.pos_encoding = PositionalEncoding(num_hiddens, dropout)
        self.blks = nn.Sequential()
        for i, block in enumerate(blocks):
            self.blks.add_module(f"block{i}", block)

    def embed(self, X: Tensor, start: int) -> Tensor:
        """Embed tokens, the first of which has the position `start`."""
        X = self.embedding(X) * self.num_hiddens**0.5
        return self.pos_encoding(nn.functional.pad(X, (0, 0, start, 0)))[:, start:]


class TransformerEncoder(TransformerStack, Encoder):
    """The encoder: `(vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout, use_bias=False)`.

    `attention_weights` has the weights `[B · num_heads, T, T]` of each layer.
    """

    attention_weights: list[Tensor]

    def __init__(
        self, vocab_size: int, num_hiddens: int, ffn_num_hiddens: int, num_heads: int, num_blks: int, dropout: float,
        use_bias: bool = False,
    ) -> None:  # fmt: skip
        settings = num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias
        blocks: list[nn.Module] = [TransformerEncoderBlock(*settings) for _ in range(num_blks)]
        super().__init__(vocab_size, num_hiddens, dropout, blocks)

    def forward(  # type: ignore[override]  # the book's call
        self, X: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        """Return `[B, T, num_hiddens]` for ids `[B, T]` and lengths `[B]`."""
        X, self.attention_weights = self.embed(X, 0), []
        for block in self.blks:
            X = block(X, valid_lens)
            self.attention_weights.append(block.attention.attention_weights)
        return X


class TransformerDecoder(TransformerStack, AttentionDecoder):
    """The decoder: `(vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout)`.

    The state is that of `book.jax.TransformerDecoder`. `attention_weights` has two lists with an entry for each layer:
    the weights of self-attention, and those on the source.
    """

    attention_weights: Any = None

    def __init__(
        self, vocab_size: int, num_hiddens: int, ffn_num_hiddens: int, num_heads: int, num_blks: int, dropout: float
    ) -> None:
        settings = num_hiddens, ffn_num_hiddens, num_heads, dropout
        blocks: list[nn.Module] = [TransformerDecoderBlock(*settings, i) for i in range(num_blks)]
        super().__init__(vocab_size, num_hiddens, dropout, blocks)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None = None, *args: Any) -> list[Any]:
        """Return the state before the first token."""
        return [enc_outputs, enc_valid_lens, [None] * self.num_blks]

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
        """Return the logits `[B, T, vocab_size]` and the new state."""
        before = state[2][0]
        X = self.embed(X, 0 if before is None else before.shape[1])
        for block in self.blks:
            X, state = block(X, state)
        self.attention_weights = [
            [getattr(block, name).attention_weights for block in self.blks] for name in ("attention1", "attention2")
        ]
        return self.dense(X), state


# Training


def init_seq2seq(module: nn.Module) -> None:
    """Draw the weights of Linear, GRU and LSTM from Xavier's uniform distribution: `net.apply(d2l.init_seq2seq)`."""
    if isinstance(module, nn.Linear) and not isinstance(module, nn.LazyLinear):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, nn.RNNBase):
        for name, parameter in module.named_parameters():
            if name.startswith("weight"):
                nn.init.xavier_uniform_(parameter)


class MaskedSoftmaxCELoss(nn.Module):
    """The cross entropy of each sentence, as `book.jax.MaskedSoftmaxCELoss`: `loss(pred, label, valid_len)`."""

    def forward(self, pred: Tensor, label: Tensor, valid_len: Tensor) -> Tensor:
        """Return `[B]` for logits `[B, T, N]`, labels `[B, T]` and lengths `[B]`."""
        if pred.shape[:-1] != label.shape:
            raise ValueError(f"label must be {list(pred.shape[:-1])}; got {list(label.shape)}")
        if valid_len.shape != label.shape[:-1]:
            raise ValueError(f"valid_len must be {list(label.shape[:-1])}; got {list(valid_len.shape)}")
        return masked_cross_entropy(pred, label, valid_len, reduction="sentences")


def grad_clipping(net: nn.Module, theta: float, *args: Any) -> None:
    """Scale the gradients of a net to a norm of at most theta, in place."""
    clip_gradients(net, theta)


def train_seq2seq(
    net: nn.Module, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any = None, *, seed: int = 0
) -> nn.Module:
    """Train from new weights, in place, and return the net (0.17): `net = d2l.train_seq2seq(net, …)`.

    The loss and the arguments are those of `book.jax.train_seq2seq`. Embeddings stay as they were made, as in the book.
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
) -> nn.Module:
    """Train as `train_seq2seq`: `(model, data_iter, lr, num_epochs, device)` (2020), or with `tgt_vocab, device`."""
    if isinstance(tgt_vocab, Vocab):
        return train_seq2seq(net, data_iter, lr, num_epochs, tgt_vocab, device, seed=seed)
    return _train(net, data_iter, lr, num_epochs, None, device if tgt_vocab is None else tgt_vocab, seed)


def _train(net: Any, data_iter: Any, lr: float, num_epochs: int, bos: int | None, device: Any, seed: int) -> Any:
    require_batches(data_iter)
    require_positive(num_epochs=num_epochs)
    device = torch.device("cpu") if device is None else device
    torch.manual_seed(seed)
    if _lacks_sizes(net):
        X, X_valid_len, dec_input, *_ = teacher_forcing([torch.as_tensor(x) for x in next(iter(data_iter))], bos)
        initialize(net, X, dec_input, X_valid_len)
    net.apply(init_seq2seq)
    net.to(device).train()
    optimizer, loss = torch.optim.Adam(net.parameters(), lr=lr), MaskedSoftmaxCELoss()
    for epoch in range(1, num_epochs + 1):
        start, loss_sum, num_tokens = time.perf_counter(), 0.0, 0
        for arrays in data_iter:
            batch = teacher_forcing([torch.as_tensor(x).to(device) for x in arrays], bos)
            X, X_valid_len, dec_input, label, label_len = batch
            optimizer.zero_grad()
            Y_hat, _ = net(X, dec_input, X_valid_len)
            value = loss(Y_hat, label, label_len).sum()
            value.backward()
            grad_clipping(net, 1)
            optimizer.step()
            loss_sum, num_tokens = loss_sum + value.item(), num_tokens + int(label_len.sum())
        if epoch % max(1, num_epochs // 5) == 0:
            print(f"epoch {epoch:4d}, loss {loss_sum / num_tokens:.3f}")
    speed = num_tokens / (time.perf_counter() - start)
    print(f"loss {loss_sum / num_tokens:.3f}, {speed:.1f} tokens/sec on {device}")
    return net.eval()


def _lacks_sizes(net: nn.Module) -> bool:
    """Return whether a layer gets its size from the first input. An optimiser cannot take its parameters before."""
    return any(map(nn.parameter.is_lazy, net.parameters()))


# Translating


def _weights_of(decoder: Any) -> Any:
    try:
        return decoder.attention_weights
    except (AttributeError, NotImplementedError):
        raise ValueError("save_attention_weights needs a decoder that keeps them as attention_weights") from None


@torch.no_grad()
def predict_seq2seq(
    net: Any,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    device: Any = None,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """Translate a sentence greedily (0.17), as `book.jax.predict_seq2seq` does."""
    net.eval()
    device = torch.device("cpu") if device is None else device
    X, valid_len = (_tensor(x).to(device) for x in encode_source(src_sentence, src_vocab, num_steps))
    state = net.decoder.init_state(net.encoder(X, valid_len), valid_len)
    dec_X = torch.tensor([[tgt_vocab["<bos>"]]], device=device)
    output_seq: list[int] = []
    attention_weight_seq: list[Any] = []
    for _ in range(num_steps):
        Y, state = net.decoder(dec_X, state)
        dec_X = Y.argmax(dim=2)
        if save_attention_weights:
            attention_weight_seq.append(_weights_of(net.decoder))
        if int(dec_X) == tgt_vocab["<eos>"]:
            break
        output_seq.append(int(dec_X))
    return " ".join(tgt_vocab.to_tokens(output_seq)), attention_weight_seq


def predict_s2s_ch9(
    model: nn.Module, src_sentence: str, src_vocab: Vocab, tgt_vocab: Vocab, num_steps: int, device: Any = None
) -> str:
    """Translate a sentence greedily (2020): `predict_seq2seq` without the weights."""
    return predict_seq2seq(model, src_sentence, src_vocab, tgt_vocab, num_steps, device)[0]


translate = predict_s2s_ch9  # in the PyTorch port of 2020, there also `translate_ch7`


# 1.0: a model that knows its loss, and a trainer


class Seq2Seq(EncoderDecoder):
    """A model with its loss (1.0): `Seq2Seq(encoder, decoder, tgt_pad=data.tgt_vocab["<pad>"], lr=0.005)`.

    `model(src, tgt, src_valid_len)` returns the logits alone.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, tgt_pad: int, lr: float) -> None:
        super().__init__(encoder, decoder)
        self.tgt_pad, self.lr = tgt_pad, lr

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Any:
        return super().forward(enc_X, dec_X, *args)[0]

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """Return the mean cross entropy of the labels that are no padding."""
        return masked_cross_entropy(Y_hat, Y, mask=Y.ne(self.tgt_pad))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Trainer(Epochs):
    """The training of 1.0: `trainer = Trainer(max_epochs=30, gradient_clip_val=1)`, `trainer.fit(model, data)`.

    Afterwards `trainer.losses` has the losses (training, validation) of each epoch.
    """

    def fit(self, model: Any, data: Any) -> None:
        """Train the model in place."""
        self.device = try_gpu() if self.num_gpus else torch.device("cpu")
        if _lacks_sizes(model):
            initialize(model, *next(iter(data.val_dataloader()))[:-1])
        model.to(self.device)
        optimizer = model.configure_optimizers()
        self.losses = []
        for _ in range(self.max_epochs):
            values = []
            model.train()
            for batch in data.train_dataloader():
                optimizer.zero_grad()
                value = self._loss(model, batch)
                value.backward()
                if self.gradient_clip_val:
                    grad_clipping(model, self.gradient_clip_val)
                optimizer.step()
                values.append(value.item())
            model.eval()
            with torch.no_grad():
                validation = [self._loss(model, batch).item() for batch in data.val_dataloader()]
            self.end_epoch(values, validation)

    def _loss(self, model: Any, batch: Sequence[Tensor]) -> Tensor:
        *X, Y = (x.to(self.device) for x in batch)
        return model.loss(model(*X), Y)

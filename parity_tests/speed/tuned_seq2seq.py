"""The attention seq2seq as somebody writes it who wants plain PyTorch to be fast: torch_ref's names and its results.

What does not depend on the recurrence is outside of the loop: the keys are projected once, the embeddings' share of the
gates is one product for all steps, and so is the output layer, which is asked only for the tokens that count. What
remains in a step is one product a layer, the attention and the gates. Sentences need not be packed where all are full.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

State = tuple[tuple[Tensor, ...], Tensor]
"""The carries of the layers, h or h and c after each other, and the last attentional vector; each `[rows, H]`."""


class Memory(NamedTuple):
    """What every step reads."""

    keys: Tensor  # [B, K, H], projected
    values: Tensor  # [B, K, V]
    hidden: Tensor  # bool [B, 1, K], True where nobody may attend


class AdditiveAttention(nn.Module):
    """Owns the weights; `TunedDecoder.attend` computes."""

    def __init__(self, num_hiddens: int, key_size: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)


class TunedEncoder(nn.Module):
    """Embedding, then nn.LSTM or nn.GRU; packed only where sentences differ in length."""

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int,
        cell: str,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        rnn = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = rnn(embed_size, num_hiddens, num_layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, sources: Tensor, source_lens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Ids `[B, S]` -> outputs `[B, S, V]` and the final parts, each `[layers, B, V]`, directions side by side."""
        embedded, time = self.embedding(sources), sources.shape[1]
        if bool((source_lens == time).all()):
            outputs, final = self.rnn(embedded)
        else:
            packed = pack_padded_sequence(embedded, source_lens.cpu(), batch_first=True, enforce_sorted=False)
            packed, final = self.rnn(packed)
            outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=time)
        parts = final if isinstance(final, tuple) else (final,)
        directions = 2 if self.rnn.bidirectional else 1
        return outputs, tuple(part.unflatten(0, (-1, directions)).transpose(1, 2).flatten(2) for part in parts)


class TunedDecoder(nn.Module):
    """LSTM with the previous query and LSTM or GRU with the new one, additive attention; see `torch_ref`."""

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int,
        cell: str,
        encoder_size: int,
        query: str = "previous",
        input_feeding: bool = False,
        bridge: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.score: Callable[..., Tensor] = score
        self.step: Callable[..., Any] = self.advance
        self.num_hiddens, self.num_layers, self.cell = num_hiddens, num_layers, cell
        self.query, self.input_feeding, self.dropout = query, input_feeding, dropout
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.attention = AdditiveAttention(num_hiddens, encoder_size)
        joined = encoder_size if query == "previous" else num_hiddens if input_feeding else 0
        rnn = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = rnn(joined + embed_size, num_hiddens, num_layers)  # its weights; the steps are below
        if query == "new":
            self.attentional = nn.Linear(encoder_size + num_hiddens, num_hiddens, bias=False)
        if bridge:
            self.bridge_h = nn.Linear(encoder_size, num_hiddens)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def compile_step(self) -> None:
        """Let `torch.compile` have the step: all steps as one program take minutes to compile and are hardly faster."""
        self.score = score_in_one_loop
        self.step = torch.compile(self.advance, dynamic=False)

    def prepare(self, outputs: Tensor, parts: tuple[Tensor, ...], source_lens: Tensor) -> tuple[Memory, State]:
        """The memory, its keys projected once, and the state before the first step."""
        beyond = torch.arange(outputs.shape[1], device=outputs.device) >= source_lens[:, None]
        memory = Memory(self.attention.W_k(outputs), outputs, beyond[:, None])
        if hasattr(self, "bridge_h"):
            parts = tuple(torch.tanh(self.bridge_h(part)) for part in parts)
        carries = tuple(part[layer] for layer in range(self.num_layers) for part in parts)
        return memory, (carries, torch.zeros_like(carries[0]))

    def weights(self) -> tuple[tuple[Tensor, ...], ...]:
        """Of each layer what its step multiplies by, in the way the step wants it: computed once for all steps."""
        of_layers: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            w_ih, w_hh, b_ih, b_hh = (
                getattr(self.rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if layer == 0:  # the embeddings' share, the last columns, is projected outside
                w_ih, b_ih = w_ih[:, : w_ih.shape[1] - self.embedding.embedding_dim], torch.zeros_like(b_ih)
                b_hh = torch.zeros_like(b_hh) if self.cell == "lstm" else b_hh
            if self.cell == "lstm":
                of_layers.append((torch.cat([w_ih, w_hh], dim=1).T, b_ih + b_hh))
            else:
                of_layers.append((w_ih.T, b_ih, w_hh.T, b_hh))
        return tuple(of_layers)

    def project(self, targets: Tensor) -> Tensor:
        """The embeddings' share of the first layer's gates, `[..., G]`, with every bias that can be added there."""
        w_ih = self.rnn.weight_ih_l0[:, -self.embedding.embedding_dim :]
        bias = self.rnn.bias_ih_l0 + (self.rnn.bias_hh_l0 if self.cell == "lstm" else 0)
        return F.linear(self.embedding(targets), w_ih, bias)

    def unroll(self, projected: Tensor, memory: Memory, state: State) -> Tensor:
        """All steps: projected embeddings `[T, B, G]` -> outputs `[T, B, H]`."""
        weights = self.weights()
        outputs = []
        for at_time in projected.unbind(0):
            output, state, _ = self.step(at_time, memory, state, weights)
            outputs.append(output)
        return torch.stack(outputs)

    def advance(
        self, projected: Tensor, memory: Memory, state: State, weights: tuple[tuple[Tensor, ...], ...]
    ) -> tuple[Tensor, State, Tensor]:
        """One step of `[rows]`: the output, the state and what was attended to `[rows, K]`."""
        carries, feed = list(state[0]), state[1]
        parts = 2 if self.cell == "lstm" else 1
        attended = torch.empty(0)
        if self.query == "previous":
            joined, attended = self.attend(carries[-parts], memory)
        else:
            joined = feed if self.input_feeding else feed[:, :0]
        hidden = joined
        for layer, of_layer in enumerate(weights):
            own = slice(layer * parts, (layer + 1) * parts)
            extra = projected if layer == 0 else None
            carries[own] = STEPS[self.cell](hidden, carries[own], of_layer, extra)
            hidden = carries[own][0]
        if self.query == "new":
            context, attended = self.attend(hidden, memory)
            feed = hidden = torch.tanh(self.attentional(torch.cat([context, hidden], dim=-1)))
        return hidden, (tuple(carries), feed), attended

    def attend(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Queries `[rows, H]`, a sentence's beam side by side -> context `[rows, V]` and weights `[rows, K]`."""
        sentences = memory.keys.shape[0]
        projected = self.attention.W_q(queries).reshape(sentences, -1, 1, self.num_hiddens)
        scores = self.score(projected, memory.keys[:, None], self.attention.w_v.weight[0])
        weights = torch.softmax(scores.masked_fill(memory.hidden, -torch.inf), dim=-1)
        kept = F.dropout(weights, self.dropout, self.training)
        return (kept @ memory.values).flatten(0, 1), weights.flatten(0, 1)


def lstm_step(hidden: Tensor, carry: list[Tensor], weights: tuple[Tensor, ...], extra: Tensor | None) -> list[Tensor]:
    """One product for both inputs and all gates."""
    h, c = carry
    kernel, bias = weights
    gates = torch.addmm(bias if extra is None else extra, torch.cat([hidden, h], dim=1), kernel)
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def gru_step(hidden: Tensor, carry: list[Tensor], weights: tuple[Tensor, ...], extra: Tensor | None) -> list[Tensor]:
    """Two products: the candidate's own is reset after it."""
    (h,) = carry
    w_ih, b_ih, w_hh, b_hh = weights
    of_input = torch.addmm(b_ih if extra is None else extra, hidden, w_ih)
    of_state = torch.addmm(b_hh, h, w_hh)
    size = 2 * h.shape[1]
    r, z = torch.sigmoid(of_input[:, :size] + of_state[:, :size]).chunk(2, dim=1)
    n = torch.tanh(of_input[:, size:] + r * of_state[:, size:])
    return [n + z * (h - n)]


STEPS: dict[str, Callable[..., list[Tensor]]] = {"lstm": lstm_step, "gru": gru_step}


def score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Scores `[B, beam, K]` of queries `[B, beam, 1, H]` and keys `[B, 1, K, H]`."""
    return torch.tanh(queries + keys) @ w_v


def score_in_one_loop(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """The same for `torch.compile`, which makes one loop of the sum, but of the product a call of a library."""
    return (torch.tanh(queries + keys) * w_v).sum(-1)


class TunedTranslator(nn.Module):
    """Encoder and decoder, with torch_ref's state dict."""

    def __init__(self, encoder: dict[str, Any], decoder: dict[str, Any], encoder_size: int) -> None:
        super().__init__()
        self.encoder = TunedEncoder(**encoder)
        self.decoder = TunedDecoder(**decoder, encoder_size=encoder_size)

    def encode(self, sources: Tensor, source_lens: Tensor) -> tuple[Memory, State]:
        outputs, parts = self.encoder(sources, source_lens)
        return self.decoder.prepare(outputs, parts, source_lens)

    def forward(self, sources: Tensor, source_lens: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Teacher forcing: logits `[tokens, N]` of the positions where `counts` `[B, T]`, sentence by sentence."""
        memory, state = self.encode(sources, source_lens)
        outputs = self.decoder.unroll(self.decoder.project(targets.T), memory, state)
        return self.decoder.dense(outputs.transpose(0, 1)[counts])

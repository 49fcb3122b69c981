"""The fastest attention seq2seq that plain PyTorch gives: torch_ref's parameters and results, written for speed.

Everything that does not depend on the recurrence is computed outside the loop: the keys are projected once, the
embeddings' share of the gates is one product for all steps, and so is the output layer, which computes only the tokens
that count. A step has one product for each layer, the attention and the gates. Search runs over the whole batch.
The models inherit only their parameters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_ref

State = tuple[tuple[Tensor, ...], Tensor]
"""The layers' carries (h, or h and c of each layer), and the last attentional vector; each `[rows, H]`."""

LayerWeights = tuple[tuple[Tensor, ...], ...]


class Memory(NamedTuple):
    """What every step reads."""

    keys: Tensor  # [B, K, H], projected
    values: Tensor  # [B, K, V]
    padding: Tensor  # bool [B, 1, K], True past the length


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute w_vᵀ tanh(q + k) by a product."""
    return torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) @ w_v


def additive_score_to_compile(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute the same by a sum: `torch.compile` makes one loop of it, which never stores `[B, Q, K, H]`."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) * w_v).sum(-1)


def masked_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Apply the softmax to the keys within the length; no length is 0."""
    within = torch.arange(scores.shape[-1], device=scores.device) < valid_lens[:, None, None]
    return scores.masked_fill(~within, -torch.inf).softmax(-1)


class Encoder(torch_ref.Seq2SeqEncoder):
    """Embedding, then nn.LSTM or nn.GRU. Sentences are packed only if their lengths differ."""

    def encode(self, sources: Tensor, source_lens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Ids `[B, S]` -> outputs `[B, S, V]`, and h (and c) of the last step, `[layers, B, V]`."""
        embedded, time = self.embedding(sources), sources.shape[1]
        library: Any = nn.LSTM.forward if isinstance(self.rnn, nn.LSTM) else nn.GRU.forward
        if bool((source_lens == time).all()):
            outputs, final = library(self.rnn, embedded)
        else:
            packed = pack_padded_sequence(embedded, source_lens.cpu(), batch_first=True, enforce_sorted=False)
            packed, final = library(self.rnn, packed)
            outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=time)
        parts = final if isinstance(final, tuple) else (final,)
        directions = 2 if self.rnn.bidirectional else 1
        return outputs, tuple(part.unflatten(0, (-1, directions)).transpose(1, 2).flatten(2) for part in parts)


class Decoder(torch_ref.Seq2SeqAttentionDecoder):
    """An LSTM whose query is the previous state, or an LSTM or GRU whose query is the new one; additive attention."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lstm = isinstance(self.rnn, nn.LSTM)
        self.score = additive_score
        self.take_step = self.advance

    def compile_step(self) -> None:
        """Compile one step. (All steps as one program take minutes to compile and are hardly faster.)"""
        self.score = additive_score_to_compile
        self.take_step = torch.compile(self.advance, dynamic=False)

    def start(self, outputs: Tensor, parts: tuple[Tensor, ...], source_lens: Tensor) -> tuple[Memory, State]:
        """Project the keys once, and make the state before the first step."""
        padding = torch.arange(outputs.shape[1], device=outputs.device) >= source_lens[:, None]
        memory = Memory(self.attention.W_k(outputs), outputs, padding[:, None])
        if self.bridge_h is not None:  # of a GRU
            parts = tuple(torch.tanh(self.bridge_h(part)) for part in parts)
        carries = tuple(part[layer] for layer in range(self.rnn.num_layers) for part in parts)
        return memory, (carries, torch.zeros_like(carries[0]))

    def layer_weights(self) -> LayerWeights:
        """Arrange each layer's weights as its step needs them, once for all steps."""
        layers: list[tuple[Tensor, ...]] = []
        for layer in range(self.rnn.num_layers):
            w_ih, w_hh, b_ih, b_hh = (
                getattr(self.rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if layer == 0:  # `project` has computed the embedding's columns, which are the last ones, and the bias
                w_ih, b_ih = w_ih[:, : w_ih.shape[1] - self.embedding.embedding_dim], torch.zeros_like(b_ih)
                b_hh = torch.zeros_like(b_hh) if self.lstm else b_hh
            if self.lstm:
                layers.append((torch.cat([w_ih, w_hh], dim=1).T, b_ih + b_hh))
            else:
                layers.append((w_ih.T, b_ih, w_hh.T, b_hh))
        return tuple(layers)

    def project(self, targets: Tensor) -> Tensor:
        """Compute the embeddings' share of the first layer's gates, `[..., G]`, with the biases that can be added."""
        w_ih = self.rnn.weight_ih_l0[:, -self.embedding.embedding_dim :]
        bias = self.rnn.bias_ih_l0 + (self.rnn.bias_hh_l0 if self.lstm else 0)
        return F.linear(self.embedding(targets), w_ih, bias)

    def unroll(self, projected: Tensor, memory: Memory, state: State) -> Tensor:
        """Take all steps: projected embeddings `[T, B, G]` -> outputs `[T, B, H]`."""
        weights, outputs = self.layer_weights(), []
        for at_time in projected.unbind(0):
            output, state = self.take_step(at_time, memory, state, weights)
            outputs.append(output)
        return torch.stack(outputs)

    def advance(self, projected: Tensor, memory: Memory, state: State, weights: LayerWeights) -> tuple[Tensor, State]:
        """Take one step: projected embeddings `[rows, G]` -> the output `[rows, H]` and the new state."""
        carries, feed = list(state[0]), state[1]
        parts, cell_step = (2, _lstm_step) if self.lstm else (1, _gru_step)
        if self.query == "previous":
            hidden = self.attend(carries[-parts], memory)
        else:
            hidden = feed if self.input_feeding else feed[:, :0]
        for layer, layer_weights in enumerate(weights):
            own = slice(layer * parts, (layer + 1) * parts)
            carries[own] = cell_step(hidden, carries[own], layer_weights, projected if layer == 0 else None)
            hidden = carries[own][0]
        if self.query == "new":
            context = self.attend(hidden, memory)
            feed = hidden = torch.tanh(self.attentional(torch.cat([context, hidden], dim=-1)))
        return hidden, (tuple(carries), feed)

    def attend(self, queries: Tensor, memory: Memory) -> Tensor:
        """Queries `[rows, H]`, a sentence's hypotheses next to each other -> contexts `[rows, V]`."""
        projected = self.attention.W_q(queries).reshape(len(memory.keys), -1, self.num_hiddens)
        scores = self.score(projected, memory.keys, self.attention.w_v.weight[0])
        weights = torch.softmax(scores.masked_fill(memory.padding, -torch.inf), dim=-1)
        return (F.dropout(weights, self.attention.dropout, self.training) @ memory.values).flatten(0, 1)


def _lstm_step(hidden: Tensor, carry: list[Tensor], weights: tuple[Tensor, ...], extra: Tensor | None) -> list[Tensor]:
    """Compute all gates in one product."""
    h, c = carry
    kernel, bias = weights
    gates = torch.addmm(bias if extra is None else extra, torch.cat([hidden, h], dim=1), kernel)
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def _gru_step(hidden: Tensor, carry: list[Tensor], weights: tuple[Tensor, ...], extra: Tensor | None) -> list[Tensor]:
    """Compute all gates in two products, since the reset gate acts on only one of them."""
    (h,) = carry
    w_ih, b_ih, w_hh, b_hh = weights
    input_share = torch.addmm(b_ih if extra is None else extra, hidden, w_ih)
    state_share = torch.addmm(b_hh, h, w_hh)
    size = 2 * h.shape[1]
    r, z = torch.sigmoid(input_share[:, :size] + state_share[:, :size]).chunk(2, dim=1)
    n = torch.tanh(input_share[:, size:] + r * state_share[:, size:])
    return [n + z * (h - n)]


class Seq2Seq(torch_ref.EncoderDecoder):
    """Encoder and decoder."""

    encoder: Encoder
    decoder: Decoder

    def start(self, sources: Tensor, source_lens: Tensor) -> tuple[Memory, State]:
        """Encode the sources: the memory, and the state before the first step."""
        return self.decoder.start(*self.encoder.encode(sources, source_lens), source_lens)

    def logits(self, sources: Tensor, source_lens: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Read the targets; return logits `[tokens, N]` where `counts` `[B, T]` is True, sentence by sentence."""
        memory, state = self.start(sources, source_lens)
        outputs = self.decoder.unroll(self.decoder.project(targets.T), memory, state)
        return self.decoder.dense(outputs.transpose(0, 1)[counts])


@torch.inference_mode()
def search(
    model: Seq2Seq, sources: Tensor, source_lens: Tensor, beam_size: int, bos: int, eos: int, max_len: int, min_len: int
) -> tuple[Tensor, Tensor]:
    """Search with a beam, or greedily with `beam_size` 1: ids `[B, beam, L]`, best first, and their log p `[B, beam]`.

    After the end ids are eos. A finished hypothesis keeps its score and competes with the others.
    """
    memory, state = model.start(sources, source_lens)
    decoder, weights = model.decoder, model.decoder.layer_weights()
    batch, device = len(sources), sources.device
    first = torch.arange(batch, device=device)[:, None] * beam_size  # the row of each sentence's first hypothesis
    state = _reorder(state, torch.arange(batch, device=device).repeat_interleave(beam_size))
    tokens = sources.new_full((batch * beam_size,), bos)
    ids = sources.new_full((batch, beam_size, max_len), eos)
    sums = torch.full((batch, beam_size), -torch.inf, device=device)
    sums[:, 0] = 0  # all hypotheses are equal before the first step: only one may continue
    finished = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    end = torch.full((beam_size,), -torch.inf, device=device)
    end[0] = 0  # a finished hypothesis has one continuation, with log p = 0
    for t in range(max_len):
        output, state = decoder.take_step(decoder.project(tokens), memory, state, weights)
        gained, tokens = _top_k(decoder.dense(output), beam_size, eos if t + 1 < min_len else None)
        ended = finished.flatten()[:, None]
        gained, tokens = torch.where(ended, end, gained), torch.where(ended, eos, tokens)
        sums = sums.flatten()[:, None] + gained  # [B · beam, beam]
        if beam_size > 1:
            sums, best = sums.reshape(batch, -1).topk(beam_size)
            origin = best // beam_size
            tokens = tokens.reshape(batch, -1).gather(1, best)
            ids = ids.gather(1, origin[..., None].expand_as(ids))
            finished = finished.gather(1, origin)
            state = _reorder(state, (first + origin).flatten())
        ids[..., t] = tokens
        finished |= tokens == eos
        tokens = tokens.flatten()
        if finished.all():
            break
    return ids, sums


def _top_k(logits: Tensor, k: int, forbidden: int | None) -> tuple[Tensor, Tensor]:
    """Return the log p `[rows, k]` and ids of the k most probable tokens, without the forbidden one."""
    total = logits.logsumexp(-1, keepdim=True)  # of all tokens, so that scores stay the model's
    if forbidden is not None:
        logits[:, forbidden] = -torch.inf
    best, tokens = logits.max(-1, keepdim=True) if k == 1 else logits.topk(k)
    return best - total, tokens


def _reorder(state: State, rows: Tensor) -> State:
    carries, feed = state
    return tuple(carry[rows] for carry in carries), feed[rows]

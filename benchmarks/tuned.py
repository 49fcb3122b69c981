"""The fastest attention seq2seq that plain PyTorch gives: torch_ref's model and results, computed for speed.

Everything that does not depend on the recurrence is computed outside the loop: the keys are projected once, the
embeddings' share of the gates is one product for all steps, and so is the output layer, which computes only the tokens
that count. A step has one product for each layer, the attention and the gates. Search runs over the whole batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torch_ref import EncoderDecoder

State = tuple[tuple[Tensor, ...], Tensor]
"""The layers' carries (h, or h and c of each layer), and the last attentional vector; each `[rows, H]`."""

LayerWeights = tuple[Tensor, ...]


class Memory(NamedTuple):
    """What every step reads."""

    keys: Tensor  # [B, K, H], projected
    values: Tensor  # [B, K, V]
    padding: Tensor | None  # bool [B, 1, K], True past the length; None where all sentences are full


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute w_vᵀ tanh(q + k) by a product."""
    return torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) @ w_v


def additive_score_to_compile(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute the same by a sum: `torch.compile` makes one loop of it, which never stores `[B, Q, K, H]`."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) * w_v).sum(-1)


class Tuned:
    """A model of torch_ref with additive attention: an LSTM whose query is "previous", or an LSTM or GRU with "new".

    `compiled` compiles a step. (All steps as one program take minutes to compile and are hardly faster.)
    """

    def __init__(self, model: EncoderDecoder, compiled: bool = False) -> None:
        self.model, self.decoder = model, model.decoder
        self.rnn: Any = model.decoder.rnn
        self.num_parts, self.cell_step = (2, _lstm_step) if isinstance(self.rnn, nn.LSTM) else (1, _gru_step)
        self.score = additive_score_to_compile if compiled else additive_score
        self.step = torch.compile(self.take_step, dynamic=False) if compiled else self.take_step

    def start(self, sources: Tensor, source_lens: Tensor) -> tuple[Memory, State]:
        """Encode the sources, packed only if their lengths differ: the memory, and the state before the first step."""
        rnn, time, padding = self.model.encoder.rnn, sources.shape[1], None
        embedded, library = self.model.encoder.embedding(sources), nn.LSTM if isinstance(rnn, nn.LSTM) else nn.GRU
        if bool((source_lens == time).all()):
            outputs, final = library.forward(rnn, embedded)
        else:
            packed = pack_padded_sequence(embedded, source_lens.cpu(), batch_first=True, enforce_sorted=False)
            packed, final = library.forward(rnn, packed)
            outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=time)
            padding = (torch.arange(time) >= source_lens[:, None])[:, None]
        parts = final if isinstance(final, tuple) else (final,)
        directions = 2 if rnn.bidirectional else 1
        parts = tuple(part.unflatten(0, (-1, directions)).transpose(1, 2).flatten(2) for part in parts)
        if self.decoder.bridge_h is not None:  # of a GRU
            parts = tuple(torch.tanh(self.decoder.bridge_h(part)) for part in parts)
        carries = tuple(part[layer] for layer in range(self.rnn.num_layers) for part in parts)
        return Memory(self.decoder.attention.W_k(outputs), outputs, padding), (carries, torch.zeros_like(carries[0]))

    def layer_weights(self) -> tuple[LayerWeights, ...]:
        """Arrange each layer's weights as its step needs them, once for all steps."""
        layers: list[LayerWeights] = []
        for layer in range(self.rnn.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w_ih, w_hh, b_ih, b_hh = (getattr(self.rnn, f"{name}_l{layer}") for name in names)
            if layer == 0:  # without the embedding's columns, which are the last ones: see `project`
                w_ih = w_ih[:, : -self.decoder.embedding.embedding_dim]
            lstm = torch.cat([w_ih, w_hh], dim=1).T, b_ih + b_hh
            layers.append(lstm if self.num_parts == 2 else (w_ih.T, b_ih, w_hh.T, b_hh))
        return tuple(layers)

    def project(self, targets: Tensor) -> Tensor:
        """Compute the embeddings' share of the first layer's gates, `[..., G]`, with the biases that can be added."""
        embedding, rnn = self.decoder.embedding, self.rnn
        bias = rnn.bias_ih_l0 + rnn.bias_hh_l0 if self.num_parts == 2 else rnn.bias_ih_l0
        return F.linear(embedding(targets), rnn.weight_ih_l0[:, -embedding.embedding_dim :], bias)

    def take_step(
        self, projected: Tensor, memory: Memory, state: State, weights: tuple[LayerWeights, ...]
    ) -> tuple[Tensor, State]:
        """Take one step: projected embeddings `[rows, G]` -> the output `[rows, H]` and the new state."""
        carries, feed, parts = list(state[0]), state[1], self.num_parts
        if self.decoder.query == "previous":
            hidden = self.attend(carries[-parts], memory)
        else:
            hidden = feed if self.decoder.input_feeding else feed[:, :0]
        for layer, layer_weights in enumerate(weights):
            own = slice(layer * parts, (layer + 1) * parts)
            carries[own] = self.cell_step(hidden, carries[own], layer_weights, projected if layer == 0 else None)
            hidden = carries[own][0]
        if self.decoder.query == "new":
            context = self.attend(hidden, memory)
            feed = hidden = torch.tanh(self.decoder.attentional(torch.cat([context, hidden], dim=-1)))
        return hidden, (tuple(carries), feed)

    def attend(self, queries: Tensor, memory: Memory) -> Tensor:
        """Queries `[rows, H]`, a sentence's hypotheses next to each other -> contexts `[rows, V]`."""
        attention = self.decoder.attention
        projected = attention.W_q(queries).reshape(len(memory.values), -1, queries.shape[-1])
        scores = self.score(projected, memory.keys, attention.w_v.weight[0])
        if memory.padding is not None:
            scores = scores.masked_fill(memory.padding, -torch.inf)
        weights = F.dropout(scores.softmax(-1), attention.dropout, self.decoder.training)
        return (weights @ memory.values).flatten(0, 1)

    def logits(self, sources: Tensor, source_lens: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Read the targets; return logits `[tokens, N]` where `counts` `[B, T]` is True, sentence by sentence."""
        memory, state = self.start(sources, source_lens)
        weights, outputs = self.layer_weights(), []
        for projected in self.project(targets.T).unbind(0):
            output, state = self.step(projected, memory, state, weights)
            outputs.append(output)
        return self.decoder.dense(torch.stack(outputs).transpose(0, 1)[counts])

    @torch.inference_mode()
    def search(
        self, sources: Tensor, source_lens: Tensor, beam_size: int, bos: int, eos: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Search with a beam, or greedily with `beam_size` 1; no hypothesis ends before the last step.

        Returns:
            ids `[B, beam, steps]`, best first, and their log p `[B, beam]`.
        """
        memory, state = self.start(sources, source_lens)
        weights = self.layer_weights()

        def advance(tokens: Tensor, _: int) -> Tensor:
            nonlocal state
            output, state = self.step(self.project(tokens), memory, state, weights)
            return self.decoder.dense(output)

        def reorder(rows: Tensor, _: int) -> None:
            nonlocal state
            state = _reorder(state, rows)

        reorder(torch.arange(len(sources)).repeat_interleave(beam_size), 0)
        return run_search(advance, reorder, len(sources), beam_size, bos, eos, steps)


def run_search(
    advance: Callable[[Tensor, int], Tensor],
    reorder: Callable[[Tensor, int], None],
    batch: int,
    beam_size: int,
    bos: int,
    eos: int,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Search with a step's `advance(tokens, t)` -> logits `[B · beam, N]`, and `reorder(rows, t)` of its state."""
    first = torch.arange(batch)[:, None] * beam_size  # the row of the first hypothesis
    tokens = torch.full((batch * beam_size,), bos)
    ids = torch.empty(batch, beam_size, steps, dtype=torch.int64)
    sums = torch.full((batch, beam_size), -torch.inf)
    sums[:, 0] = 0  # all hypotheses are equal before the first step: only one may continue
    for t in range(steps):
        logits = advance(tokens, t)
        total = logits.logsumexp(-1, keepdim=True)  # of all tokens, so that scores stay the model's
        if t < steps - 1:
            logits[:, eos] = -torch.inf
        best, tokens = logits.max(-1, keepdim=True) if beam_size == 1 else logits.topk(beam_size)
        sums = sums.reshape(-1, 1) + best - total  # [B · beam, beam]
        if beam_size > 1:
            sums, chosen = sums.reshape(batch, -1).topk(beam_size)
            tokens, origin = tokens.reshape(batch, -1).gather(1, chosen), chosen // beam_size
            ids = ids.gather(1, origin[..., None].expand_as(ids))
            reorder((first + origin).flatten(), t)
        ids[..., t] = tokens
        tokens = tokens.flatten()
    return ids, sums


def _lstm_step(hidden: Tensor, carry: list[Tensor], weights: LayerWeights, extra: Tensor | None) -> list[Tensor]:
    """Compute all gates in one product."""
    h, c = carry
    kernel, bias = weights
    gates = torch.addmm(bias if extra is None else extra, torch.cat([hidden, h], dim=1), kernel)
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def _gru_step(hidden: Tensor, carry: list[Tensor], weights: LayerWeights, extra: Tensor | None) -> list[Tensor]:
    """Compute all gates in two products, since the reset gate acts on only one of them."""
    (h,) = carry
    w_ih, b_ih, w_hh, b_hh = weights
    input_share = torch.addmm(b_ih if extra is None else extra, hidden, w_ih)
    state_share = torch.addmm(b_hh, h, w_hh)
    size = 2 * h.shape[1]
    r, z = torch.sigmoid(input_share[:, :size] + state_share[:, :size]).chunk(2, dim=1)
    n = torch.tanh(input_share[:, size:] + r * state_share[:, size:])
    return [n + z * (h - n)]


def _reorder(state: State, rows: Tensor) -> State:
    carries, feed = state
    return tuple(carry[rows] for carry in carries), feed[rows]

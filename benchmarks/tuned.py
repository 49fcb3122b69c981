"""PyTorch's side: torch_ref's models, and the fastest form of each that plain PyTorch gives, with the same results.

`TunedRecurrent`: everything that does not depend on the recurrence is computed outside the loop. The keys are projected
once, the embeddings' share of the gates is one product for all steps, and so is the output layer, which computes only
the tokens that count. A step has one product for each layer, the attention and the gates.

`TunedTransformer`: PyTorch's own nn.Transformer, and search with a cache of keys and values. A step multiplies queries,
keys and values at once, writes into a cache of the final size, and reads no further than the time that it has come to.
The keys and values of the source are projected once, and a beam shares them.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import torch_ref
from benchmarks.records import COMPILED
from benchmarks.translators import BOS, EOS, Translator, draw_weights
from jax_attn.models.build import parts_of
from torch_ref.functional.trees import map_tensors
from torch_ref.models.rnn_decoder import DecoderState
from torch_ref.modules.recurrent import state_parts

Weights = tuple[Tensor, ...]
Search = tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor, int], None]]
"""`advance(tokens, t)` -> logits `[B · beam, N]`, and `reorder(rows, t)` of the state."""


def draw_module(module: Any, seed: str) -> Any:
    """Draw a module's parameters as `draw_params` does in JAX, and return it."""
    drawn = draw_weights(seed, {name: tuple(x.shape) for name, x in module.state_dict().items()})
    module.load_state_dict({name: torch.tensor(x) for name, x in drawn.items()})
    return module


def reference_model(translator: Translator) -> torch_ref.EncoderDecoder:
    """Build torch_ref's model, whose arguments have the names of ours."""
    parts: Any = parts_of(translator.model)
    encoder, decoder = ({"vocab_size": translator.vocab_size, **part.keywords} for part in parts)
    if translator.model.family == "transformer":
        halves = torch_ref.TransformerEncoder(**encoder), torch_ref.TransformerDecoder(**decoder)
        return torch_ref.EncoderDecoder(*halves)
    size = encoder["num_hiddens"] * (2 if encoder["bidirectional"] else 1)
    attention_decoder = torch_ref.Seq2SeqAttentionDecoder(**decoder, encoder_size=size)
    return torch_ref.EncoderDecoder(torch_ref.Seq2SeqEncoder(**encoder), attention_decoder)


def tuned_model(model: torch_ref.EncoderDecoder, kind: str) -> Any:
    """Return torch_ref's model in its fast form; `kind` is "tuned" or "compiled"."""
    form = TunedTransformer if isinstance(model.encoder, torch_ref.TransformerEncoder) else TunedRecurrent
    return form(model, kind == COMPILED)


def additive_score(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute w_vᵀ tanh(q + k) by a product."""
    return torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) @ w_v


def additive_score_to_compile(queries: Tensor, keys: Tensor, w_v: Tensor) -> Tensor:
    """Compute the same by a sum: `torch.compile` makes one loop of it, which never stores `[B, Q, K, H]`."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) * w_v).sum(-1)


class TunedRecurrent(nn.Module):
    """A model with additive attention whose query is "previous", or "new" with input feeding.

    `compiled` compiles a step. (All steps as one program take minutes to compile and are hardly faster.)
    """

    def __init__(self, model: torch_ref.EncoderDecoder, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.decoder, self.rnn = model, model.decoder, model.decoder.rnn
        self.is_lstm = isinstance(self.rnn, nn.LSTM)
        self.cell: Any = _lstm if self.is_lstm else _gru
        self.score = additive_score_to_compile if compiled else additive_score
        self.step = torch.compile(self.take_step, dynamic=False) if compiled else self.take_step

    def start(self, sources: Tensor, source_lens: Tensor) -> tuple[Any, DecoderState]:
        """Encode the sources, packed only if their lengths differ: the attention's memory, and the first state."""
        full = bool((source_lens == sources.shape[1]).all())
        memory = self.model.encode(sources, None if full else source_lens)
        return memory.attention, self.model.initial_state(memory)

    def layer_weights(self) -> tuple[Weights, ...]:
        """Arrange each layer's weights as its step needs them, once for all steps."""
        layers: list[Weights] = []
        for layer in range(self.rnn.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            w_ih, w_hh, b_ih, b_hh = (getattr(self.rnn, f"{name}_l{layer}") for name in names)
            if layer == 0:  # without the embedding's columns, which are the last ones: see `project`
                w_ih = w_ih[:, : -self.decoder.embedding.embedding_dim]
            lstm = torch.cat([w_ih, w_hh], dim=1).T, b_ih + b_hh
            layers.append(lstm if self.is_lstm else (w_ih.T, b_ih, w_hh.T, b_hh))
        return tuple(layers)

    def project(self, targets: Tensor) -> Tensor:
        """Compute the embeddings' share of the first layer's gates, `[..., G]`, with the biases that can be added."""
        embedding, rnn = self.decoder.embedding, self.rnn
        bias = rnn.bias_ih_l0 + rnn.bias_hh_l0 if self.is_lstm else rnn.bias_ih_l0
        return F.linear(embedding(targets), rnn.weight_ih_l0[:, -embedding.embedding_dim :], bias)

    def take_step(
        self, projected: Tensor, memory: Any, state: DecoderState, weights: tuple[Weights, ...]
    ) -> tuple[Tensor, DecoderState]:
        """Take one step: projected embeddings `[rows, G]` -> the output `[rows, H]` and the new state."""
        hidden = self.attend(state_parts(state.rnn[-1])[0], memory) if state.feed is None else state.feed
        carries = []
        for layer, (carry, layer_weights) in enumerate(zip(state.rnn, weights, strict=True)):
            carries.append(self.cell(hidden, carry, layer_weights, projected if layer == 0 else None))
            hidden = state_parts(carries[-1])[0]
        feed = state.feed
        if feed is not None:
            feed = hidden = torch.tanh(self.decoder.attentional(torch.cat([self.attend(hidden, memory), hidden], 1)))
        return hidden, DecoderState(tuple(carries), feed)

    def attend(self, queries: Tensor, memory: Any) -> Tensor:
        """Queries `[rows, H]`, a sentence's hypotheses next to each other -> contexts `[rows, V]`."""
        attention = self.decoder.attention
        projected = attention.W_q(queries).reshape(len(memory.values), -1, queries.shape[-1])
        scores = self.score(projected, memory.keys, attention.w_v.weight[0])
        if memory.mask is not None:
            scores = torch.where(memory.mask, scores, -torch.inf)
        weights = F.dropout(scores.softmax(-1), attention.dropout, self.training)
        return (weights @ memory.values).flatten(0, 1)

    def logits(self, sources: Tensor, source_lens: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Read the targets; return logits `[tokens, N]` where `counts` `[B, T]` is True, sentence by sentence."""
        memory, state = self.start(sources, source_lens)
        weights, outputs = self.layer_weights(), []
        for projected in self.project(targets.T).unbind(0):
            output, state = self.step(projected, memory, state, weights)
            outputs.append(output)
        return self.decoder.dense(torch.stack(outputs).transpose(0, 1)[counts])

    def start_search(self, sources: Tensor, source_lens: Tensor, beam_size: int, steps: int) -> Search:
        memory, state = self.start(sources, source_lens)
        weights = self.layer_weights()

        def advance(tokens: Tensor, _: int) -> Tensor:
            nonlocal state
            output, state = self.step(self.project(tokens), memory, state, weights)
            return self.decoder.dense(output)

        def reorder(rows: Tensor, _: int) -> None:
            nonlocal state
            state = map_tensors(lambda x: x[rows], state)

        reorder(torch.arange(len(sources)).repeat_interleave(beam_size), 0)
        return advance, reorder


def _lstm(hidden: Tensor, carry: Any, weights: Weights, extra: Tensor | None) -> Any:
    """Compute all gates in one product."""
    h, c = carry
    kernel, bias = weights
    gates = torch.addmm(bias if extra is None else extra, torch.cat([hidden, h], dim=1), kernel)
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(hidden: Tensor, h: Any, weights: Weights, extra: Tensor | None) -> Any:
    """Compute all gates in two products, since the reset gate acts on only one of them."""
    w_ih, b_ih, w_hh, b_hh = weights
    input_share = torch.addmm(b_ih if extra is None else extra, hidden, w_ih)
    state_share = torch.addmm(b_hh, h, w_hh)
    size = 2 * h.shape[1]
    r, z = torch.sigmoid(input_share[:, :size] + state_share[:, :size]).chunk(2, dim=1)
    n = torch.tanh(input_share[:, size:] + r * state_share[:, size:])
    return n + z * (h - n)


class TunedTransformer(nn.Module):
    """`nn.Transformer` between embeddings and an output layer; it is normalised before.

    `compiled` compiles teacher forcing as a whole, and a step of the search with a mask over the whole cache, so that
    all steps have one shape.
    """

    def __init__(self, model: torch_ref.EncoderDecoder, compiled: bool = False) -> None:
        super().__init__()
        encoder, decoder, self.compiled = model.encoder, model.decoder, compiled
        self.size, self.heads, self.rate = encoder.embed_size, encoder.num_heads, encoder.dropout
        counts = len(encoder.layers), len(decoder.layers)
        sizes: Any = self.size, self.heads, *counts, encoder.num_hiddens, self.rate
        self.transformer: Any = nn.Transformer(*sizes, batch_first=True, norm_first=True)
        self.to(decoder.dense.weight.dtype)
        self.sources, self.targets, self.dense = encoder.embedding, decoder.embedding, decoder.dense
        for half, given in ((self.transformer.encoder, encoder), (self.transformer.decoder, decoder)):
            half.load_state_dict(_by_torch_names(given.state_dict()))
        self.read = torch.compile(self._read, dynamic=False) if compiled else self._read
        self.step = torch.compile(self._step, dynamic=False) if compiled else self._step

    def embed(self, table: nn.Embedding, ids: Tensor, start: int = 0) -> Tensor:
        """Embed ids with their positions, of which the first is `start`."""
        x = table(ids) * self.size**0.5
        positions = torch_ref.sinusoidal_positions(start + ids.shape[1], self.size, x.dtype)[start:]
        return F.dropout(x + positions, self.rate, self.training)

    def logits(self, sources: Tensor, source_lens: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """Read the targets; return logits `[tokens, N]` where `counts` `[B, T]` is True, sentence by sentence."""
        return self.dense(self.read(sources, _padding(sources, source_lens), targets)[counts])

    def _read(self, sources: Tensor, padding: Tensor | None, targets: Tensor) -> Tensor:
        later = nn.Transformer.generate_square_subsequent_mask(targets.shape[1], dtype=self.dense.weight.dtype)
        padding = None if padding is None else torch.zeros_like(padding, dtype=later.dtype).masked_fill(padding, -1e30)
        given = self.embed(self.sources, sources), self.embed(self.targets, targets)
        masks = {"tgt_mask": later, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return self.transformer(*given, **masks, tgt_is_causal=True)

    def start_search(self, sources: Tensor, source_lens: Tensor, beam_size: int, steps: int) -> Search:
        padding, layers = _padding(sources, source_lens), self.transformer.decoder.layers
        encoded = self.transformer.encoder(self.embed(self.sources, sources), src_key_padding_mask=padding)
        memory = [self._project(encoded, layer.multihead_attn, 1) for layer in layers]
        allowed = None if padding is None else ~padding[:, None, None]
        shape = len(layers), 2, len(sources) * beam_size, self.heads, steps, self.size // self.heads
        cache, times = encoded.new_zeros(shape), torch.arange(steps)

        def advance(tokens: Tensor, t: int) -> Tensor:
            x = self.embed(self.targets, tokens[:, None], t)
            if self.compiled:
                return self.step(x, cache, memory, allowed, times[t : t + 1], (times <= t)[None])
            return self.step(x, cache[..., : t + 1, :], memory, allowed, times[t : t + 1], None)

        def reorder(rows: Tensor, t: int) -> None:
            past = cache[..., : t + 1, :]
            past.copy_(past[:, :, rows])

        return advance, reorder

    def _project(self, x: Tensor, attention: nn.MultiheadAttention, first: int, last: int = 3) -> tuple[Tensor, ...]:
        """Project `[B, T, D]` to queries, keys and values, or some of them: `[B, heads, T, D / heads]` each."""
        own = slice(first * self.size, last * self.size)
        projected = F.linear(x, attention.in_proj_weight[own], attention.in_proj_bias[own])
        return projected.unflatten(-1, (last - first, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def _step(
        self, x: Tensor, cache: Tensor, memory: Any, allowed: Tensor | None, time: Tensor, past: Tensor | None
    ) -> Tensor:
        """Take one step of `[B · beam, 1, D]` embeddings; write into the cache, and return the logits."""
        for layer, (keys, values), of_source in zip(self.transformer.decoder.layers, cache, memory, strict=True):
            queries, key, value = self._project(layer.norm1(x), layer.self_attn, 0)
            keys.index_copy_(2, time, key)
            values.index_copy_(2, time, value)
            context = F.scaled_dot_product_attention(queries, keys, values, past)
            x = x + layer.self_attn.out_proj(context.flatten(1)[:, None])
            by_sentence = layer.norm2(x).reshape(len(of_source[0]), -1, self.size)
            (queries,) = self._project(by_sentence, layer.multihead_attn, 0, 1)
            context = F.scaled_dot_product_attention(queries, of_source[0], of_source[1], allowed)
            x = x + layer.multihead_attn.out_proj(context.transpose(1, 2).reshape(x.shape))
            x = x + layer.linear2(F.relu(layer.linear1(layer.norm3(x))))
        return self.dense(self.transformer.decoder.norm(x))[:, 0]


def _padding(sources: Tensor, source_lens: Tensor) -> Tensor | None:
    """Return where the sources' padding is, `[B, S]`; None where all sentences are full."""
    padding = torch.arange(sources.shape[1]) >= source_lens[:, None]
    return padding if padding.any() else None


def _by_torch_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a stack of torch_ref by the names of nn.Transformer, which has W_q, W_k and W_v in one."""
    last = "norm3" if any("cross_attention" in name for name in weights) else "norm2"
    norms = {"self_attention_norm": "norm1", "cross_attention_norm": "norm2", "feed_forward_norm": last}
    others = {"last_norm": "norm", "feed_forward.dense": "linear", "W_q.": "in_proj_", "W_o": "out_proj"}
    attentions = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not re.search(r"embedding|^dense|W_k|W_v", name):
            parts = [weights[name.replace("W_q", each)] for each in ("W_q", "W_k", "W_v")]
            for old, new in (norms | others | attentions).items():
                name = name.replace(old, new)
            found[name] = torch.cat(parts) if "in_proj" in name else weight
    return found


@torch.inference_mode()
def search(model: Any, sources: Tensor, source_lens: Tensor, beam_size: int, steps: int) -> tuple[Tensor, Tensor]:
    """Search with a beam, or greedily with `beam_size` 1; no hypothesis ends before the last step.

    Returns:
        ids `[B, beam, steps]`, best first, and their log p `[B, beam]`.
    """
    batch, (advance, reorder) = len(sources), model.start_search(sources, source_lens, beam_size, steps)
    first = torch.arange(batch)[:, None] * beam_size  # the row of the first hypothesis
    tokens = torch.full((batch * beam_size,), BOS)
    ids = torch.empty(batch, beam_size, steps, dtype=torch.int64)
    sums = torch.full((batch, beam_size), -torch.inf)
    sums[:, 0] = 0  # all hypotheses are equal before the first step: only one may continue
    for t in range(steps):
        logits = advance(tokens, t)
        total = logits.logsumexp(-1, keepdim=True)  # of all tokens, so that scores stay the model's
        if t < steps - 1:
            logits[:, EOS] = -torch.inf
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

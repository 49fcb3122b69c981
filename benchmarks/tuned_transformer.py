"""PyTorch's own Transformer with the weights of torch_ref's, and search with a cache of keys and values.

A step multiplies queries, keys and values at once, writes into a cache of the final size, and reads no further than the
time that it has come to. The keys and values of the source are projected once, and a beam shares them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import torch_ref
from benchmarks.tuned import run_search
from torch_ref import EncoderDecoder


class TunedTransformer(nn.Module):
    """`nn.Transformer` between embeddings and an output layer, in the form of `Tuned`; it is normalised before.

    `compiled` compiles teacher forcing as a whole, and a step of the search with a mask over the whole cache, so that
    all steps have one shape.
    """

    def __init__(self, model: EncoderDecoder, compiled: bool = False) -> None:
        super().__init__()
        encoder, decoder, self.compiled = model.encoder, model.decoder, compiled
        self.size, self.heads, self.rate = encoder.embed_size, encoder.num_heads, encoder.dropout
        sizes: tuple[Any, ...] = (self.size, self.heads, encoder.num_hiddens, self.rate)
        options: dict[str, Any] = {"batch_first": True, "norm_first": True}
        stack = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, **options),
            len(encoder.layers),
            nn.LayerNorm(self.size),
            enable_nested_tensor=False,
        )
        self.transformer = nn.Transformer(
            self.size, self.heads, 0, len(decoder.layers), *sizes[2:], custom_encoder=stack, **options
        )
        self.to(decoder.dense.weight.dtype)
        self.sources, self.targets, self.dense = encoder.embedding, decoder.embedding, decoder.dense
        for theirs, ours in ((self.transformer.encoder, encoder), (self.transformer.decoder, decoder)):
            for layer, given in zip(theirs.layers, ours.layers, strict=True):
                _load_layer(layer, given)
            theirs.norm.load_state_dict(ours.last_norm.state_dict())
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

    @torch.inference_mode()
    def search(
        self, sources: Tensor, source_lens: Tensor, beam_size: int, bos: int, eos: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Search as `Tuned.search` does."""
        padding, batch, layers = _padding(sources, source_lens), len(sources), self.transformer.decoder.layers
        encoded = self.transformer.encoder(self.embed(self.sources, sources), src_key_padding_mask=padding)
        memory = [self._project(encoded, layer.multihead_attn, 1) for layer in layers]
        allowed = None if padding is None else ~padding[:, None, None]
        shape = len(layers), 2, batch * beam_size, self.heads, steps, self.size // self.heads
        cache, times = encoded.new_zeros(shape), torch.arange(steps)

        def advance(tokens: Tensor, t: int) -> Tensor:
            x = self.embed(self.targets, tokens[:, None], t)
            if self.compiled:
                return self.step(x, cache, memory, allowed, times[t : t + 1], (times <= t)[None])
            return self.step(x, cache[..., : t + 1, :], memory, allowed, times[t : t + 1], None)

        def reorder(rows: Tensor, t: int) -> None:
            past = cache[..., : t + 1, :]
            past.copy_(past[:, :, rows])

        return run_search(advance, reorder, batch, beam_size, bos, eos, steps)

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


def _load_layer(theirs: Any, ours: Any) -> None:
    """Copy the weights of a layer of torch_ref into one of PyTorch's."""
    attentions, norms = [(theirs.self_attn, ours.self_attention)], [ours.self_attention_norm, ours.feed_forward_norm]
    if hasattr(theirs, "multihead_attn"):
        attentions.append((theirs.multihead_attn, ours.cross_attention))
        norms.insert(1, ours.cross_attention_norm)
    with torch.no_grad():
        for attention, given in attentions:
            parts = given.W_q, given.W_k, given.W_v
            attention.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            attention.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            attention.out_proj.load_state_dict(given.W_o.state_dict())
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.dense1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.dense2.state_dict())

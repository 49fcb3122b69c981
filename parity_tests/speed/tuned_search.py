"""Greedy and beam search over a whole batch, as plain PyTorch does them best.

The keys are projected once, all hypotheses take a step together, and only the likeliest tokens of each
are looked at: the order of the logits is that of the probabilities, which are never made for the whole vocabulary.
`torch_ref` searches for one sentence at a time and finds the same.
"""

import torch
from torch import Tensor

from parity_tests.speed.tuned_seq2seq import State, TunedTranslator


@torch.inference_mode()
def greedy_search(
    model: TunedTranslator, sources: Tensor, source_lens: Tensor, *, bos: int, eos: int, max_len: int, min_len: int = 0
) -> tuple[Tensor, Tensor]:
    """Ids `[B, L]`, eos from the end on, and their log p `[B]`."""
    memory, state = model.encode(sources, source_lens)
    decoder, weights = model.decoder, model.decoder.weights()
    tokens = sources.new_full((len(sources),), bos)
    ids, scores = sources.new_full((len(sources), max_len), eos), torch.zeros(len(sources), device=sources.device)
    alive = torch.ones_like(tokens, dtype=torch.bool)
    for t in range(max_len):
        output, state, _ = decoder.step(decoder.project(tokens), memory, state, weights)
        gained, tokens = likeliest(decoder.dense(output), 1, eos if t + 1 < min_len else None)
        tokens = torch.where(alive, tokens[:, 0], eos)
        scores += torch.where(alive, gained[:, 0], 0.0)
        ids[:, t] = tokens
        alive &= tokens != eos
        if not alive.any():
            break
    return ids, scores


@torch.inference_mode()
def beam_search(
    model: TunedTranslator,
    sources: Tensor,
    source_lens: Tensor,
    *,
    bos: int,
    eos: int,
    max_len: int,
    beam_size: int,
    min_len: int = 0,
) -> tuple[Tensor, Tensor]:
    """Ids `[B, beam, L]`, best first, and their log p `[B, beam]`; finished ones keep their place by their score."""
    memory, state = model.encode(sources, source_lens)
    decoder, weights = model.decoder, model.decoder.weights()
    batch, device = len(sources), sources.device
    first = torch.arange(batch, device=device)[:, None] * beam_size  # the row of each sentence's first hypothesis
    state = reorder(state, torch.arange(batch, device=device).repeat_interleave(beam_size))
    tokens = sources.new_full((batch * beam_size,), bos)
    ids = sources.new_full((batch, beam_size, max_len), eos)
    sums = torch.full((batch, beam_size), -torch.inf, device=device)
    sums[:, 0] = 0  # all begin alike: only one of them may be continued
    finished = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    nothing = torch.full((beam_size,), -torch.inf, device=device)
    nothing[0] = 0  # a finished hypothesis has one continuation, which costs nothing
    for t in range(max_len):
        output, state, _ = decoder.step(decoder.project(tokens), memory, state, weights)
        gained, chosen = likeliest(decoder.dense(output), beam_size, eos if t + 1 < min_len else None)
        ended = finished.flatten()[:, None]
        gained, chosen = torch.where(ended, nothing, gained), torch.where(ended, eos, chosen)
        candidates = (sums.flatten()[:, None] + gained).reshape(batch, -1)  # [B, beam · beam]
        sums, best = candidates.topk(beam_size)
        origin = best // beam_size
        tokens = chosen.reshape(batch, -1).gather(1, best)
        ids = ids.gather(1, origin[..., None].expand_as(ids))
        ids[..., t] = tokens
        finished = finished.gather(1, origin) | (tokens == eos)
        tokens, state = tokens.flatten(), reorder(state, (first + origin).flatten())
        if finished.all():
            break
    return ids, sums


def likeliest(logits: Tensor, k: int, forbidden: int | None) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row but the forbidden one: their log p `[rows, k]` and ids."""
    total = logits.logsumexp(-1, keepdim=True)  # of all of them: scores stay those of the model
    if forbidden is not None:
        logits[:, forbidden] = -torch.inf
    best, tokens = logits.max(-1, keepdim=True) if k == 1 else logits.topk(k)
    return best - total, tokens


def reorder(state: State, rows: Tensor) -> State:
    """The state of other rows."""
    carries, feed = state
    return tuple(carry[rows] for carry in carries), feed[rows]

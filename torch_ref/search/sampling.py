"""Sampling: at each step a token drawn from the model's distribution, or from the likely part of it.

Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration"; Fan et al. 2018 for top-k. Tokens are
drawn by the Gumbel-max trick.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torch_ref.search.constraints import make_constraints
from torch_ref.search.greedy import Step, extend
from torch_ref.search.result import Hypothesis, SearchResult, collect, sentence


@torch.no_grad()
def sample_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    **constraints: Any,
) -> SearchResult:
    """token = argmax over the kept n of log p(n) / temperature + g[n], g standard Gumbel.

    noise [B, num_samples, max_len, N] gives g; without it g is drawn. Returns SearchResult with n = num_samples, as
    drawn, scores = sum of log p of the model. step, state, memory and constraints as in greedy_search.
    """
    constraints_of = make_constraints(eos, batch_size, max_len, **constraints)
    found = []
    for b in range(batch_size):
        memory_b, samples = sentence(memory, b), []
        for s in range(num_samples):
            hypothesis = Hypothesis(state=sentence(state, b))
            while not hypothesis.finished and len(hypothesis.ids) < max_len:

                def choose(row: list[float], time: int = len(hypothesis.ids), b: int = b, s: int = s) -> int:
                    gumbel = draw(len(row), generator) if noise is None else noise[b, s, time]
                    kept = kept_tokens(row, temperature, top_k, top_p)
                    return max(kept, key=lambda token: row[token] / temperature + float(gumbel[token]))

                hypothesis, outputs = extend(hypothesis, step, choose, memory_b, constraints_of[b], bos)
            samples.append(hypothesis)
        found.append(samples)
    return collect(found, outputs, eos=eos, max_len=max_len)


def kept_tokens(row: list[float], temperature: float, top_k: int | None, top_p: float | None) -> list[int]:
    """Keep the top_k most probable tokens, and of those the fewest that reach top_p; the most probable first."""
    tokens = sorted(range(len(row)), key=lambda token: row[token], reverse=True)[:top_k]
    if top_p is None:
        return tokens
    likelihoods = [math.exp((row[token] - row[tokens[0]]) / temperature) for token in tokens]
    kept, reached = [], 0.0
    for token, likelihood in zip(tokens, likelihoods, strict=True):
        if reached >= top_p * sum(likelihoods):
            break
        kept.append(token)
        reached += likelihood
    return kept


def draw(size: int, generator: torch.Generator | None) -> Tensor:
    """Draw standard Gumbel noise: -log(-log u), u uniform in (0, 1)."""
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp_min(torch.finfo(torch.float64).tiny)
    return -(-uniform.log()).log()

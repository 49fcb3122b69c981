"""Greedy search: take the most probable token at each step."""

from typing import Any

from jax import Array
from jaxtyping import Int

from jax_attn.search.constraints import Constraints
from jax_attn.search.decode_loop import decode_loop
from jax_attn.search.inputs import make_inputs
from jax_attn.search.step import SearchResult, Step
from jax_attn.search.top_k import top_k
from jax_attn.search_options import SearchOptions


def greedy_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    force_end: bool = SearchOptions.force_end,
    min_len: int = SearchOptions.min_len,
    no_repeat_ngram: int | None = SearchOptions.no_repeat_ngram,
    renormalize: bool = SearchOptions.renormalize,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
    free_prefix: bool = False,
) -> SearchResult:
    """Append the most probable token until every sentence has reached `eos`, or has `max_len` tokens.

    Of equally probable tokens the one with the lowest id is taken. Arguments and errors are those of
    `jax_attn.beam_search`.

    Returns:
        One hypothesis a sentence (n = 1); its score is Σ log p, the prefix included unless it is free.
    """
    last = max_len - 1 if force_end else None
    constraints = Constraints(eos, min_len, no_repeat_ngram, prefix, prefix_lens, last, renormalize, free_prefix)
    inputs = make_inputs(step, state, memory, bos, max_len, batch_size, constraints)

    def choose(log_probs: Array, time: Array) -> tuple[Array, Array]:
        token_scores, tokens = top_k(log_probs, 1)
        return token_scores[:, 0], tokens[:, 0]

    return decode_loop(inputs, choose)

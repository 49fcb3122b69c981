"""Greedy search: at each step the likeliest token."""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jax_attn.search.constraints import make_constraints
from jax_attn.search.decode_loop import walk
from jax_attn.search.step import SearchResult, Step, check_search, inspect_step
from jax_attn.search.top_k import likeliest


def greedy_search(
    step: Step,
    state: Any,
    memory: Any,
    *,
    bos: int,
    eos: int,
    max_len: int,
    batch_size: int,
    min_len: int = 0,
    no_repeat_ngram: int | None = None,
    prefix: Int[Array, "..."] | None = None,
    prefix_lens: Int[Array, "..."] | None = None,
) -> SearchResult:
    """Follow the likeliest token until every sentence has reached `eos`, or for `max_len` tokens.

    Of equally likely tokens the lowest is taken.

    Args:
        step: see `jax_attn.search.step.Step`.
        state: the state before the first token, every leaf leading with `batch_size`.
        memory: handed to each step as it is.
        bos, eos: the first token given to the step, and the token that ends a sentence.
        max_len: L, the most tokens of a sentence, `eos` included.
        batch_size: B.
        min_len: the fewest tokens of a sentence, `eos` included.
        no_repeat_ngram: n, if no n tokens in a row may occur twice in a sentence.
        prefix: `[B, P]`, P ≤ L: the tokens that each sentence begins with, whatever the other constraints say.
        prefix_lens: `[B]`, how many of them count; None counts all.

    Returns:
        One hypothesis a sentence (n = 1); its score is Σ log p, the prefix's included.

    Raises:
        ValueError: a size below 1, an id outside the vocabulary, state or log probabilities of a wrong shape, and what
            `jax_attn.search.constraints.make_constraints` refuses.
    """
    check_search(max_len=max_len, batch_size=batch_size)
    tokens = jnp.full(batch_size, bos, jnp.int32)
    outputs = inspect_step(step, tokens, state, memory, bos=bos, eos=eos)
    constraints = make_constraints(
        eos=eos,
        min_len=min_len,
        no_repeat_ngram=no_repeat_ngram,
        prefix=prefix,
        prefix_lens=prefix_lens,
        max_len=max_len,
        batch_size=batch_size,
        vocab_size=outputs.vocab_size,
    )

    def choose(log_probs: Array, time: Array) -> tuple[Array, Array]:
        gained, tokens = likeliest(log_probs, 1)
        return gained[:, 0], tokens[:, 0]

    return walk(step, tokens, state, memory, choose, constraints, outputs, batch_size=batch_size, max_len=max_len)

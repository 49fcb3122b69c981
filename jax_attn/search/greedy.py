"""Greedy search: take the most probable token at each step."""

from typing import Any

from jax import Array
from jaxtyping import Int

from jax_attn.search.decode_loop import decode_loop
from jax_attn.search.inputs import make_inputs
from jax_attn.search.result import SearchResult
from jax_attn.search.step import Step
from jax_attn.search.top_k import top_k


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
    """Append the most probable token until every sentence has reached `eos`, or has `max_len` tokens.

    Of equally probable tokens the one with the lowest id is taken.

    Args:
        step: see `jax_attn.search.step.Step`.
        state: the state before the first token, every leaf leading with `batch_size`.
        memory: passed to each step unchanged.
        bos: the first token given to the step.
        eos: the token that ends a sentence.
        max_len: L, the maximum number of tokens in a sentence, `eos` included.
        batch_size: B.
        min_len: the minimum number of tokens in a sentence, `eos` included.
        no_repeat_ngram: n: no n consecutive tokens occur twice in a sentence. None is off.
        prefix: `[B, P]`, P ≤ L: the tokens that each sentence begins with, even against the other constraints.
        prefix_lens: `[B]`, the number of tokens in each prefix; None is P.

    Returns:
        One hypothesis a sentence (n = 1); its score is Σ log p, the prefix included.

    Raises:
        ValueError: a size below 1, an id outside the vocabulary, state or log probabilities of a wrong shape, and what
            `jax_attn.search.constraints.make_constraints` refuses.
    """
    inputs = make_inputs(
        step,
        state,
        memory,
        bos=bos,
        eos=eos,
        max_len=max_len,
        batch_size=batch_size,
        min_len=min_len,
        no_repeat_ngram=no_repeat_ngram,
        prefix=prefix,
        prefix_lens=prefix_lens,
    )

    def choose(log_probs: Array, time: Array) -> tuple[Array, Array]:
        token_scores, tokens = top_k(log_probs, 1)
        return token_scores[:, 0], tokens[:, 0]

    return decode_loop(inputs, choose)

"""The options of greedy search, beam search and sampling: name, type, range, meaning and default of each, in one place.

The functions of `jax_attn.search` take their defaults from here and check by it. Programs derive their own options and
help from it. It imports no JAX, so that a program can answer a wrong option at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated, Any, Literal

from typing_extensions import Doc

from jax_attn.ranges import Range

LengthNorm = Literal["power", "gnmt"]
Stop = Literal["all", "first", "likely", "never"]

BeamSize = Annotated[int, Range(1, 10_000), Doc("Hypotheses kept at each step of a beam; 1 is greedy search.")]
LengthPenalty = Annotated[
    float, Range(0, 10), Doc("A beam ranks log p / norm(length) to this power; 0 compares log p.")
]


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. A function takes those that its signature names."""

    beam_size: BeamSize = 5
    length_penalty: LengthPenalty = 0.0
    length_norm: Annotated[LengthNorm, Doc("power: norm(length) is the length. gnmt: it is (5 + length) / 6.")] = (
        "power"
    )
    coverage_penalty: Annotated[
        float,
        Range(0, 1e3),
        Doc("Penalise hypotheses of a beam that leave source words without attention, with this weight; 0 is off."),
    ] = 0.0
    stop: Annotated[
        Stop,
        Doc(
            "all: finished hypotheses keep their places in a beam, until all have finished. first: they leave it, and "
            "the search ends with the first beam_size of them. likely: it goes on while an unfinished hypothesis, "
            "scored at its present length, is better than the worst finished one. never: while one could still become "
            "better."
        ),
    ] = "all"
    force_end: Annotated[bool, Doc("End a translation of max_len tokens with <eos>, whose log p counts as 0.")] = False
    min_len: Annotated[
        int, Range(0, 65_536), Doc("The smallest number of tokens of a translation, <eos> included.")
    ] = 0
    no_repeat_ngram: Annotated[
        int | None, Range(1, 65_536), Doc("Never repeat this many tokens in a row within a translation.")
    ] = None
    renormalize: Annotated[
        bool, Doc("Let the probabilities of the tokens that min_len and no_repeat_ngram allow sum to 1.")
    ] = False
    num_samples: Annotated[int, Range(1, 1_000_000), Doc("Translations drawn for each sentence.")] = 1
    temperature: Annotated[
        float,
        Range(1e-3, 1e3),
        Doc("Divide the logits of sampling by this: below 1, probable tokens become more probable."),
    ] = 1.0
    top_k: Annotated[int | None, Range(1, 10_000_000), Doc("Draw from this many most probable tokens.")] = None
    top_p: Annotated[
        float | None, Range(1e-9, 1), Doc("Draw from the fewest tokens that together have this probability.")
    ] = None

    def of(self, search: Callable[..., Any]) -> dict[str, Any]:
        """Return the options that a search function takes, by name."""
        taken = signature(search).parameters
        return {field.name: getattr(self, field.name) for field in fields(SearchOptions) if field.name in taken}

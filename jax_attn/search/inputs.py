"""The arguments that greedy search, sampling and beam search share, checked once."""

from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from jax_attn.functional.checks import require_integer, require_real
from jax_attn.ranges import Range
from jax_attn.search.constraints import Constraints, checked_constraints
from jax_attn.search.step import Memory, State, Step, StepOutputs, inspect_step, map_state
from jax_attn.search_options import SearchOptions

TYPES = get_type_hints(SearchOptions, include_extras=True)


class SearchInputs(NamedTuple):
    """A search before its first step, over B sentences with n hypotheses each (`rows` = B · n)."""

    step: Step
    tokens: Int[Array, "rows"]  # `bos`
    state: State  # the state of each row before the first token
    memory: Memory
    outputs: StepOutputs
    constraints: Constraints
    max_len: int
    batch_size: int
    num_hypotheses: int  # n

    def by_sentence(self, x: Array) -> Array:
        """Reshape `[rows, ...]` to `[B, n, ...]`."""
        return x.reshape(self.batch_size, self.num_hypotheses, *x.shape[1:])


def make_inputs(
    step: Step,
    state: State,
    memory: Memory,
    bos: int,
    max_len: int,
    batch_size: int,
    constraints: Constraints,
    num_hypotheses: int = 1,
) -> SearchInputs:
    """Check the arguments, and repeat the state for each of a sentence's hypotheses.

    Raises:
        ValueError, TypeError: a size or constraint out of range; a shape or dtype that does not fit.
    """
    require_integer(max_len=max_len, batch_size=batch_size)
    for name, size in {"max_len": max_len, "batch_size": batch_size}.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1; got {size}")
    require_options(min_len=constraints.min_len, no_repeat_ngram=constraints.no_repeat_ngram)
    require_integer(bos=bos, eos=constraints.eos)
    constraints = constraints._replace(eos=int(constraints.eos))  # NumPy's int64 would widen the ids under x64
    for leaf in jax.tree.leaves(state):
        if jnp.shape(leaf)[:1] != (batch_size,):
            raise ValueError(f"every leaf of the state must be [{batch_size}, ...]; got {list(jnp.shape(leaf))}")
    state = map_state(
        lambda leaf: jnp.repeat(leaf, num_hypotheses, axis=0),
        state,
        stationary=lambda leaf: jnp.repeat(leaf, num_hypotheses, axis=-2),
    )
    tokens = jnp.full(batch_size * num_hypotheses, bos, jnp.int32)
    outputs = inspect_step(step, tokens, state, memory, bos=bos, eos=constraints.eos)
    constraints = checked_constraints(constraints, max_len, batch_size, outputs.vocab_size)
    return SearchInputs(step, tokens, state, memory, outputs, constraints, max_len, batch_size, num_hypotheses)


def require_options(**options: Any) -> None:
    """Check options of a search by `SearchOptions`. None is an option that is off.

    Raises:
        TypeError: a number that is no integer where it must be one, or not real.
        ValueError: a number out of its range, or a name that there is not.
    """
    for name, value in options.items():
        kind, *others = get_args(TYPES[name])
        choices = get_args(kind)
        if value is None and type(None) in choices:
            continue
        if get_origin(kind) is Literal:
            if value not in choices:
                raise ValueError(f"{name} must be one of {choices}; got {value!r}")
        elif float in (kind, *choices):
            require_real(**{name: value})
        else:
            require_integer(**{name: value})
        for limits in others:
            if isinstance(limits, Range) and (error := limits.error(name, value)):
                raise ValueError(error)

"""Search over a step function: it works on ids and scores, without a model or a vocabulary."""

from jax_attn.search.beam import beam_search
from jax_attn.search.ensemble import ensemble
from jax_attn.search.greedy import greedy_search
from jax_attn.search.sampling import sample_search
from jax_attn.search.step import SearchResult, Stationary

__all__ = ["SearchResult", "Stationary", "beam_search", "ensemble", "greedy_search", "sample_search"]

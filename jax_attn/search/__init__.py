"""Search over a step function: it knows ids and scores, and neither a model nor a vocabulary."""

from jax_attn.search.beam import beam_search
from jax_attn.search.ensemble import ensemble
from jax_attn.search.greedy import greedy_search
from jax_attn.search.sampling import sample_search
from jax_attn.search.step import SearchResult

__all__ = ["SearchResult", "beam_search", "ensemble", "greedy_search", "sample_search"]

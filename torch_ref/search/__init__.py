"""Search in plain PyTorch: one sentence and one hypothesis at a time."""

from torch_ref.search.beam import beam_search
from torch_ref.search.ensemble import ensemble
from torch_ref.search.greedy import greedy_search
from torch_ref.search.result import SearchResult
from torch_ref.search.sampling import sample_search

__all__ = ["SearchResult", "beam_search", "ensemble", "greedy_search", "sample_search"]

"""`train.translation.search` in plain PyTorch, by `torch_ref`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jax_attn.search import SearchResult
from torch_ref import search as searches
from torch_ref.models.rnn_decoder import Seq2SeqAttentionDecoder
from torch_ref.models.rnn_encoder import Seq2SeqEncoder
from torch_ref.models.seq2seq import EncoderDecoder
from torch_ref.modules.attention import AdditiveAttention, Attention, BilinearAttention, MultiHeadAttention
from torch_ref.search.ensemble import ensemble
from train.config import ConfigError, ModelConfig, SearchConfig, search_settings
from train.data.vocabulary import BOS, EOS
from train.model import decoder_settings, encoder_settings
from train.translation.saved_run import SavedRun


def load_model(run: SavedRun) -> EncoderDecoder:
    """A run's model with its parameters, in `torch_ref`.

    Raises:
        ConfigError: parameters that are not those of the model.
    """
    encoder = Seq2SeqEncoder(len(run.source), **encoder_settings(run.model))
    of_decoder = decoder_settings(run.model) | {"attention": _attention(run.model)}
    decoder = Seq2SeqAttentionDecoder(len(run.target), **of_decoder)
    model = EncoderDecoder(encoder, decoder)
    try:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in run.weights.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{run.folder} holds no run that can be loaded: model.safetensors does not fit config.json: {reason}"
        ) from error
    return model.eval()


def _attention(config: ModelConfig) -> Attention | str:
    """The name of an attention that the decoder knows by it, or the module of one that it does not."""
    if config.attention == "multi_head":
        return MultiHeadAttention(config.num_hiddens, config.num_heads, config.dropout)
    if config.attention == "scaled_bilinear":
        return BilinearAttention(config.num_hiddens, config.num_hiddens, config.dropout, scaled=True)
    if config.attention == "sum":
        return AdditiveAttention(config.num_hiddens, config.dropout, use_tanh=False)
    return config.attention


class TorchSearch:
    """The searches that `train.translation.search` makes, of one sentence after another."""

    def __init__(self, runs: Sequence[SavedRun], config: SearchConfig, max_len: int, num_candidates: int) -> None:
        self.models = [load_model(run) for run in runs]
        self.config, self.max_len, self.num_candidates = config, config.max_len or max_len, num_candidates

    @torch.no_grad()
    def _begin(self, sources: np.ndarray, source_lens: np.ndarray) -> tuple[Any, Any, Any]:
        given = torch.as_tensor(sources, dtype=torch.int64), torch.as_tensor(source_lens, dtype=torch.int64)
        memories = tuple(model.encode(*given) for model in self.models)
        states = tuple(model.initial_state(memory) for model, memory in zip(self.models, memories, strict=True))
        if len(self.models) == 1:
            return self.models[0].step, states[0], memories[0]
        return ensemble([model.step for model in self.models]), states, memories

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        """See `train.translation.search.Search`."""
        rows = [self._search_one(*row) for row in zip(sources[:, None], source_lens[:, None], numbers, strict=True)]
        parts: list[Any] = [None if parts[0] is None else torch.cat(parts).numpy() for parts in zip(*rows, strict=True)]
        return SearchResult(*parts)

    def _search_one(self, source: np.ndarray, source_len: np.ndarray, number: int) -> Any:
        found = self._begin(source, source_len)
        ends = {"bos": BOS, "eos": EOS, "max_len": self.max_len, "batch_size": 1}
        name, settings = search_settings(self.config)
        if name == "sample_search":
            settings["generator"] = torch.Generator().manual_seed(self.config.seed * 2**31 + int(number))
        if name == "beam_search":
            settings["source_lens"] = torch.as_tensor(source_len, dtype=torch.int64)
        return getattr(searches, name)(*found, **ends, **settings)

    @torch.no_grad()
    def candidates(
        self, sources: np.ndarray, source_lens: np.ndarray, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `train.translation.search.Candidates`."""
        step, state, memory = self._begin(sources, source_lens)
        token, found = torch.full((len(sources),), BOS), []
        for given in torch.as_tensor(targets, dtype=torch.int64).T:
            log_probs, state, _ = step(token, state, memory)
            found.append(log_probs.topk(self.num_candidates))
            token = given
        if not found:
            empty = np.zeros((len(sources), 0, self.num_candidates))
            return empty, empty.astype(np.int64)
        return torch.stack([f.values for f in found], 1).numpy(), torch.stack([f.indices for f in found], 1).numpy()

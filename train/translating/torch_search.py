"""Search and explain with models of `torch_ref`: what `train.translating.search` does, in plain PyTorch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jax_attn import search as jax_search
from jax_attn.models.interface import AttentionMaps
from jax_attn.search import SearchResult
from torch_ref import models
from torch_ref import search as searches
from train.config import SearchConfig
from train.data.vocabulary import BOS, EOS
from train.model import parts
from train.runs.run_folder import SavedRun
from train.setting import ConfigError
from train.translating.search import Followed


def load_model(run: SavedRun) -> models.EncoderDecoder:
    """Return a run's model with its parameters.

    Raises:
        ConfigError: the parameters do not fit the model.
    """
    model = parts(run.model).build(models, run.model, len(run.source), len(run.target))
    try:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in run.weights.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{run.folder} holds no run that can be loaded: model.safetensors does not fit config.json or the "
            f"vocabularies: {reason}"
        ) from error
    return model.eval()


class TorchSearch:
    """The functions `Search`, `Follow` and `Attend` for batches of one row."""

    def __init__(self, runs: Sequence[SavedRun], config: SearchConfig, max_len: int, num_candidates: int) -> None:
        self.models = [load_model(run) for run in runs]
        self.config, self.max_len, self.num_candidates = config, config.max_len or max_len, num_candidates

    @torch.no_grad()
    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        """Search for one sentence, see `train.translating.search.Search`."""
        function = getattr(searches, self.config.function)
        # JAX's function of the same name lists its options; PyTorch's takes some of them as **constraints.
        settings = self.config.of(getattr(jax_search, self.config.function))
        if function is searches.sample_search:
            settings["generator"] = torch.Generator().manual_seed(self.config.seed * 2**31 + int(numbers[0]))
        if function is searches.beam_search:
            settings["source_lens"] = torch.as_tensor(source_lens, dtype=torch.int64)
        settings |= {"bos": BOS, "eos": EOS, "max_len": self.max_len, "batch_size": 1}
        found = function(*self._begin(sources, source_lens), **settings)
        parts: list[Any] = [None if part is None else part.numpy() for part in found]
        return SearchResult(*parts)

    @torch.no_grad()
    def follow(self, sources: np.ndarray, source_lens: np.ndarray, targets: np.ndarray) -> Followed:
        """Read given targets, see `train.translating.search.Followed`."""
        step, state, memory = self._begin(sources, source_lens)
        token, steps = torch.full((len(sources),), BOS), []
        for target in torch.as_tensor(targets, dtype=torch.int64).T:
            log_probs, state, weights = step(token, state, memory)
            best = log_probs.topk(self.num_candidates)
            steps.append((best.values, best.indices, log_probs.gather(1, target[:, None])[:, 0], weights))
            token = target
        columns = zip(*steps, strict=True)
        return Followed(*(None if column[0] is None else torch.stack(column, 1).numpy() for column in columns))

    @torch.no_grad()
    def attend(self, sources: np.ndarray, source_lens: np.ndarray, targets: np.ndarray) -> AttentionMaps:
        """Return the weights of every layer and head of the first model, see `train.translating.search.Attend`."""
        read = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        ids = (torch.as_tensor(array, dtype=torch.int64) for array in (sources, read, source_lens))
        maps: list[Any] = [x.numpy() if isinstance(x, torch.Tensor) else x for x in self.models[0].attention_maps(*ids)]
        return AttentionMaps(*maps)

    def _begin(self, sources: np.ndarray, source_lens: np.ndarray) -> tuple[Any, Any, Any]:
        inputs = torch.as_tensor(sources, dtype=torch.int64), torch.as_tensor(source_lens, dtype=torch.int64)
        memories = tuple(model.encode(*inputs) for model in self.models)
        states = tuple(model.initial_state(memory) for model, memory in zip(self.models, memories, strict=True))
        if len(self.models) == 1:
            return self.models[0].step, states[0], memories[0]
        return searches.ensemble([model.step for model in self.models]), states, memories

"""Training, and what is asked of a trained model, in JAX. `train.reference` answers the same questions in PyTorch."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_attn.search import SearchResult
from jax_attn.weights import to_torch
from train.checkpoint import save_state
from train.config import Config
from train.data.batches import Examples, in_order, plan
from train.data.dataset import Data
from train.devices import batch_mesh, on_each, on_one
from train.learner import Epoch
from train.model import build_model
from train.optimizer import make_optimizer
from train.step import make_evaluate, make_force_decode, make_init, make_train_epoch
from train.translation.search import make_search


class JaxLearner:
    """The model of `jax_attn`, trained with Optax."""

    def __init__(self, config: Config, data: Data) -> None:
        self.config, self.data = config, data
        self.model = build_model(config.model, len(data.source), len(data.target))
        num_batches = len(in_order(len(data.corpus.train), config.training.batch_size))
        self._mesh = batch_mesh(config.training.batch_size)
        example = Examples(*(column[:1] for column in data.train))
        steps = num_batches * config.epochs
        optimizer = make_optimizer(config.training, steps)
        init = make_init(self.model, optimizer)
        self._train_epoch = make_train_epoch(self.model, optimizer, config.training.loss, config.seed, mesh=self._mesh)
        self.state = on_each(init(np.uint32(config.seed), example), self._mesh)
        self._evaluate = make_evaluate(self.model)
        self._force_decode = make_force_decode(self.model)
        self._search = make_search((self.model,), config.search, data.max_target_len)

    @property
    def params(self) -> Any:
        """The parameters, on one device."""
        return on_one(self.state.params)

    def fit(self, report: Callable[[Epoch], None]) -> None:
        examples, batch_size = on_each(self.data.train, self._mesh), self.config.training.batch_size
        for epoch in range(self.config.epochs):
            start = time.perf_counter()
            rows = plan(len(self.data.corpus.train), batch_size, self.config.seed, epoch)
            self.state, losses = self._train_epoch(self.state, examples, rows)
            total = jax.tree.map(lambda of_step: float(np.sum(of_step)), jax.device_get(losses))
            seconds = time.perf_counter() - start
            tokens = int(total.tokens)
            report(Epoch(epoch + 1, total.nats / tokens, total.sentences / tokens, self._valid_loss(), tokens, seconds))

    def _valid_loss(self) -> float | None:
        if not self.data.corpus.valid:
            return None
        rows = in_order(len(self.data.corpus.valid), self.config.training.batch_size)
        losses = jax.device_get(self._evaluate(self.params, self.data.valid, rows))
        return float(losses.nats.sum() / losses.tokens.sum())

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        return jax.device_get(self._search([self.params], sources, source_lens, numbers))

    def force_decode(self, examples: Examples) -> np.ndarray | None:
        rows = in_order(len(examples.sources), self.config.search.batch_size)
        weights = self._force_decode(self.params, examples, rows)
        return None if weights is None else np.asarray(weights)[: len(examples.sources)]

    def weights(self) -> dict[str, np.ndarray]:
        return to_torch(self.params)

    def save(self, path: Path) -> None:
        save_state(path, on_one(self.state))

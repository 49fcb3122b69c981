"""Training, and what is asked of a trained model, in JAX. `train.reference` answers the same questions in PyTorch."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_attn.search import SearchResult
from jax_attn.weights import to_torch
from train.checkpoint import save_state
from train.config import Config
from train.data.batches import Examples, in_order, make_buckets, plan, take
from train.data.dataset import Data
from train.devices import batch_mesh, on_each, on_one, split
from train.learner import Epoch
from train.model import build_model
from train.optimizer import make_optimizer
from train.step import Losses, make_eval_step, make_force_decode, make_init, make_train_step
from train.translation.search import make_search

K = int(os.environ.get("K", "16"))

class JaxLearner:
    """The model of `jax_attn`, trained with Optax."""

    def __init__(self, config: Config, data: Data) -> None:
        self.config, self.data = config, data
        self.model = build_model(config.model, len(data.source), len(data.target))
        num_batches = len(in_order(len(data.corpus.train), config.training.batch_size))
        self._buckets = make_buckets(data.train, int(os.environ.get('W','1')))
        self._mesh = batch_mesh(config.training.batch_size)
        example = Examples(*(column[:1] for column in data.train))
        steps = num_batches * config.epochs
        optimizer = make_optimizer(config.training, steps)
        init = make_init(self.model, optimizer)
        self._train_step = make_train_step(self.model, optimizer, config.training.loss, config.seed, mesh=self._mesh)
        self.state = on_each(init(np.uint32(config.seed), example), self._mesh)
        self._eval_step = make_eval_step(self.model)
        self._force_decode = make_force_decode(self.model)
        self._search = make_search((self.model,), config.search, data.max_target_len)

    @property
    def params(self) -> Any:
        """The parameters, on one device."""
        return on_one(self.state.params)

    def fit(self, report: Callable[[Epoch], None]) -> None:
        for epoch in range(self.config.epochs):
            start = time.perf_counter()
            losses: list[Losses] = []
            for batch in self._batches(epoch):
                self.state, loss = self._train_step(self.state, batch)
                losses.append(loss)
                if len(losses) > 2:
                    jax.block_until_ready(losses[-3])
            total = Losses(*(float(sum(np.sum(y) for y in jax.device_get(x))) for x in zip(*losses, strict=True)))
            seconds = time.perf_counter() - start
            tokens = int(total.tokens)
            report(Epoch(epoch + 1, total.nats / tokens, total.sentences / tokens, self._valid_loss(), tokens, seconds))

    def _batches(self, epoch: int) -> Iterator[Examples]:
        for group in plan(self._buckets, self.config.training.batch_size, K, self.config.seed, epoch):
            yield split(take(self.data.train, group.rows, group.bucket), self._mesh, 1)

    def _valid_loss(self) -> float | None:
        if not self.data.corpus.valid:
            return None
        params, total = self.params, []
        for rows in in_order(len(self.data.corpus.valid), self.config.training.batch_size):
            total.append(self._eval_step(params, take(self.data.valid, rows)))
        nats, tokens, _ = np.sum(jax.device_get(total), axis=0)
        return float(nats / tokens)

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        return jax.device_get(self._search([self.params], sources, source_lens, numbers))

    def force_decode(self, examples: Examples) -> np.ndarray | None:
        rows = in_order(len(examples.sources), self.config.search.batch_size)
        params = self.params
        weights = [self._force_decode(params, take(examples, r)) for r in rows]
        return None if weights[0] is None else np.concatenate(jax.device_get(weights))[: len(examples.sources)]

    def weights(self) -> dict[str, np.ndarray]:
        return to_torch(self.params)

    def save(self, path: Path) -> None:
        save_state(path, on_one(self.state))

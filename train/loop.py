"""The training loop in JAX, and what is asked of a trained model. `train.reference` has the same in PyTorch."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_attn.search import SearchResult
from jax_attn.weights import to_torch
from train.checkpoint import save_state
from train.config import Config, num_widths
from train.data.batches import Examples, in_order, make_buckets, plan, take
from train.data.dataset import Data
from train.devices import data_mesh, first_copy, replicate, shard_batches
from train.learner import Epoch, ReportEpoch, ReportProgress
from train.model import build_model
from train.optimizer import make_optimizer
from train.step import Losses, make_eval_step, make_force_decode, make_init, make_train_steps
from train.translation.search import make_search

STEPS_PER_CALL = 16
"""Training steps of one call. With one step a call, the demo was a third slower (two cores)."""

CALLS_IN_FLIGHT = 2
"""Calls that may be under way. XLA's devices on a CPU deadlock if many wait for each other's gradients."""


class JaxLearner:
    """The model of `jax_attn`, trained with Optax."""

    def __init__(self, config: Config, data: Data) -> None:
        self.config, self.data = config, data
        batch_size = config.training.batch_size
        self.model = build_model(config.model, len(data.source), len(data.target))
        self._mesh = data_mesh(batch_size)
        self._buckets = make_buckets(data.train, num_widths(config))
        self.steps_per_epoch = sum(-(-bucket.members.size // batch_size) for bucket in self._buckets)
        optimizer = make_optimizer(config.training, self.steps_per_epoch * config.epochs)
        example = Examples(*(column[:1] for column in data.train))
        self.state = replicate(make_init(self.model, optimizer)(np.uint32(config.seed), example), self._mesh)
        self._train_steps = make_train_steps(self.model, optimizer, config.training.loss, config.seed, mesh=self._mesh)
        self._eval_step = make_eval_step(self.model)
        self._force_decode = make_force_decode(self.model)
        self._search = make_search((self.model,), config.search, data.max_target_len)

    @property
    def params(self) -> Any:
        """The parameters, on one device."""
        return first_copy(self.state.params)

    def fit(self, report: ReportEpoch, progress: ReportProgress) -> None:
        step = 0
        for epoch in range(self.config.epochs):
            start = time.perf_counter()
            losses: list[Losses] = []
            running: deque[Losses] = deque()
            for batches in self._batches(epoch):
                self.state, loss = self._train_steps(self.state, batches)
                running.append(loss)
                if len(running) == CALLS_IN_FLIGHT:
                    losses.append(jax.device_get(running.popleft()))  # waits for it
                    done = _total(losses[-1:])
                    step += int(np.count_nonzero(losses[-1].tokens))
                    progress(step, done.nats / done.tokens, int(done.tokens))
            total = _total([*losses, *jax.device_get(list(running))])
            seconds = time.perf_counter() - start
            nats, sentences = total.nats / total.tokens, total.sentences / total.tokens
            step = (epoch + 1) * self.steps_per_epoch
            report(Epoch(epoch + 1, nats, sentences, self._valid_loss(), int(total.tokens), seconds))

    def _batches(self, epoch: int) -> Iterator[Examples]:
        """Yield `STEPS_PER_CALL` batches of an epoch at a time, each device holding its rows."""
        for group in plan(self._buckets, self.config.training.batch_size, STEPS_PER_CALL, self.config.seed, epoch):
            yield shard_batches(take(self.data.train, group.rows, group.bucket), self._mesh)

    def _valid_loss(self) -> float | None:
        if not self.data.corpus.valid:
            return None
        params, batch_rows = self.params, in_order(len(self.data.corpus.valid), self.config.training.batch_size)
        total = _total(jax.device_get([self._eval_step(params, take(self.data.valid, rows)) for rows in batch_rows]))
        return total.nats / total.tokens

    def search(self, sources: np.ndarray, source_lens: np.ndarray, numbers: np.ndarray) -> SearchResult:
        return jax.device_get(self._search([self.params], sources, source_lens, numbers))

    def force_decode(self, examples: Examples) -> np.ndarray | None:
        params, batch_rows = self.params, in_order(len(examples.sources), self.config.search.batch_size)
        weights = jax.device_get([self._force_decode(params, take(examples, rows)) for rows in batch_rows])
        return None if weights[0] is None else np.concatenate(weights)[: len(examples.sources)]

    def weights(self) -> dict[str, np.ndarray]:
        return to_torch(self.params)

    def save(self, path: Path) -> None:
        save_state(path, first_copy(self.state))


class Total(NamedTuple):
    """Losses, summed over steps in float64."""

    nats: float
    tokens: float
    sentences: float


def _total(losses: Sequence[Losses]) -> Total:
    return Total(*(sum(float(np.sum(x, dtype=np.float64)) for x in column) for column in zip(*losses, strict=True)))

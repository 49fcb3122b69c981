"""The training loop: a training that stops and goes on ends as one that never stopped."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jax_attn.settings import RecurrentConfig
from train.config import Config, CorpusConfig, TrainingConfig
from train.data import dataset
from train.training.loop import STEPS_PER_CALL, JaxLearner, Position
from train.training.report import DivergenceError, Report

CONFIG = Config(
    epochs=3,
    corpus=CorpusConfig(train=200, valid=16, test=16),
    model=RecurrentConfig(attention="dot", embed_size=8, num_hiddens=8, dropout=0.2, bidirectional=False),
    training=TrainingConfig(
        batch_size=8,
        valid_every=10,
        learning_rate=0.3,
        average=0.9,
        schedule="plateau",
        plateau_patience=0,
        num_widths=2,
    ),
)


class Memory:
    """A recorder that keeps everything in memory, and may stop the training after a number of calls."""

    def __init__(self, calls: float = math.inf, saved: tuple | None = None) -> None:
        self.calls, self.saved, self.reports, self.weights, self.steps = calls, saved, [], None, []
        self.programs = []

    def compiling(self, number, count):
        self.programs.append((number, count))

    def progress(self, step, loss, tokens):
        self.steps.append(step)

    def report(self, report: Report):
        self.reports.append(report._replace(seconds=0.0))

    def keep(self, weights):
        self.weights = weights

    def kept(self):
        return self.weights

    def save(self, step, state, position):
        self.saved = state, position

    def restore(self, like):
        return self.saved

    def should_stop(self):
        self.calls -= 1
        return self.calls <= 0


@pytest.fixture(scope="module")
def data():
    return dataset.load(CONFIG)


@pytest.fixture(scope="module")
def learner(data):
    return JaxLearner(CONFIG, data)


@pytest.fixture(scope="module")
def start(learner) -> tuple:
    """The state and the position before the first step."""
    return jax.tree.map(np.array, learner.state), Position()._asdict()


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_model_that_does_not_read_the_end_of_a_source_gets_lengths_without(learner, data, monkeypatch):
    rows = np.arange(64)[None]
    monkeypatch.setattr(learner, "config", SimpleNamespace(model=SimpleNamespace(source_end=False)))
    batch = learner._take_own(data.train, rows, learner._buckets[-1])
    np.testing.assert_array_equal(batch.source_lens, data.train.source.lens[rows])


def test_a_training_that_stops_anywhere_ends_with_the_same_bits(learner, start):
    whole = Memory(saved=start)
    learner._compiled.clear()
    assert learner.fit(whole)
    assert whole.reports[-1].step == learner.num_steps == 3 * learner.steps_per_epoch
    assert [report.step for report in whole.reports] == [*range(10, learner.num_steps, 10), learner.num_steps]
    assert min(report.valid_loss for report in whole.reports) == whole.saved[1]["best"]
    assert whole.saved[0].rate_factor < 1  # the plateau was met
    assert equal(learner.weights(), whole.weights)  # the best parameters, not the last
    assert learner.batches().startswith("batches of pairs × (source + target tokens): 8 × (")
    assert learner._train_steps._cache_size() == 2  # one program for each width
    assert whole.programs == [(1, 2), (2, 2)]

    parts = [Memory(calls=1, saved=start)]
    while not learner.fit(parts[-1]):
        assert len(parts) < 50
        parts.append(Memory(calls=1, saved=parts[-1].saved))
        parts[-1].weights = parts[-2].weights
    assert len(parts) > 3
    assert [report for part in parts for report in part.reports] == whole.reports
    assert equal(parts[-1].saved[0], whole.saved[0])
    assert equal(parts[-1].weights, whole.weights)
    assert equal(learner.weights(), whole.weights)


def test_a_training_that_a_number_of_steps_ended_goes_on_to_the_same_bits(learner, start, monkeypatch):
    steady = replace(CONFIG, training=replace(CONFIG.training, plateau_patience=100))  # the end of each is a validation
    whole, cut = Memory(saved=start), Memory(saved=start)
    for recorder, ends in ((whole, [None]), (cut, [STEPS_PER_CALL + 3, STEPS_PER_CALL + 5, None])):
        for end in ends:
            monkeypatch.setattr(learner, "config", replace(steady, max_steps=end))
            assert learner.fit(recorder)
    assert equal(cut.saved[0].params, whole.saved[0].params)
    assert cut.saved[1]["step"] == whole.saved[1]["step"]


def test_a_training_ends_after_a_number_of_steps_or_when_patience_does(learner, start, monkeypatch):
    monkeypatch.setattr(learner, "config", replace(CONFIG, max_steps=STEPS_PER_CALL + 3))
    recorder = Memory(saved=start)
    assert learner.fit(recorder)
    assert recorder.reports[-1].step == recorder.saved[1]["step"] == STEPS_PER_CALL + 3

    training = replace(CONFIG.training, valid_every=1, patience=2)
    monkeypatch.setattr(learner, "config", replace(CONFIG, epochs=100, training=training))
    recorder = Memory(saved=start)
    assert learner.fit(recorder)
    losses = [report.valid_loss for report in recorder.reports]
    assert len(losses) - 1 == losses.index(min(losses)) + 2


def test_steps_without_finite_gradients_change_nothing_and_three_in_a_row_end_the_training(learner, start):
    state, position = start
    broken = state._replace(params=jax.tree.map(lambda x: x * np.nan, state.params))
    recorder = Memory(saved=(broken, position))
    with pytest.raises(DivergenceError, match="3 steps in a row"):
        learner.fit(recorder)
    assert recorder.reports == []
    assert equal(learner.state.opt_state, state.opt_state)
    assert equal(learner.state.average, state.average)

"""Training in plain PyTorch by `torch_ref`; only `--framework torch` imports it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from torch_ref import recipe
from train.config import Config
from train.data.batches import PADDING_ROW, Examples, make_buckets, plan, take
from train.data.dataset import Data
from train.presets import BOOK
from train.setting import ConfigError, setting_name
from train.training.interfaces import Recorder, Report

FREE = {
    "model": {"embed_size", "num_hiddens", "num_layers", "num_heads", "dropout", "decoder_bias", "stop_at_length"},
    "training": {"batch_size", "learning_rate", "clip_norm", "save_seconds", "num_widths", "optimizer_settings"},
    "search": {"length_penalty", "batch_size", "examples"},
}
"""The settings that a training by the recipe may change; the others are those of the preset book."""


class TorchLearner:
    """The model of `torch_ref`, trained by the book's recipe on the same batches in the same order."""

    def __init__(self, config: Config, data: Data) -> None:
        self.config, self.data = config, data
        self.recipe = _recipe(config)
        self.model = recipe.build(len(data.source), len(data.target), self.recipe, config.seed)

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.data.train) // self.config.training.batch_size)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.config.num_epochs

    def batches(self) -> str:
        return f"batches of {self.config.training.batch_size} pairs, all of one width"

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        self.model.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})

    def fit(self, recorder: Recorder) -> bool:
        def convert(done: recipe.EpochReport) -> None:
            tokens = int((self.data.train.target.lens + 1).sum())
            seconds, step = tokens / done.tokens_per_second, (done.epoch + 1) * self.steps_per_epoch
            recorder.progress(step, done.nats_per_token, tokens)
            recorder.report(Report(step, done.epoch + 1, done.nats_per_token, done.loss_book, None, tokens, seconds))
            if recorder.should_stop():
                raise KeyboardInterrupt  # the recipe keeps no state to go on from

        if recorder.restore(None) is not None:
            raise ConfigError("a run with framework torch cannot go on; start a new one")
        recipe.train(self.model, self._batches, self.recipe, self.config.num_epochs, convert)
        recorder.keep(self.weights())
        return True

    def _batches(self, epoch: int) -> Iterator[Examples]:
        train = self.data.train
        buckets = make_buckets(train, 1, self.config.training.batch_size, steps=self.config.corpus.steps)
        for group in plan(buckets, 1, self.config.seed, epoch):
            yield take(train, group.rows[group.rows != PADDING_ROW], group.bucket)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}


def _recipe(config: Config) -> recipe.Recipe:
    """Convert the configuration into a recipe; ConfigError for a setting that the recipe does not have."""
    model: Any = config.model
    training = config.training
    fixed: dict[str, tuple[Any, Any]] = {
        "max-steps": (config.max_steps, None),
        "corpus.valid": (config.corpus.valid, 0),
    }
    fixed |= {
        setting_name("training", name): (value, "left at its default")
        for name, value in training.optimizer_settings.items()
    }
    for section, names in FREE.items():
        ours, book = getattr(config, section), getattr(BOOK, section)
        for name in (field.name for field in fields(book) if field.name not in names):
            fixed[setting_name(section, name)] = getattr(ours, name, None), getattr(book, name)
    wrong = [f"{name} must be {needed}; got {value}" for name, (value, needed) in fixed.items() if value != needed]
    if wrong:
        raise ConfigError("framework torch runs the book's recipe (the preset book): " + "; ".join(wrong))
    return recipe.Recipe(
        embed_size=model.embed_size,
        num_hiddens=model.num_hiddens,
        num_layers=model.num_layers,
        dropout=model.dropout,
        learning_rate=training.learning_rate,
        clip_norm=training.clip_norm,
        decoder_bias=model.decoder_bias,
        stop_at_length=model.stop_at_length,
    )

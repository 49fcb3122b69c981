"""Training in PyTorch: torch_ref by the book's recipe, and what tuning makes of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import torch_ref
from parity_tests.speed import torch_device
from parity_tests.speed.translation import (
    COMPARED,
    TRANSLATORS,
    Group,
    Translator,
    draw_training,
    draw_weights,
)
from parity_tests.speed.tuned_seq2seq import TunedTranslator
from parity_tests.speed.workload import Program
from torch_ref.recipe import clip_gradients, sentence_losses

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Sources, their lengths, targets, their lengths."""


def seed_model(translator: Translator) -> torch_ref.EncoderDecoder:
    """torch_ref as it is written."""
    decoder = torch_ref.Seq2SeqAttentionDecoder(**translator.decoder, encoder_size=translator.encoder_size)
    return torch_ref.EncoderDecoder(torch_ref.Seq2SeqEncoder(**translator.encoder), decoder)


def tuned_model(translator: Translator) -> TunedTranslator:
    return TunedTranslator(dict(translator.encoder), dict(translator.decoder), translator.encoder_size)


def load_weights(model: nn.Module, name: str, scales: Any = None) -> None:
    """The weights that every contestant begins with."""
    drawn = draw_weights(name, {of: tuple(x.shape) for of, x in model.state_dict().items()}, scales)
    model.load_state_dict({of: torch.tensor(x) for of, x in drawn.items()})


class SeedTraining:
    """The book's recipe: Adam, the loss of its sentences, gradients clipped one by one."""

    def __init__(self, translator: Translator, device: str) -> None:
        self.model = seed_model(translator)
        load_weights(self.model, translator.name)
        self.model.to(device).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=translator.learning_rate)

    def step(self, batch: Batch) -> Tensor:
        """Nats a token of the batch, before the step."""
        losses, label_lens = sentence_losses(self.model, *batch)
        self.optimizer.zero_grad()
        losses.sum().backward()
        clip_gradients(self.model, 1.0)
        self.optimizer.step()
        return losses.detach().sum() * (batch[2].shape[1] - 1) / label_lens.sum()


class TunedTraining:
    """The tuned model, fused Adam, and what of a step `torch.compile` makes faster where it is asked for.

    It is given batches cut to their longest sentences; the book's loss divides by all `label_positions` nevertheless.
    """

    def __init__(self, translator: Translator, label_positions: int, device: str, compiled: bool = False) -> None:
        self.translator = translator
        self.label_positions = label_positions
        self.model = tuned_model(translator)
        load_weights(self.model, translator.name)
        self.model.to(device).train()
        if compiled:
            self.model.decoder.compile_step()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=translator.learning_rate, fused=True)

    def step(self, batch: Batch) -> Tensor:
        sources, source_lens, targets, target_lens = batch
        counts = torch.arange(1, targets.shape[1], device=targets.device) < target_lens[:, None]
        logits = self.model(sources, source_lens, targets[:, :-1], counts)
        smoothing = self.translator.label_smoothing
        nats = F.cross_entropy(logits, targets[:, 1:][counts].long(), reduction="sum", label_smoothing=smoothing)
        tokens = logits.shape[0]
        self.optimizer.zero_grad()
        (nats / (tokens if self.translator.loss == "tokens" else self.label_positions)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return nats.detach() / tokens


def batches_of(groups: list[Group], device: str, trim: bool) -> Iterator[Batch]:
    """Each batch without the rows that are nobody's, cut to its own longest sentences if `trim`."""
    for group in groups:
        for sources, source_lens, targets, target_lens in zip(*group, strict=True):
            present = target_lens > 0
            ends = (source_lens.max(), target_lens.max()) if trim else (sources.shape[1], targets.shape[1])
            arrays = (
                sources[present, : ends[0]],
                source_lens[present],
                targets[present, : ends[1]],
                target_lens[present],
            )
            yield tuple(torch.tensor(x.astype(np.int64), device=device) for x in arrays)  # type: ignore[misc]


def build(device: str, *, translator: str, kind: str, compiled: bool = False) -> Program:
    """Training, whose outputs are the losses of the first steps, without dropout; `kind` is "seed" or "tuned"."""
    wait = torch_device.on(device)
    of = TRANSLATORS[translator]

    groups = draw_training(translator)

    def make(of: Translator) -> Any:
        if kind == "seed":
            return SeedTraining(of, device)
        return TunedTraining(of, groups[0].targets.shape[-1] - 1, device, compiled)

    batches = list(batches_of(groups, device, trim=kind == "tuned"))
    training = make(of)

    def step() -> None:
        for batch in batches:
            training.step(batch)
        wait()

    def first_losses() -> dict[str, np.ndarray]:
        sober = make(of.without("dropout")) if of.dropout else training
        losses = [sober.step(batch) for batch in batches[: min(COMPARED, len(groups[0].sources))]]
        return {"losses": torch.stack(losses).cpu().numpy()}

    return Program(step, first_losses)

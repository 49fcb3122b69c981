"""The book's training recipe for the translator with attention. Source: d2l.ai, "The Bahdanau Attention Mechanism".

On the first 1000 English-French pairs, 500 epochs of 10 steps bring the loss, as the book computes it, to 0.02.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torch_ref.functional.losses import masked_cross_entropy
from torch_ref.models.rnn_decoder import Seq2SeqAttentionDecoder
from torch_ref.models.rnn_encoder import Seq2SeqEncoder
from torch_ref.models.seq2seq import EncoderDecoder
from torch_ref.modules.attention import AdditiveAttention

Batch = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # source [B, S], lengths [B], target [B, T], lengths [B]


@dataclass(frozen=True)
class Recipe:
    """The book's settings. One edition has use_tanh=False and, by accident, decoder_bias=False."""

    embed_size: int = 32
    num_hiddens: int = 32
    num_layers: int = 2
    dropout: float = 0.0
    learning_rate: float = 0.005
    clip_norm: float = 1.0
    use_tanh: bool = True
    decoder_bias: bool = True
    stop_at_length: bool = True


@dataclass(frozen=True)
class EpochReport:
    epoch: int
    loss_book: float  # sum over sentences of the mean over label positions, divided by the number of valid labels
    nats_per_token: float  # cross entropy of a valid label
    tokens_per_second: float  # valid labels a second


def build(source_vocab_size: int, target_vocab_size: int, recipe: Recipe, seed: int) -> EncoderDecoder:
    """Build an LSTM encoder and an LSTM decoder with additive attention, initialised from `seed` as in the book."""
    sizes = (recipe.embed_size, recipe.num_hiddens, recipe.num_layers, recipe.dropout)
    with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
        torch.manual_seed(seed)
        encoder = Seq2SeqEncoder(source_vocab_size, *sizes, cell="lstm", stop_at_length=recipe.stop_at_length)
        attention = AdditiveAttention(recipe.num_hiddens, recipe.dropout, use_tanh=recipe.use_tanh)
        decoder = Seq2SeqAttentionDecoder(
            target_vocab_size, *sizes, cell="lstm", attention=attention, use_bias=recipe.decoder_bias
        )
        model = EncoderDecoder(encoder, decoder)
        model.apply(xavier_init)
    return model


def xavier_init(module: nn.Module) -> None:
    """Draw the weights of Linear and LSTM from Xavier's uniform distribution; leave biases and embeddings alone."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, nn.LSTM):
        for name, parameter in module.named_parameters():
            if name.startswith("weight"):
                nn.init.xavier_uniform_(parameter)


def sentence_losses(
    model: EncoderDecoder, source: Tensor, source_lens: Tensor, target: Tensor, target_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the book's loss of each sentence [B], and its number of valid labels [B].

    target [B, T] has <bos> first and target_lens counts it: the decoder reads target[:, :-1] and the labels are
    target[:, 1:]. A row of length 0 is padding of the batch: it has no loss and no labels.
    """
    label_lens = (target_lens - 1).clamp(min=0)
    logits, _ = model(source, target[:, :-1], source_lens)
    return masked_cross_entropy(logits, target[:, 1:], label_lens, reduction="sentences"), label_lens


def clip_gradients(model: nn.Module, theta: float) -> Tensor:
    """g <- g * min(1, theta / |g|) over all gradients together, without an epsilon; returns |g|."""
    if not theta >= 0:
        raise ValueError(f"theta must be at least 0; got {theta}")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum((g**2).sum() for g in gradients))
    if norm > theta:
        for g in gradients:
            g.mul_(theta / norm)
    return norm


def train(
    model: EncoderDecoder,
    batches: Callable[[int], Iterable[Batch]],
    recipe: Recipe,
    num_epochs: int,
    report: Callable[[EpochReport], None] | None = None,
) -> list[EpochReport]:
    """Train by Adam on the sum of the sentences' losses, gradients clipped to recipe.clip_norm; report each epoch.

    batches(epoch) yields NumPy arrays (source [B, S], source_lens [B], target [B, T], target_lens [B]).
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    model.train()
    reports = []
    for epoch in range(num_epochs):
        start, loss_sum, nats, labels = time.perf_counter(), 0.0, 0.0, 0
        for batch in batches(epoch):
            source, source_lens, target, target_lens = (torch.as_tensor(x, device=device) for x in batch)
            losses, label_lens = sentence_losses(model, source, source_lens, target, target_lens)
            optimizer.zero_grad()
            losses.sum().backward()
            clip_gradients(model, recipe.clip_norm)
            optimizer.step()
            loss_sum += float(losses.detach().sum())
            nats += float(losses.detach().sum()) * (target.shape[1] - 1)  # the mean over positions, undone
            labels += int(label_lens.sum())
        seconds = time.perf_counter() - start
        reports.append(EpochReport(epoch, loss_sum / max(labels, 1), nats / max(labels, 1), labels / seconds))
        if report is not None:
            report(reports[-1])
    return reports

"""The implementations in PyTorch: torch_ref, which is the reference, tuned PyTorch (see `tuned`), and the ceilings."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import torch_ref
from benchmarks import inputs, tuned
from benchmarks.process import Program
from parity_tests.this_library.cases import find_case
from torch_ref.recipe import clip_gradients, sentence_losses

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Sources, their lengths, targets, their lengths."""

Step = Callable[[Batch], Tensor]
"""A training step: it returns the batch's loss before the step, in nats a token."""


def use_device(device: str) -> Callable[[], Any]:
    """Compute float32 products in full precision; return the function that waits for `device` ("cpu" or "cuda")."""
    if device == "cpu":
        return lambda: None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.cuda.synchronize


def call_case(name: str, **arrays: Any) -> Tensor:
    """Call the PyTorch side of a parity case."""
    options = {"causal": False, "scaled": True} if name.startswith("DotProduct") else {}
    result: Tensor = find_case(name).torch.call(None, arrays, options)
    return result


def _program(compute: Callable[[], dict[str, Tensor]]) -> Program:
    return Program(compute, lambda: {name: x.detach().cpu().numpy() for name, x in compute().items()})


def attention(
    device: str, *, function: Callable[..., Tensor], arguments: str, backward: bool = False, compiled: bool = False
) -> Program:
    """Compute a function of attention; with `backward`, also the gradients of its arguments."""
    wait = use_device(device)
    moved, fixed = (
        {name: x if x is None else torch.tensor(x, device=device) for name, x in arrays.items()}
        for arrays in inputs.attention_arguments(arguments)
    )
    leaves: list[Any] = list(moved.values())
    for tensor in leaves:
        tensor.requires_grad_(backward)
    call = torch.compile(function, dynamic=False) if compiled else function

    @cache
    def along(shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(inputs.cotangent(arguments, shape), device=device)

    def compute() -> dict[str, Tensor]:
        with torch.set_grad_enabled(backward):
            results = {"output": call(**moved, **fixed)}
        if backward:
            gradients = torch.autograd.grad(results["output"], leaves, along(results["output"].shape))
            results |= dict(zip(moved, gradients, strict=True))
        wait()
        return results

    return _program(compute)


def recurrent(device: str) -> Program:
    """Run `nn.LSTM`, which torch_ref's LSTM calls, with the gradients of inputs and weights."""
    wait = use_device(device)
    *arrays, weights = inputs.recurrent_inputs()
    x, along = (torch.tensor(array, device=device) for array in arrays)
    x.requires_grad_()
    module = torch_ref.LSTM(*inputs.RECURRENT_SIZES[2:]).to(device)
    module.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()})

    def compute() -> dict[str, Tensor]:
        outputs = module(x)[0]
        d_x, *_ = torch.autograd.grad(outputs, [x, *module.parameters()], along)
        wait()
        return {"output": outputs, "gradient of inputs": d_x}

    return _program(compute)


def reference_model(translator: inputs.Translator) -> torch_ref.EncoderDecoder:
    """Build torch_ref's model."""
    decoder = torch_ref.Seq2SeqAttentionDecoder(**translator.decoder, encoder_size=translator.encoder_size)
    return torch_ref.EncoderDecoder(torch_ref.Seq2SeqEncoder(**translator.encoder), decoder)


def tuned_model(translator: inputs.Translator) -> tuned.Seq2Seq:
    """Build the tuned model, which has the same parameters."""
    decoder = tuned.Decoder(**translator.decoder, encoder_size=translator.encoder_size)
    return tuned.Seq2Seq(tuned.Encoder(**translator.encoder), decoder)


def load_weights(model: nn.Module, seed: str, scales: Any = None) -> None:
    """Give a model the weights that every implementation starts with."""
    drawn = inputs.draw_weights(seed, {name: tuple(x.shape) for name, x in model.state_dict().items()}, scales)
    model.load_state_dict({name: torch.tensor(x) for name, x in drawn.items()})


def make_reference_step(translator: inputs.Translator, device: str) -> Step:
    """Make the book's training step: Adam, the sum of the sentences' losses, clipped gradients."""
    model = reference_model(translator)
    load_weights(model, translator.name)
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=translator.training["learning_rate"])

    def step(batch: Batch) -> Tensor:
        losses, label_lens = sentence_losses(model, *batch)
        optimizer.zero_grad()
        losses.sum().backward()
        clip_gradients(model, 1.0)
        optimizer.step()
        return losses.detach().sum() * (batch[2].shape[1] - 1) / label_lens.sum()

    return step


def make_tuned_step(
    translator: inputs.Translator, label_positions: int, device: str, compiled: bool, *, timed: bool = True
) -> Step:
    """Make a training step of the tuned model with fused Adam; with `compiled`, torch.compile gets the decoder's step.

    Batches are cut to their longest sentences, but the book's loss still divides by all `label_positions`. A timed
    step returns what it has, the loss with smoothing; the other one computes the loss without smoothing.
    """
    model, training = tuned_model(translator), translator.training
    load_weights(model, translator.name)
    model.to(device).train()
    if compiled:
        model.decoder.compile_step()
    optimizer = torch.optim.Adam(model.parameters(), lr=training["learning_rate"], fused=True)

    def step(batch: Batch) -> Tensor:
        sources, source_lens, targets, target_lens = batch
        counts = torch.arange(1, targets.shape[1], device=targets.device) < target_lens[:, None]
        logits, labels = model.logits(sources, source_lens, targets[:, :-1], counts), targets[:, 1:][counts]
        nats = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=training["label_smoothing"])
        optimizer.zero_grad()
        (nats / (len(logits) if training["loss"] == "tokens" else label_positions)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return nats.detach() / len(logits) if timed else F.cross_entropy(logits.detach(), labels)

    return step


def make_batches(groups: list[inputs.Group], device: str, trim: bool) -> Iterator[Batch]:
    """Yield each batch without its padding rows; with `trim`, cut to its longest sentences."""
    for group in groups:
        for sources, source_lens, targets, target_lens in zip(*group, strict=True):
            present = target_lens > 0
            S, T = (source_lens.max(), target_lens.max()) if trim else (sources.shape[1], targets.shape[1])
            arrays = sources[present, :S], source_lens[present], targets[present, :T], target_lens[present]
            yield tuple(torch.tensor(x.astype(np.int64), device=device) for x in arrays)  # type: ignore[misc]


def train(device: str, *, translator: inputs.Translator, reference: bool = False, compiled: bool = False) -> Program:
    """Run one pass over the batches. Compare the losses of the first steps, without dropout."""
    wait, groups = use_device(device), inputs.draw_training(translator.name)
    batches = list(make_batches(groups, device, trim=not reference))

    def make_step(translator: inputs.Translator, timed: bool) -> Step:
        if reference:
            return make_reference_step(translator, device)
        return make_tuned_step(translator, groups[0].targets.shape[-1] - 1, device, compiled, timed=timed)

    step = make_step(translator, timed=True)

    def run() -> None:
        for batch in batches:
            step(batch)
        wait()

    def first_losses() -> dict[str, np.ndarray]:
        compared = make_step(translator.without_dropout(), timed=False) if translator.dropout else step
        losses = [compared(batch) for batch in batches[: min(inputs.COMPARED, len(groups[0].sources))]]
        return {"losses": torch.stack(losses).cpu().numpy()}

    return Program(run, first_losses)


ENDS: dict[str, Any] = {"bos": inputs.BOS, "eos": inputs.EOS, "max_len": inputs.STEPS, "min_len": inputs.STEPS}
"""No sentence ends before the last step."""


def prepare_search(model: Any, device: str, num_sentences: int) -> tuple[Tensor, Tensor]:
    """Give W2's model its weights; return the sentences to translate, and their lengths."""
    load_weights(model, "w2", inputs.SHARP)
    model.to(device).eval()
    sources, source_lens = inputs.draw_sources()
    ids, lens = (torch.tensor(x[:num_sentences].astype(np.int64), device=device) for x in (sources, source_lens))
    return ids, lens


def search_tuned(device: str, *, beam_size: int, compiled: bool) -> Program:
    """Search with W2's tuned model, all sentences at once."""
    wait, model = use_device(device), tuned_model(inputs.W2)
    sources = prepare_search(model, device, inputs.SENTENCES)
    if compiled:
        model.decoder.compile_step()

    def compute() -> dict[str, Tensor]:
        ids, scores = tuned.search(model, *sources, beam_size, **ENDS)
        wait()
        return {"ids": ids[:, 0], "scores": scores[:, 0]}

    return _program(compute)


def search_reference(device: str, *, num_sentences: int) -> Program:
    """Search greedily with torch_ref, which translates one sentence at a time."""
    wait, model = use_device(device), reference_model(inputs.W2)
    sources = prepare_search(model, device, num_sentences)

    @torch.no_grad()
    def compute() -> dict[str, Tensor]:
        memory = model.encode(*sources)
        found = torch_ref.greedy_search(
            model.step, model.initial_state(memory), memory, batch_size=num_sentences, **ENDS
        )
        wait()
        return {"ids": found.ids[:, 0], "scores": found.scores[:, 0]}

    return _program(compute)


def ceiling(device: str, *, operation: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """Repeat the operation, with its result in memory that exists already."""
    wait = use_device(device)
    ones = partial(torch.ones, device=device)
    if operation == "gemm":
        once = partial(torch.mm, ones(shape[:2]), ones(shape[1:]), out=ones(shape[0], shape[2]))
    elif operation == "tanh":
        once = partial(torch.tanh, torch.linspace(-2, 2, shape[0], device=device), out=ones(shape))
    else:
        once = partial(ones(shape).copy_, ones(shape))

    def run() -> None:
        for _ in range(repeats):
            once()
        wait()

    return Program(run, dict)

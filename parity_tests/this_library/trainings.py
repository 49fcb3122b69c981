"""Training parity: from the same weights, batches and dropout, N steps in both frameworks, compared at every step.

A step is that of the trainer: the loss of teacher forcing, its gradients, the clipping of their global norm, Adam. The
JAX side is `jax_attn` and `jax_attn.optim`, the other is `torch_ref` and `torch.optim.Adam`. The loss, each gradient
before and after clipping, the norm, both moments and each parameter are compared under PyTorch's names, by tensor:
max|a − b| / max|b|.

    free-running     each goes its own way from the same start; float64, within 1e-9
    re-synchronised  before each step JAX takes over PyTorch's parameters and moments; float64, within 1e-11
    drift            both run in float32, each measured against PyTorch in float64; JAX's drift is of PyTorch's size

No tensor is an exception. Adam divides by the gradient's own size, and so amplifies rounding where the true gradient is
nearly 0. W_q is such a tensor (its gradient is 1e-8 at the start), and has the largest error in nearly every step; it
stays far below the bounds because Adam's ε is of its size. Where the true gradient is 0, for words that do not occur,
it is 0 to the bit in both, and so are the moments and the step.

The learning rates keep training from being chaotic. With 0.005 instead of 0.002 the GRU lets float32's rounding grow
from 1e-5 to 1e-1 within 200 steps, in either framework, and the comparison would say nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

import jax_attn
import torch_ref
from jax_attn import optim
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import random_for
from parity_tests.your_port.training.comparison import TrainingReport, compare_steps
from parity_tests.your_port.training.errors import tensor_errors
from parity_tests.your_port.training.sides import JaxTraining, TorchTraining
from torch_ref.recipe import clip_gradients

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3
VOCAB, EMBED, HIDDEN, LAYERS, DROPOUT = 13, 8, 12, 2, 0.2
ROWS, SOURCE_STEPS, TARGET_STEPS = 8, 5, 6
EPOCH = 8
"""Batches, after which they come again, with other dropout."""


@dataclass(frozen=True, eq=False)
class Training:
    """A model and how it is trained."""

    name: str
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    loss: Literal["tokens", "sentences"]
    """The mean over the tokens, or the book's loss: the sum of the sentences' means over all positions."""
    clip_norm: float
    clip_epsilon: float
    """0: the book's clipping; 1e-6: that of `torch.nn.utils.clip_grad_norm_`."""
    learning_rate: float
    seed: int = 0
    """Of weights, batches and dropout."""


_SIZES: dict[str, Any] = {"vocab_size": VOCAB, "embed_size": EMBED, "num_layers": LAYERS, "dropout": DROPOUT}

BOOK = Training(
    "lstm, the book's",
    encoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "lstm"},
    decoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "lstm", "attention": "additive", "query": "previous"},
    loss="sentences",
    clip_norm=1.0,
    clip_epsilon=0.0,
    learning_rate=0.005,
)
LUONG = Training(
    "gru, both directions, bridged, fed",
    encoder={**_SIZES, "num_hiddens": HIDDEN // 2, "cell": "gru", "bidirectional": True},
    decoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "gru", "query": "new", "input_feeding": True, "bridge": True},
    loss="tokens",
    clip_norm=0.5,
    clip_epsilon=1e-6,
    learning_rate=0.002,
)
TRAININGS = (BOOK, LUONG)


def draw_batch(training: Training, step: int) -> dict[str, np.ndarray]:
    """Draw the batch of a step: sentences to be written backwards, the last row empty, and the masks of dropout."""
    rng = random_for("batch", training.name, str(training.seed), str(step % EPOCH))
    sources = np.full((ROWS, SOURCE_STEPS), PAD, np.int32)
    targets = np.full((ROWS, TARGET_STEPS + 1), PAD, np.int32)
    lengths = np.append(rng.integers(1, SOURCE_STEPS + 1, ROWS - 1), 0).astype(np.int32)
    for row, length in enumerate(lengths[:-1]):
        words = rng.integers(FIRST_WORD, VOCAB, length)
        sources[row, :length] = words
        targets[row, : length + 2] = [BOS, *words[::-1], EOS]
    dropout = random_for("dropout", training.name, str(training.seed), str(step))
    keep_shapes = {
        "keep_encoder": (ROWS, LAYERS - 1, SOURCE_STEPS, HIDDEN),
        "keep_layers": (ROWS, LAYERS - 1, TARGET_STEPS, HIDDEN),
        "keep_attention": (ROWS, TARGET_STEPS, SOURCE_STEPS),
    }
    return {
        "sources": sources,
        "source_lens": lengths,
        "targets": targets,
        "label_lens": np.where(lengths > 0, lengths + 1, 0).astype(np.int32),
        **{name: dropout.random(shape) >= DROPOUT for name, shape in keep_shapes.items()},
    }


def initial_weights(training: Training, dtype: str) -> dict[str, np.ndarray]:
    """Draw parameters by PyTorch's names, uniform within ±1/√(last axis), numbers that float32 holds."""

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = random_for("weights", training.name, str(training.seed), name)
        return (rng.uniform(-1, 1, shape) / shape[-1] ** 0.5).astype(np.float32).astype(dtype)

    return {name: draw(name, tuple(p.shape)) for name, p in _torch_model(training).named_parameters()}


class Batches(Sequence[Any]):
    """The batches of a training."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def __len__(self) -> int:
        return 500

    def __getitem__(self, step: Any) -> Any:
        return draw_batch(self.training, step)


# The loss of a batch: that of teacher forcing with given dropout


def _torch_model(training: Training) -> torch_ref.EncoderDecoder:
    return torch_ref.EncoderDecoder(
        torch_ref.Seq2SeqEncoder(**training.encoder),
        torch_ref.Seq2SeqAttentionDecoder(**training.decoder, encoder_size=HIDDEN),
    )


def _decode(model: Any, batch: Any, method: str) -> Any:
    """Teacher forcing: the same calls in both frameworks, except for the decoder's method."""
    keep_encoder = jax_attn.EncoderKeepMasks(batch["keep_encoder"])
    encoded = model.encoder(batch["sources"], batch["source_lens"], keep_masks=keep_encoder)
    memory = model.decoder.prepare(encoded, batch["source_lens"])
    keep_masks = jax_attn.DecoderKeepMasks(batch["keep_layers"], batch["keep_attention"])
    return getattr(model.decoder, method)(batch["targets"][:, :-1], memory, keep_masks=keep_masks)[0]


def _torch_loss(training: Training, model: Any, batch: Any) -> torch.Tensor:
    logits, labels = _decode(model, batch, "forward"), batch["targets"][:, 1:]
    return torch_ref.masked_cross_entropy(logits, labels, batch["label_lens"], reduction=training.loss).sum()


def _jax_loss(training: Training, model: Any, batch: Any) -> jax.Array:
    features = model(batch, "features", method=_decode)
    kernel, bias = model(method=lambda model: model.decoder.output_layer())
    labels = batch["targets"][:, 1:]
    counts = jax_attn.length_mask(batch["label_lens"], labels.shape[1])
    weight = 1 / labels.shape[1] if training.loss == "sentences" else 1 / jnp.maximum(counts.sum(), 1)
    weights = jnp.where(counts, weight, 0).astype(features.dtype)
    return jax_attn.projected_cross_entropy(features, kernel, bias, labels, weights)[0]


@cache
def _gradient(training: Training) -> Any:
    """A compiled function (weights by PyTorch's names, batch) -> (loss, gradients)."""

    def build(options: Any, dtype: Any) -> jax_attn.EncoderDecoder:
        return jax_attn.EncoderDecoder(
            jax_attn.Seq2SeqEncoder(**training.encoder, param_dtype=dtype),
            jax_attn.Seq2SeqAttentionDecoder(**training.decoder, param_dtype=dtype),
        )

    def init(model: Any, batch: Any) -> Any:
        return model.init(jax.random.key(0), batch["sources"], batch["targets"])

    side = linen_module(build, partial(_jax_loss, training), init)
    return jax.jit(jax.value_and_grad(lambda weights, batch: side.call(weights, batch, {})))


# The training in either framework, as `compare_training` takes it


def start_torch(training: Training, weights: Mapping[str, torch.Tensor]) -> Any:
    """Start from given weights; return the model, its optimiser and the step."""
    model = _torch_model(training).eval()
    model.load_state_dict(weights)
    optimizer = torch.optim.Adam(model.parameters(), training.learning_rate)

    def step(batch: Any) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = _torch_loss(training, model, batch)
        loss.backward()
        norm = _clip(training, list(model.parameters()))
        optimizer.step()
        return {"loss": loss, "norm": norm}

    return model, optimizer, step


def start_jax(training: Training, weights: Mapping[str, np.ndarray]) -> Any:
    """Start from given weights; return the parameters under PyTorch's names, the optimiser's state and the step."""
    adam = optim.Adam().build(training.learning_rate)
    clip = optim.clip_by_global_norm(training.clip_norm, training.clip_epsilon)
    params = jax.device_put(dict(weights))

    @jax.jit
    def update(params: Any, state: Any, gradients: Any) -> Any:
        clipped, _ = clip.update(gradients, clip.init(params))
        updates, state = adam.update(clipped, state, params)
        return optax.apply_updates(params, updates), state, {"clipped": clipped, "norm": optax.tree.norm(gradients)}

    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, gradients = _gradient(training)(params, batch)
        params, state, seen = update(params, state, gradients)
        return params, state, {"loss": loss, "gradients": gradients, **seen}

    return params, adam.init(params), step


def _clip(training: Training, parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    if training.clip_epsilon == 0:
        return clip_gradients(SimpleNamespace(parameters=lambda: parameters), training.clip_norm)  # type: ignore[arg-type]
    return torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)  # with its 1e-6


def in_torch(training: Training, dtype: str) -> TorchTraining:
    """Record PyTorch's training."""
    return TorchTraining(partial(start_torch, training), initial_weights(training, dtype), Batches(training), dtype)


def in_jax(training: Training, beside: TorchTraining) -> JaxTraining:
    """Make JAX's training from the same weights."""
    return JaxTraining(partial(start_jax, training), beside)


reference = lru_cache(maxsize=1)(partial(in_torch, dtype="float64"))
"""PyTorch's training in float64, computed as far as it is read: three comparisons share it (100 MB for 500 steps)."""


# The comparisons


@dataclass(frozen=True)
class Drift:
    """How far each framework in float32 has come from PyTorch in float64."""

    name: str
    steps: int
    curves: dict[str, dict[str, np.ndarray]]
    """`curves[one of DRIFT_FACTORS]["JAX" or "PyTorch"]`: the error at each step."""

    def median(self, quantity: str, framework: str) -> float:
        return float(np.median(self.curves[quantity][framework]))

    def bound(self, quantity: str) -> float:
        """How large JAX's median may be; see `drift`."""
        return DRIFT_FACTORS[quantity] * self.median(quantity, "PyTorch")

    @property
    def failed(self) -> bool:
        return not all(self.median(quantity, "JAX") <= self.bound(quantity) for quantity in self.curves)

    def __str__(self) -> str:
        medians = (f"{x} JAX {self.median(x, 'JAX'):.2e}, bound {self.bound(x):.2e}" for x in self.curves)
        return f"{self.name}: {'; '.join(medians)}"


def free_running(training: Training, steps: int = 200) -> TrainingReport:
    """Compare both from one start, each on its own, in float64: all within 1e-9.

    Every step adds a rounding error, which the steps after it carry on: whole trainings are compared.
    """
    return _compare(training, steps, 1e-9, resync=False)


def resynchronised(training: Training, steps: int = 500) -> TrainingReport:
    """Compare both where JAX takes over PyTorch's parameters and moments before each step; float64, within 1e-11.

    Nothing adds up, so each step is an independent proof, at the parameters that training has reached.
    """
    return _compare(training, steps, 1e-11, resync=True)


def _compare(training: Training, steps: int, bound: float, resync: bool) -> TrainingReport:
    name = f"{training.name}: {'re-synchronised' if resync else 'free-running'}"
    beside = reference(training)
    return compare_steps(name, beside, in_jax(training, beside), steps, bound, resync, own=True)


def drift(training: Training, steps: int = 200) -> Drift:
    """Compare each framework in float32 with PyTorch in float64; JAX's drift must be of PyTorch's own size.

    That is, median over the steps of e_jax ≤ factor · median of e_torch, with a factor for each of `DRIFT_FACTORS`.
    """
    beside = in_torch(training, "float32")
    trainings: dict[str, Any] = {"JAX": in_jax(training, beside), "PyTorch": beside}
    curves = {quantity: {framework: np.zeros(steps) for framework in trainings} for quantity in DRIFT_FACTORS}
    for number in range(steps):
        truth = reference(training)[number]
        for framework, side in trainings.items():
            step = side.run(beside.batches[number])
            errors = list(tensor_errors(step["parameters"], truth["parameters"]).values())
            curves["parameters"][framework][number] = np.median(errors)
            curves["worst parameter"][framework][number] = max(errors)
            curves["loss"][framework][number] = tensor_errors(step["loss"], truth["loss"])[""]
    return Drift(f"{training.name}: drift", steps, curves)


COMPARISONS: tuple[Callable[..., TrainingReport | Drift], ...] = (free_running, resynchronised, drift)

DRIFT_FACTORS = {"parameters": 2.0, "worst parameter": 16.0, "loss": 4.0}
"""How many times PyTorch's drift JAX's may be, by the medians over the steps.

A drift is one draw from its rounding; other draws show how much that means. Six seeds of both trainings, 150 steps:

                                                            JAX           Optax's own Adam  PyTorch, its rows exchanged
    parameters: of the tensors' errors, the median          0.99 to 1.45  6.7 to 26         0.87 to 1.08
    worst parameter: the largest, nearly always that of W_q 0.8 to 7.7    1.0 to 7.9        0.37 to 1.8
    loss: near the roundoff of the loss itself              1.1 to 2.4    12 to 36          0.82 to 1.21

The last column is PyTorch against itself, the rows of each batch in another order. The factors lie above JAX's values,
and for two of the three quantities far below the effect of steps that are 1e-5 too long (Optax's Adam; see
`jax_attn.optim.scale_by_adam`). The worst tensor's factor is wide, since a single tensor's drift varies: it is there
for a tensor that is wrong altogether.
"""

"""Training parity: from the same weights, batches and dropout, N steps in both frameworks, compared at every step.

A step is that of the trainer: the loss of teacher forcing, its gradients, the clipping of their global norm, Adam. The
JAX side is `jax_attn` and `jax_attn.optim`, the other is `torch_ref` and `torch.optim.Adam`. The loss, each gradient
before and after clipping, the norm, both moments and each parameter are compared under PyTorch's names, by tensor:
max|a − b| / max|b|.

    free-running     each goes its own way from the same start; float64, within 1e-9
    re-synchronised  before each step JAX takes over PyTorch's parameters and moments; float64, within 1e-11
    drift            both run in float32, each measured against PyTorch in float64; JAX's drift is of PyTorch's size

Every tensor is compared, and all are trained but one kind: the biases of a Transformer's keys add the same to all
scores of a query, so their gradients are rounding alone.

Adam divides by the gradient's own size, and so amplifies rounding where the true gradient is nearly 0. The recurrent
models' W_q is such a tensor (its gradient is 1e-8 at the start), and has the largest error in nearly every step; it
stays far below the bounds because Adam's ε is of its size. Where the true gradient is 0, for words that do not occur,
it is 0 to the bit in both, and so are the moments and the step.

The learning rates keep training from being chaotic. With 0.005 instead of 0.002 the GRU lets float32's rounding grow
from 1e-5 to 1e-1 within 200 steps, in either framework, and the comparison would say nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

import jax_attn
import torch_ref
from jax_attn import optim
from parity_tests.this_library.cases import models, transformer
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import random_for
from parity_tests.your_port.measure.errors import relative_error
from parity_tests.your_port.training.comparison import compare_steps
from parity_tests.your_port.training.report import TrainingReport
from parity_tests.your_port.training.sides import JaxTraining, TorchTraining
from torch_ref.functional.losses import clip_gradients

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3
VOCAB, EMBED, HIDDEN, LAYERS, DROPOUT = 13, 8, 12, 2, 0.2
ROWS, SOURCE_STEPS, TARGET_STEPS = 8, 5, 6
UNTRAINED = "W_k.bias"
"""The end of the names of the parameters whose gradients are 0 but for rounding."""
EPOCH = 8
"""Batches, after which they come again, with other dropout."""


@dataclass(frozen=True, eq=False)
class Training:
    """A model and how it is trained."""

    name: str
    family: Any
    """The module of cases that builds its models: `jax_translator` and `torch_translator`."""
    options: Mapping[str, Any]
    """Of the encoder and of the decoder."""
    loss: Literal["tokens", "sentences"]
    """The mean over the tokens, or the book's loss: the sum of the sentences' means over all positions."""
    clip_norm: float
    clip_epsilon: float
    """0: the book's clipping; 1e-6: that of `torch.nn.utils.clip_grad_norm_`."""
    learning_rate: float
    seed: int = 0
    """Of weights, batches and dropout."""


SIZES: dict[str, Any] = {"vocab_size": VOCAB, "embed_size": EMBED, "num_layers": LAYERS, "dropout": DROPOUT}


def _recurrent(encoder: Mapping[str, Any], **decoder: Any) -> dict[str, Any]:
    """Complete the decoder's options, and those of the encoder that differ from it."""
    shared = {**SIZES, "num_hiddens": HIDDEN, "cell": decoder["cell"]}
    return {"encoder": {"bidirectional": False, **shared, **encoder}, "decoder": {**shared, **decoder}}


def _transformer(tied: bool = False, **shared: Any) -> dict[str, Any]:
    """Complete the options that encoder and decoder share, with every dropout."""
    rates = {"dropout_attention": DROPOUT, "dropout_hidden": DROPOUT}
    shared = {**SIZES, "num_hiddens": HIDDEN, "num_heads": 2, **rates, **shared}
    return {"encoder": shared, "decoder": {**shared, "tie_embeddings": tied}, "share_embedding": tied}


BOOK = Training(
    "lstm, the book's",
    models,
    _recurrent({}, cell="lstm", attention="additive", query="previous"),
    loss="sentences",
    clip_norm=1.0,
    clip_epsilon=0.0,
    learning_rate=0.005,
)
LUONG = Training(
    "gru, both directions, bridged, fed",
    models,
    _recurrent(
        {"num_hiddens": HIDDEN // 2, "bidirectional": True}, cell="gru", query="new", input_feeding=True, bridge=True
    ),
    loss="tokens",
    clip_norm=0.5,
    clip_epsilon=1e-6,
    learning_rate=0.002,
)
TRANSFORMER = Training(
    "transformer, the paper's",
    transformer,
    _transformer(),
    loss="tokens",
    clip_norm=0.3,
    clip_epsilon=1e-6,
    learning_rate=0.002,
)
PRE_NORM = Training(
    "transformer, one layer, normalised before, three-way tied",
    transformer,
    _transformer(tied=True, num_layers=1, norm="pre", activation="gelu", positions="learnt", max_len=TARGET_STEPS),
    loss="tokens",
    clip_norm=0.35,
    clip_epsilon=1e-6,
    learning_rate=0.01,
)
TRAININGS = (BOOK, LUONG, TRANSFORMER, PRE_NORM)


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
    return {
        "sources": sources,
        "source_lens": lengths,
        "targets": targets,
        "label_lens": np.where(lengths > 0, lengths + 1, 0).astype(np.int32),
        "keep_masks": jax.tree.map(lambda mask: dropout.random(mask.shape) >= DROPOUT, _keep_masks(training)),
    }


@cache
def _keep_masks(training: Training) -> jax_attn.KeepMasks:
    """Return the shapes of the masks that the model draws itself."""
    model, sizes = training.family.jax_translator(training.options, None), ((ROWS, SOURCE_STEPS), (ROWS, TARGET_STEPS))
    masks: jax_attn.KeepMasks = jax.eval_shape(lambda key: model.draw_keep_masks(key, *sizes), jax.random.key(0))
    return masks


def initial_weights(training: Training, dtype: str) -> dict[str, np.ndarray]:
    """Draw parameters by PyTorch's names, uniform within ±1/√(last axis), numbers that float32 holds."""

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = random_for("weights", training.name, str(training.seed), name)
        return (rng.uniform(-1, 1, shape) / shape[-1] ** 0.5).astype(np.float32).astype(dtype)

    model = training.family.torch_translator(training.options, None)
    return {name: draw(name, tuple(p.shape)) for name, p in model.named_parameters()}


@cache
def batches(training: Training) -> list[Any]:
    return [draw_batch(training, step) for step in range(500)]


# The loss of a batch: that of teacher forcing with given dropout


def _torch_loss(training: Training, model: Any, batch: Any) -> torch.Tensor:
    targets, keep_masks = batch["targets"], batch["keep_masks"]
    logits, _ = model(batch["sources"], targets[:, :-1], batch["source_lens"], keep_masks=keep_masks)
    return torch_ref.masked_cross_entropy(logits, targets[:, 1:], batch["label_lens"], reduction=training.loss).sum()


def _jax_loss(training: Training, model: Any, batch: Any) -> jax.Array:
    targets, labels = batch["targets"][:, :-1], batch["targets"][:, 1:]
    counts = jax_attn.length_mask(batch["label_lens"], labels.shape[1])
    weight = 1 / labels.shape[1] if training.loss == "sentences" else 1 / jnp.maximum(counts.sum(), 1)
    given = batch["sources"], targets, labels, jnp.where(counts, weight, 0.0), batch["source_lens"]
    loss: jax.Array = model.cross_entropy(*given, keep_masks=batch["keep_masks"])[0]
    return loss


@cache
def _gradient(training: Training) -> Any:
    """A compiled function (weights by PyTorch's names, batch) -> (loss, gradients)."""

    def init(model: Any, batch: Any) -> Any:
        return model.init(jax.random.key(0), batch["sources"], batch["targets"][:, :-1])

    side = linen_module(training.family.jax_translator, partial(_jax_loss, training), init)

    def loss(weights: Mapping[str, Any], batch: Any) -> Any:
        fixed = {name: jax.lax.stop_gradient(x) for name, x in weights.items() if name.endswith(UNTRAINED)}
        return side.call({**weights, **fixed}, batch, training.options)

    return jax.jit(jax.value_and_grad(loss))


# The training in either framework, as `compare_training` takes it


def start_torch(training: Training, weights: Mapping[str, torch.Tensor]) -> Any:
    """Start from given weights; return the model, its optimiser and the step."""
    model = training.family.torch_translator(training.options, None).eval()
    model.load_state_dict(weights)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(UNTRAINED))
    optimizer = torch.optim.Adam(model.parameters(), training.learning_rate)

    def step(batch: Any) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = _torch_loss(training, model, batch)
        loss.backward()
        norm = (
            clip_gradients(model, training.clip_norm)
            if training.clip_epsilon == 0
            else torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)  # with its 1e-6
        )
        optimizer.step()
        return {"loss": loss, "norm": norm}

    return model, optimizer, step


@cache
def _optimizer(training: Training, *_: Any) -> tuple[Any, Any]:
    """Build Adam, and compile its step; the other arguments are what it is built of, which a fault replaces."""
    adam = optim.Adam().build(training.learning_rate)
    clip = optim.clip_by_global_norm(training.clip_norm, training.clip_epsilon)

    @jax.jit
    def update(params: Any, state: Any, gradients: Any) -> Any:
        clipped, _ = clip.update(gradients, clip.init(params))
        updates, state = adam.update(clipped, state, params)
        return optax.apply_updates(params, updates), state, {"clipped": clipped, "norm": optax.tree.norm(gradients)}

    return adam, update


def start_jax(training: Training, weights: Mapping[str, np.ndarray]) -> Any:
    """Start from given weights; return the parameters under PyTorch's names, the optimiser's state and the step."""
    adam, update = _optimizer(training, optim.scale_by_adam, optim.clip_by_global_norm)
    params = jax.device_put(dict(weights))

    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, gradients = _gradient(training)(params, batch)
        params, state, seen = update(params, state, gradients)
        return params, state, {"loss": loss, "gradients": gradients, **seen}

    return params, adam.init(params), step


def in_torch(training: Training, dtype: str) -> TorchTraining:
    """Record PyTorch's training."""
    return TorchTraining(partial(start_torch, training), initial_weights(training, dtype), batches(training), dtype)


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
            errors = [relative_error(step["parameters"][name], x) for name, x in truth["parameters"].items()]
            curves["parameters"][framework][number] = np.median(errors)
            curves["worst parameter"][framework][number] = max(errors)
            curves["loss"][framework][number] = relative_error(step["loss"][""], truth["loss"][""])
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

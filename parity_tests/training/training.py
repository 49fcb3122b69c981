"""Training parity: from the same weights, batches and dropout, N steps in both frameworks, compared at every step.

A step is what the program does: the loss of teacher forcing, its gradients, the clipping of their global norm, Adam.
On the JAX side that is `jax_attn` and `jax_attn.optim`, on the other `torch_ref` and `torch.optim.Adam`. Compared are
the loss, each gradient before and after clipping, the norm, both moments and each parameter, under PyTorch's names, by
tensor: max|a − b| / max|b|.

    free-running     both go their own way from the same start; float64, within 1e-9
    re-synchronised  before each step JAX takes over PyTorch's parameters and moments; float64, within 1e-11
    drift            both run in float32, each measured against PyTorch in float64; JAX's drift is of PyTorch's size

No tensor is an exception. Adam divides by the gradient's own size and so amplifies rounding where the true gradient is
nearly 0, and W_q is such a tensor: a query's gradient is a difference over the keys that the softmax makes cancel. At
the start it is 1e-8, good to 3e-13 in float64 and to 1e-4 in float32, in either framework, and W_q is what is furthest
in nearly every step. It stays far below the bounds because Adam's ε is of its size: what is less than 1e-8 moves by
less than the learning rate, and its rounding by as much less. Where the true gradient is 0, for words that do not
occur, it is 0 to the bit in both, and so are the moments and the step.

The learning rates are such that training is not chaotic. The GRU's at 0.005, rather than 0.002, lets float32's rounding
grow from 1e-5 to 1e-1 within 200 steps, in one framework as in the other, and nothing could be told from it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

import jax_attn
import torch_ref
from jax_attn import optim as optimizers
from jax_attn.weights import from_torch, to_numpy, to_torch
from parity_tests.case import random_for
from torch_ref.recipe import clip_gradients

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3
VOCAB, EMBED, HIDDEN, LAYERS, DROPOUT = 13, 8, 12, 2, 0.2
ROWS, SOURCE_STEPS, TARGET_STEPS = 8, 5, 6
EPOCH = 8
"""Batches, after which they come again, with other dropout."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True, eq=False)
class Training:
    """A model and how it is trained."""

    name: str
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    encoder_size: int
    """Features of the encoder's outputs, which PyTorch wants to be told."""
    loss: Literal["tokens", "sentences"]
    """The mean over the tokens, or the book's: the sum of the sentences' means over all positions."""
    clip_norm: float
    clip_epsilon: float
    """0: the book's clipping; 1e-6: that of `torch.nn.utils.clip_grad_norm_`."""
    learning_rate: float
    seed: int = 0
    """Of weights, batches and dropout."""


_SIZES = {"vocab_size": VOCAB, "embed_size": EMBED, "num_layers": LAYERS, "dropout": DROPOUT}

BOOK = Training(
    "lstm, the book's",
    encoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "lstm"},
    decoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "lstm", "attention": "additive", "query": "previous"},
    encoder_size=HIDDEN,
    loss="sentences",
    clip_norm=1.0,
    clip_epsilon=0.0,
    learning_rate=0.005,
)
LUONG = Training(
    "gru, both directions, bridged, fed",
    encoder={**_SIZES, "num_hiddens": HIDDEN // 2, "cell": "gru", "bidirectional": True},
    decoder={**_SIZES, "num_hiddens": HIDDEN, "cell": "gru", "query": "new", "input_feeding": True, "bridge": True},
    encoder_size=HIDDEN,
    loss="tokens",
    clip_norm=0.5,
    clip_epsilon=1e-6,
    learning_rate=0.002,
)
TRAININGS = (BOOK, LUONG)


# What both frameworks are given


class Batch(NamedTuple):
    """Sentences to be written backwards, of ragged lengths, the last row nobody's; and what dropout keeps."""

    sources: np.ndarray
    source_lens: np.ndarray
    targets: np.ndarray
    target_lens: np.ndarray
    keep_encoder: np.ndarray
    """`[layers − 1, B, S, features]`."""
    keep_layers: np.ndarray
    """`[T, layers − 1, B, H]`."""
    keep_attention: np.ndarray
    """`[T, B, S]`."""


def draw_batch(training: Training, step: int) -> Batch:
    """The batch of a step: the same for every run of this training."""
    rng = random_for("batch", training.name, str(training.seed), str(step % EPOCH))
    sources = np.full((ROWS, SOURCE_STEPS), PAD, np.int32)
    targets = np.full((ROWS, TARGET_STEPS + 1), PAD, np.int32)
    lengths = np.append(rng.integers(1, SOURCE_STEPS + 1, ROWS - 1), 0).astype(np.int32)
    for row, length in enumerate(lengths[:-1]):
        words = rng.integers(FIRST_WORD, VOCAB, length)
        sources[row, :length] = words
        targets[row, : length + 2] = [BOS, *words[::-1], EOS]
    target_lens = np.where(lengths > 0, lengths + 2, 0).astype(np.int32)

    of_dropout = random_for("dropout", training.name, str(training.seed), str(step))

    def keep(*shape: int) -> np.ndarray:
        return of_dropout.random(shape) >= DROPOUT

    return Batch(
        sources,
        lengths,
        targets,
        target_lens,
        keep(LAYERS - 1, ROWS, SOURCE_STEPS, training.encoder_size),
        keep(TARGET_STEPS, LAYERS - 1, ROWS, HIDDEN),
        keep(TARGET_STEPS, ROWS, SOURCE_STEPS),
    )


def initial_weights(training: Training) -> dict[str, np.ndarray]:
    """Parameters by PyTorch's names, uniform within ±1/√(last axis), numbers that float32 holds."""
    shapes = {name: tuple(p.shape) for name, p in _torch_model(training).named_parameters()}
    return {
        name: (
            random_for("weights", training.name, str(training.seed), name).uniform(-1, 1, shape) / shape[-1] ** 0.5
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def _read(model: Any, batch: Any, method: str) -> Any:
    """Teacher forcing with the given dropout: the same calls in both frameworks, but for the decoder's method."""
    encoded = model.encoder(batch.sources, batch.source_lens, keep_masks=batch.keep_encoder)
    memory = model.decoder.prepare(encoded, batch.source_lens)
    keep_masks = jax_attn.DecoderKeepMasks(batch.keep_layers, batch.keep_attention)
    return getattr(model.decoder, method)(batch.targets[:, :-1], memory, keep_masks=keep_masks)[0]


# A step in either framework

Tensors = dict[str, np.ndarray]


class Step(NamedTuple):
    """Everything that a step brought forth, by PyTorch's names; the parameters are those after it."""

    loss: Tensors
    gradients: Tensors
    norm: Tensors
    """Of all gradients together, before they are clipped."""
    clipped: Tensors
    exp_avg: Tensors
    exp_avg_sq: Tensors
    parameters: Tensors


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch on one thread: for tensors this small a second one is all waiting, tenfold where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class TorchSide:
    """`torch_ref`, trained by `torch.optim.Adam`."""

    def __init__(self, training: Training, dtype: str) -> None:
        self.training = training
        self.model = _torch_model(training).to(DTYPES[dtype])
        weights = {name: torch.tensor(array).to(DTYPES[dtype]) for name, array in initial_weights(training).items()}
        self.model.load_state_dict(weights)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=training.learning_rate)

    @_one_thread()
    def step(self, batch: Batch) -> Step:
        tensors: Any = Batch(*map(torch.tensor, batch))
        label_lens = (tensors.target_lens - 1).clamp(min=0)
        self.optimizer.zero_grad()
        logits, reduction = _read(self.model, tensors, "forward"), self.training.loss
        loss = torch_ref.masked_cross_entropy(logits, tensors.targets[:, 1:], label_lens, reduction=reduction).sum()
        loss.backward()
        gradients = self._named(lambda p: p.grad)
        norm = self._clip()
        clipped = self._named(lambda p: p.grad)
        self.optimizer.step()
        return Step(
            {"loss": to_numpy(loss)},
            gradients,
            {"norm": to_numpy(norm)},
            clipped,
            self._named(lambda p: self.optimizer.state[p]["exp_avg"]),
            self._named(lambda p: self.optimizer.state[p]["exp_avg_sq"]),
            self._named(lambda p: p),
        )

    def _clip(self) -> torch.Tensor:
        if self.training.clip_epsilon == 0:
            return clip_gradients(self.model, self.training.clip_norm)
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)  # with its 1e-6

    def _named(self, of: Callable[[Any], torch.Tensor]) -> Tensors:
        """Copies, as PyTorch goes on to write into its own."""
        return {name: to_numpy(of(parameter)).copy() for name, parameter in self.model.named_parameters()}


class Reference:
    """PyTorch's training in float64, as far as anyone has asked: three comparisons are with the same one."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.side = TorchSide(training, "float64")
        self.steps: list[Step] = []

    def __getitem__(self, number: int) -> Step:
        while len(self.steps) <= number:
            self.steps.append(self.side.step(draw_batch(self.training, len(self.steps))))
        return self.steps[number]


@lru_cache(maxsize=1)
def reference(training: Training) -> Reference:
    """The last training's is kept: 100 MB for 500 steps."""
    return Reference(training)


class JaxSide:
    """`jax_attn`, trained by `jax_attn.optim`."""

    def __init__(self, training: Training, dtype: str) -> None:
        self.dtype = dtype
        with jax.enable_x64(dtype == "float64"):
            self.template, self.differentiate = _program(training, dtype)
            # what makes them is an argument of the cache, so that a planted one is another
            adam, self.update = _optimizer(training, optimizers.clip_by_global_norm, optimizers.scale_by_adam)
            weights = {name: array.astype(dtype) for name, array in initial_weights(training).items()}
            self.params = from_torch(weights, self.template)
            self.state = adam.init(self.params)

    def step(self, batch: Batch) -> Step:
        with jax.enable_x64(self.dtype == "float64"):
            loss, gradients = self.differentiate(self.params, batch)
            norm, clipped, self.state, self.params = self.update(gradients, self.state, self.params)
            moments = (optax.tree.get(self.state, name) for name in ("mu", "nu"))
            trees = jax.device_get((gradients, clipped, *moments, self.params))
            gradients, clipped, mu, nu, params = map(to_torch, trees)
            return Step({"loss": np.asarray(loss)}, gradients, {"norm": np.asarray(norm)}, clipped, mu, nu, params)

    def take_over(self, step: Step) -> None:
        """Go on from PyTorch's parameters and moments; the number of steps is the same on both sides."""
        with jax.enable_x64(self.dtype == "float64"):
            self.params = from_torch(step.parameters, self.template)
            mu, nu = (from_torch(moment, self.template) for moment in (step.exp_avg, step.exp_avg_sq))
            self.state = optax.tree.set(self.state, mu=mu, nu=nu)


def _torch_model(training: Training) -> torch_ref.EncoderDecoder:
    return torch_ref.EncoderDecoder(
        torch_ref.Seq2SeqEncoder(**training.encoder),
        torch_ref.Seq2SeqAttentionDecoder(**training.decoder, encoder_size=training.encoder_size),
    ).train()


@cache
def _program(training: Training, dtype: str) -> tuple[Any, Callable[..., tuple[jax.Array, Any]]]:
    """The parameters' shapes, and a compiled function (parameters, batch) -> (loss, gradients)."""
    model = jax_attn.EncoderDecoder(
        jax_attn.Seq2SeqEncoder(**training.encoder, param_dtype=jnp.dtype(dtype)),
        jax_attn.Seq2SeqAttentionDecoder(**training.decoder, param_dtype=jnp.dtype(dtype)),
    )

    def objective(params: Any, batch: Any) -> jax.Array:
        features: Any = model.apply(params, batch, "features", method=_read)
        output_layer: Any = model.apply(params, method=lambda model: model.decoder.output_layer())
        kernel, bias = output_layer
        labels = batch.targets[:, 1:]
        counts = jax_attn.length_mask(jnp.maximum(batch.target_lens - 1, 0), labels.shape[1])
        weight = 1 / labels.shape[1] if training.loss == "sentences" else 1 / jnp.maximum(counts.sum(), 1)
        weights = jnp.where(counts, weight, 0).astype(dtype)
        return jax_attn.projected_cross_entropy(features, kernel, bias, labels, weights)[0]

    tokens = np.zeros((1, 1), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens), jax.jit(jax.value_and_grad(objective))


@cache
def _optimizer(
    training: Training, make_clip: Callable[..., Any], _scale_by_adam: Callable[..., Any]
) -> tuple[optax.GradientTransformation, Callable[..., tuple[Any, ...]]]:
    """Adam, and a compiled function (gradients, state, parameters) -> (norm, clipped, state, parameters)."""
    clip = make_clip(training.clip_norm, training.clip_epsilon)
    adam = optimizers.Adam().build(training.learning_rate)

    @jax.jit
    def update(gradients: Any, state: Any, params: Any) -> tuple[Any, ...]:
        clipped, _ = clip.update(gradients, clip.init(params))
        updates, state = adam.update(clipped, state, params)
        return optax.tree.norm(gradients), clipped, state, optax.apply_updates(params, updates)

    return adam, update


# The runs


class Worst(NamedTuple):
    """Where two runs were furthest apart."""

    quantity: str
    tensor: str
    step: int
    error: float


@dataclass(frozen=True)
class TrainingComparison:
    """Both frameworks side by side: how far apart they were at each step."""

    model: str
    mode: Literal["free-running", "re-synchronised"]
    dtype: str
    steps: int
    bound: float
    errors: dict[str, np.ndarray]
    """Of each quantity of `Step`, the worst tensor's error at each step."""
    worst: Worst
    losses: np.ndarray
    """PyTorch's, of each step."""
    clipped_steps: int
    """How many steps had gradients beyond the norm that is allowed."""
    seconds: float

    @property
    def failed(self) -> bool:
        return not all((errors <= self.bound).all() for errors in self.errors.values())

    def __str__(self) -> str:
        at = f"{self.worst.quantity} of {self.worst.tensor} at step {self.worst.step}"
        verdict = "exceeds" if self.failed else "within"
        return f"{self.model} | {self.mode} | {self.dtype} | {at}: {self.worst.error:.2e} {verdict} {self.bound:.0e}"


@dataclass(frozen=True)
class Drift:
    """Both frameworks in float32: how far each has come from PyTorch in float64."""

    model: str
    steps: int
    curves: dict[str, dict[str, np.ndarray]]
    """`curves[one of DRIFT_FACTORS]["JAX" or "PyTorch"]`: the error at each step."""
    seconds: float

    def median(self, quantity: str, framework: str) -> float:
        return float(np.median(self.curves[quantity][framework]))

    def bound(self, quantity: str) -> float:
        """How large JAX's median may be; see `drift`."""
        return DRIFT_FACTORS[quantity] * self.median(quantity, "PyTorch")

    @property
    def failed(self) -> bool:
        return not all(self.median(quantity, "JAX") <= self.bound(quantity) for quantity in self.curves)

    def __str__(self) -> str:
        medians = (
            f"{quantity} JAX {self.median(quantity, 'JAX'):.2e}, PyTorch {self.median(quantity, 'PyTorch'):.2e}, "
            f"allowed {self.bound(quantity):.2e}"
            for quantity in self.curves
        )
        return f"{self.model} | drift | float32 | {'; '.join(medians)}: {'exceeds' if self.failed else 'within'}"


def free_running(training: Training, steps: int = 200, progress: Progress | None = None) -> TrainingComparison:
    """From one start, each on its own, in float64: all within 1e-9.

    Every step adds a rounding error, and the steps after it carry that on: what is compared is whole trainings.
    """
    return _compare(training, "free-running", steps, 1e-9, progress)


def resynchronised(training: Training, steps: int = 500, progress: Progress | None = None) -> TrainingComparison:
    """Before each step JAX takes over PyTorch's parameters and moments; float64, all within 1e-11.

    Nothing adds up, so each of the steps is an independent proof, at the parameters where training has come to.
    """
    return _compare(training, "re-synchronised", steps, 1e-11, progress)


def drift(training: Training, steps: int = 200, progress: Progress | None = None) -> Drift:
    """Each framework in float32 against PyTorch in float64; JAX's drift has to be of PyTorch's own size.

    That is, median over the steps of e_jax ≤ factor · median of e_torch, with a factor for each of `DRIFT_FACTORS`.
    """
    started = time.perf_counter()
    curves: dict[str, dict[str, np.ndarray]] = {
        quantity: {framework: np.zeros(steps) for framework in ("JAX", "PyTorch")} for quantity in DRIFT_FACTORS
    }
    sides: dict[str, Any] = {"JAX": JaxSide(training, "float32"), "PyTorch": TorchSide(training, "float32")}
    for number in range(steps):
        truth = reference(training)[number]
        for framework, side in sides.items():
            step = side.step(draw_batch(training, number))
            errors = list(_errors(step.parameters, truth.parameters).values())
            curves["parameters"][framework][number] = np.median(errors)
            curves["worst parameter"][framework][number] = max(errors)
            curves["loss"][framework][number] = _errors(step.loss, truth.loss)["loss"]
        _tell(progress, number + 1, steps)
    return Drift(training.name, steps, curves, time.perf_counter() - started)


DRIFT_FACTORS = {"parameters": 2.0, "worst parameter": 16.0, "loss": 4.0}
"""How many times PyTorch's drift JAX's may be, by the medians over the steps.

A drift is one draw from its rounding; other draws show how much that means. Six seeds of both trainings, 150 steps:

                                                            JAX           Optax's own Adam  PyTorch, its rows exchanged
    parameters: of the tensors' errors, the median          0.99 to 1.45  6.7 to 26         0.87 to 1.08
    worst parameter: the largest, nearly always that of W_q 0.8 to 7.7    1.0 to 7.9        0.37 to 1.8
    loss: near the roundoff of the loss itself              1.1 to 2.4    12 to 36          0.82 to 1.21

The last column is PyTorch against itself, the rows of each batch in another order. The factors lie beyond what JAX
showed, and for two of the three quantities far below what steps 1e-5 too long do (Optax's Adam; see
`jax_attn.optim.scale_by_adam`). JAX's loss is above 1 probably because XLA's tanh is good to 4 ULP and PyTorch's to
half of one. The worst tensor's factor is wide, as a single tensor's drift is: it is there for a tensor that is wrong
altogether.
"""


class TrainingRun(NamedTuple):
    """One of the comparisons: `run(progress=…)`, or `run(steps=…)` for a shorter one."""

    name: str
    run: Callable[..., TrainingComparison | Drift]


RUNS = tuple(
    TrainingRun(f"{training.name}: {name}", partial(function, training))
    for training in TRAININGS
    for name, function in (("free-running", free_running), ("re-synchronised", resynchronised), ("drift", drift))
)


def _compare(
    training: Training,
    mode: Literal["free-running", "re-synchronised"],
    steps: int,
    bound: float,
    progress: Progress | None,
) -> TrainingComparison:
    started = time.perf_counter()
    errors: dict[str, list[float]] = {quantity: [] for quantity in Step._fields}
    worst = Worst("", "", 0, -1.0)
    losses, clipped_steps = [], 0
    ours, twin = JaxSide(training, "float64"), reference(training)
    for number in range(steps):
        if mode == "re-synchronised" and number > 0:
            ours.take_over(twin[number - 1])
        found, expected = ours.step(draw_batch(training, number)), twin[number]
        for quantity in Step._fields:
            tensor, error = _furthest(getattr(found, quantity), getattr(expected, quantity))
            errors[quantity].append(error)
            if error > worst.error:
                worst = Worst(quantity, tensor, number, error)
        losses.append(float(expected.loss["loss"]))
        clipped_steps += bool(expected.norm["norm"] > training.clip_norm)
        _tell(progress, number + 1, steps)
    arrays = {quantity: np.array(of_steps) for quantity, of_steps in errors.items()}
    seconds = time.perf_counter() - started
    return TrainingComparison(
        training.name, mode, "float64", steps, bound, arrays, worst, np.array(losses), clipped_steps, seconds
    )


def _furthest(ours: Tensors, twin: Tensors) -> tuple[str, float]:
    """The tensor that is furthest from its twin, and by how much."""
    errors = _errors(ours, twin)
    tensor = max(errors, key=errors.__getitem__)
    return tensor, errors[tensor]


def _errors(ours: Tensors, twin: Tensors) -> dict[str, float]:
    """By tensor; infinite where one side alone has it."""
    return {name: _error(ours.get(name), twin.get(name)) for name in sorted(ours.keys() | twin.keys())}


def _error(ours: np.ndarray | None, twin: np.ndarray | None) -> float:
    """max|a − b| / max|b|, absolute where b is 0, infinite where it is no number or the shapes differ."""
    if ours is None or twin is None or ours.shape != twin.shape:
        return np.inf
    scale = float(np.abs(twin).max()) or 1.0
    error = float(np.abs(ours.astype(np.float64) - twin).max()) / scale
    return error if np.isfinite(error) else np.inf


def _tell(progress: Progress | None, done: int, steps: int) -> None:
    if progress is not None:
        progress(done, steps)

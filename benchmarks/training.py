"""Training: steps of translators and of Transformers, W2's encoder alone, and the first step of a process.

Ours is set up as `python -m train.nmt` does it. PyTorch is imported where it is used: the workload `start` runs this
file in a fresh process, whose clock runs during the imports.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from benchmarks import records
from benchmarks.records import OURS, REFERENCE, TUNED, WITHOUT, Needs, Operation, Program, Ratio, Workload
from benchmarks.translators import BASE, EXAMPLE, SMALL, W1, W2, J, Translator, draw_normal, draw_params, draw_training
from train.data.batches import Examples
from train.machine.devices import distribute, make_mesh, shard_batches, start_jax
from train.training.optimizer import make_optimizer
from train.training.step import Losses, TrainState, label_lens, make_init, make_train_steps

COMPARED = 4
"""The losses of so many first steps are compared, without dropout: rounding errors drive later ones apart."""


class Training:
    """A translator in training on groups of batches, arrays `[steps, batch, ...]`."""

    def __init__(self, translator: Translator, groups: Sequence[Examples]) -> None:
        settings = translator.training
        self.model, self.optimizer = translator.build(), make_optimizer(settings, 1)
        self.mesh = make_mesh(batch_size=groups[0][0].shape[1])
        self.train_steps = make_train_steps(
            self.model, self.optimizer, settings.loss, 0, settings.label_smoothing, self.mesh
        )
        self.batches = [shard_batches(group, self.mesh) for group in groups]

    def start(self, params: Any = None) -> TrainState:
        """Make the state before the first step: with a copy of these parameters, or initialised as usual."""
        state = make_init(self.model, self.optimizer)(np.uint32(0), EXAMPLE)
        if params is not None:
            state = state._replace(params=jax.tree.map(jnp.array, params))
        return distribute(state, self.mesh)

    def run(self, state: TrainState) -> tuple[TrainState, list[Losses]]:
        """Take the steps of all groups; the losses are those of each group."""
        losses = []
        for batches in self.batches:
            state, group_losses = self.train_steps(state, batches)
            losses.append(group_losses)
        return state, losses


def train_ours(translator: Translator) -> Program:
    """Train as `python -m train.nmt` does."""
    start_jax(translator.model.num_hiddens)
    groups, plain = draw_training(translator.name), translator.without_dropout()
    training = Training(translator, groups)
    params = draw_params(translator.name, training.model)
    state = training.start(params)

    def run() -> TrainState:
        nonlocal state
        state, _ = training.run(state)
        return state

    def first_losses() -> dict[str, Any]:
        compared = training if plain == translator else Training(plain, groups[:1])
        _, (losses, *_) = compared.run(compared.start(params))
        return {"losses": (losses.nats / np.maximum(losses.tokens, 1))[:COMPARED]}

    return Program(run, first_losses)


def train_torch(translator: Translator, kind: str) -> Program:
    """Train torch_ref's model as the book does, or tuned: batches are cut to their longest sentences, Adam is fused."""
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.tuned import draw_module, reference_model, tuned_model
    from torch_ref.functional.losses import clip_gradients, sentence_losses

    groups, settings = draw_training(translator.name), translator.training
    is_reference, label_positions = kind == REFERENCE, groups[0].targets.shape[-1] - 1
    model = draw_module(reference_model(translator), translator.name)
    model = model if is_reference else tuned_model(model, kind)
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, fused=None if is_reference else True)

    def make_batch(sources: Any, source_lens: Any, targets: Any, target_lens: Any) -> list[torch.Tensor]:
        present = target_lens > 0  # without rows of padding
        S, T = (None, None) if is_reference else (source_lens.max(), target_lens.max())
        arrays = sources[present, :S], source_lens[present], targets[present, :T], target_lens[present]
        return [torch.tensor(x.astype(np.int64)) for x in arrays]

    batches = [make_batch(*batch) for group in groups for batch in zip(*group, strict=True)]

    def book_step(*batch: Any) -> Callable[[], Any]:
        losses, label_lens = sentence_losses(model, *batch)
        optimizer.zero_grad()
        losses.sum().backward()
        clip_gradients(model, 1.0)
        optimizer.step()
        return lambda: losses.detach().sum() * label_positions / label_lens.sum()

    def tuned_step(sources: Any, source_lens: Any, targets: Any, target_lens: Any) -> Callable[[], Any]:
        counts = torch.arange(1, targets.shape[1]) < target_lens[:, None]
        logits, labels = model.logits(sources, source_lens, targets[:, :-1], counts), targets[:, 1:][counts]
        nats = cross_entropy(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)
        optimizer.zero_grad()
        # The book's loss divides by all positions, although the batch is cut.
        (nats / (len(logits) if settings.loss == "tokens" else label_positions)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return lambda: cross_entropy(logits.detach(), labels)

    step = book_step if is_reference else tuned_step
    """Take a step. It returns a function that tells the loss before the step, in nats a token."""

    def run() -> None:
        model.train()
        for batch in batches:
            step(*batch)

    def first_losses() -> dict[str, Any]:
        model.eval()  # no dropout
        first = batches[: min(COMPARED, len(groups[0].sources))]
        return {"losses": torch.stack([step(*batch)() for batch in first])}

    return Program(run, first_losses)


# The limit


class Layer(NamedTuple):
    """A matrix of weights `[inner, columns]`, and the rows that are multiplied by it."""

    total: int  # one for each token
    rows: int  # how many of them at once: those of one step within a recurrence, all of them elsewhere
    inner: int
    columns: int


def products(layers: Iterable[Layer]) -> dict[Operation, float]:
    """Return the products of layers: forward, for the gradient of the rows, and for that of the weights, which can be
    one product for all steps."""
    needs: list[Needs] = []
    for total, rows, inner, columns in layers:
        forward, of_rows = Operation("product", (rows, inner, columns)), Operation("product", (rows, columns, inner))
        of_weights = Operation("product", (inner, total, columns))
        needs += [{forward: total / rows}, {of_rows: total / rows}, {of_weights: 1.0}]
    return records.add(*needs)


def recurrent_layers(
    total: int, rows: int, features: int, hiddens: int, layers: int, gates: int, directions: int
) -> list[Layer]:
    """List a recurrent stack's matrices. The inputs of all steps are multiplied at once, both directions together."""
    found: list[Layer] = []
    for _ in range(layers):
        found += [Layer(total, total, features, directions * gates * hiddens)]
        found += [Layer(total, rows, hiddens, gates * hiddens)] * directions
        features = directions * hiddens
    return found


def step_needs(translator: Translator) -> dict[Operation, float]:
    """Return what a training step needs, on average over the batches of a pass. Padding needs nothing.

    These are the products of the layers, Adam's seven passes over the parameters, and the attention: one tanh for each
    term of additive attention; the products of dot products (see `attention.dot`) and one exp for each of the weights.
    """
    attention: Needs
    groups, model, N = draw_training(translator.name), translator.model, translator.vocab_size
    E, H, layers = model.embed_size, model.num_hiddens, model.num_layers
    steps = sum(len(group.sources) for group in groups)
    rows = round(sum(group.source_lens.size for group in groups) / steps)
    read = round(sum(group.source_lens.sum() for group in groups) / steps)
    written = round(sum(int(label_lens(group).sum()) for group in groups) / steps)
    if model.family == "transformer":
        of_source = (E, 3 * E), (E, E), (E, H), (H, E)
        of_target = *of_source, (E, E), (E, E)
        matrices = [Layer(read, read, *shape) for shape in (*of_source, (E, 2 * E))] * layers
        matrices += [Layer(written, written, *shape) for shape in of_target] * layers
        matrices.append(Layer(written, written, E, N))  # the logits
        heads, lens = model.num_heads, (read // rows, written // rows)
        pairs = (lens[0], lens[0]), (lens[1], lens[1]), (lens[1], lens[0])
        count = float(layers * heads * rows)
        of_pairs = [
            {Operation("product", (q, E // heads, k)): 3 * count, Operation("product", (q, k, E // heads)): 4 * count}
            for q, k in pairs
        ]
        attention = records.add(*of_pairs, records.values("exp", count * sum(q * k for q, k in pairs)))
    else:
        gates, directions = 4 if model.cell == "lstm" else 3, 2 if model.bidirectional else 1
        V = H * directions  # the features of the encoder's outputs
        matrices = [
            *recurrent_layers(read, rows, E, H, layers, gates, directions),
            Layer(read, read, V, H),  # the keys
            Layer(written, written, E, gates * H),  # the embeddings' share of the first layer
            Layer(written, rows, (V if model.query == "previous" else H) + H, gates * H),  # the rest of it
            *[Layer(written, rows, 2 * H, gates * H)] * (layers - 1),
            Layer(written, rows, H, H),  # the queries
            *[Layer(written, rows, V + H, H)] * (model.query == "new"),  # the attentional vector
            Layer(written, written, H, N),  # the logits
        ]
        attention = records.values(
            "tanh", sum(int((group.source_lens * label_lens(group)).sum()) for group in groups) / steps * H
        )
    parameters = 2 * N * E + sum(layer.inner * layer.columns for layer in matrices)
    adam = {Operation("copy", (parameters,)): 7 / 2}  # a copy reads and writes
    return records.add(products(matrices), attention, adam)


def train(translator: Translator, *ratios: Ratio, unit: str = "step") -> Workload:
    """A pass over the batches of a translator. Only W1 and W2 have a reference, since the book has no such others."""
    groups = draw_training(translator.name)
    steps = sum(len(group.sources) for group in groups)
    units = steps if unit == "step" else sum(int(label_lens(group).sum()) for group in groups)
    implementations = {OURS: partial(train_ours, translator)}
    if translator in (W1, W2):
        implementations[WITHOUT] = partial(
            train_ours, replace(translator, model=replace(translator.model, attention="none"))
        )
        implementations[REFERENCE] = partial(train_torch, translator, REFERENCE)
    implementations |= {kind: partial(train_torch, translator, kind) for kind in TUNED}
    needs = {operation: times * steps / units for operation, times in step_needs(translator).items()}
    return Workload(f"{translator.name}_train", unit, implementations, ratios, needs, bound=2e-5, units=units)


# W2's encoder after its embedding: an LSTM of 2 layers, 256 → 512, on 64 sentences of 30, with gradients

SENTENCES, TIME, FEATURES, HIDDENS, LAYERS = 64, 30, 256, 512, 2


def draw_sequences() -> list[np.ndarray]:
    return [draw_normal("inputs", SENTENCES, TIME, FEATURES), draw_normal("direction", SENTENCES, TIME, HIDDENS)]


def jax_lstm() -> Program:
    """Run our LSTM, with the gradients of inputs and weights."""
    x, along = jax.device_put(draw_sequences())
    lstm = jax_attn.LSTM(num_hiddens=HIDDENS, num_layers=LAYERS)
    params = draw_params("recurrent", lstm, x)

    @jax.jit
    def both(params: Any, x: Any, along: Any) -> Any:
        outputs, pull_back = jax.vjp(lambda params, x: lstm.apply(params, x)[0], params, x)
        d_params, d_x = pull_back(along)
        return {"output": outputs, "gradient of inputs": d_x}, d_params

    return Program(lambda: both(params, x, along), lambda: both(params, x, along)[0])


def torch_lstm() -> Program:
    """Run `nn.LSTM`, which torch_ref's LSTM calls, with the gradients of inputs and weights."""
    import torch

    import torch_ref
    from benchmarks.tuned import draw_module

    x, along = (torch.tensor(array) for array in draw_sequences())
    x.requires_grad_()
    module = draw_module(torch_ref.LSTM(FEATURES, HIDDENS, LAYERS), "recurrent")

    def both() -> dict[str, Any]:
        outputs = module(x)[0]
        d_x, *_ = torch.autograd.grad(outputs, [x, *module.parameters()], along)
        return {"output": outputs, "gradient of inputs": d_x}

    return Program(both)


def recurrent(*ratios: Ratio) -> Workload:
    layers = recurrent_layers(SENTENCES * TIME, SENTENCES, FEATURES, HIDDENS, LAYERS, gates=4, directions=1)
    return Workload("recurrent", "call", {OURS: jax_lstm, "nn.LSTM": torch_lstm}, ratios, products(layers), bound=2e-5)


# The start

FIRST_STEP = """
import sys, time
import flax, jax, optax
start = time.perf_counter()
from benchmarks.training import take_first_step
take_first_step(sys.argv[1])
print(time.perf_counter() - start)
"""


def take_first_step(name: str) -> None:
    """Take one step of a new model, W1's or W2's, with its first batch."""
    translator = {"w1": W1, "w2": W2}[name]
    start_jax(translator.model.num_hiddens)
    training = Training(translator, [Examples(*(x[:1] for x in draw_training(name)[0]))])
    state, _ = training.run(training.start())
    assert int(state.step) == 1


def first_step(name: str) -> Program:
    """Take the first step of a translator in a fresh process, with everything compiled by an earlier one.

    The process imports JAX, Flax and Optax. Then the clock starts: our own imports, the initialisation of the model,
    and one step with one batch. JAX's compilation cache and Python's bytecode are in place. Memory is allocated as for
    a user: the benchmark's settings are taken out.
    """
    folder = tempfile.TemporaryDirectory(prefix="speed-")
    environment = {name: x for name, x in os.environ.items() if not name.startswith("MALLOC_")} | {
        "PYTHONDONTWRITEBYTECODE": "",
        "JAX_ENABLE_COMPILATION_CACHE": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run() -> float:
        command = [sys.executable, "-c", FIRST_STEP, name]
        environment["JAX_COMPILATION_CACHE_DIR"] = folder.name  # which lives as long as this function
        return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    return Program(run, dict)


def start(*ratios: Ratio) -> Workload:
    return Workload("start", "first step", {name: partial(first_step, name) for name in ("w1", "w2")}, ratios)


WORKLOADS = (
    train(
        W1,
        Ratio("w1_train_vs_reference", (REFERENCE,), 5),
        Ratio("w1_train_vs_tuned", TUNED, 2.5),
        Ratio("w1_attention_overhead", (OURS,), 1.3, below=WITHOUT),
    ),
    train(
        W2,
        Ratio("w2_train_vs_reference", (REFERENCE,), 1.6),
        Ratio("w2_train_vs_tuned", TUNED, 1.1),
        Ratio("w2_attention_overhead", (OURS,), 1.15, below=WITHOUT),
    ),
    train(J, Ratio("j_train_vs_tuned", TUNED, 1.1), unit="target token"),
    train(BASE, Ratio("base_train_vs_nn_transformer", TUNED, 1)),
    train(SMALL, Ratio("small_train_vs_nn_transformer", TUNED, 1)),
    recurrent(Ratio("recurrent_vs_nn_lstm", ("nn.LSTM",), 1)),
    start(Ratio("w1_start_seconds", ("w1",), 1.2, below=None), Ratio("w2_start_seconds", ("w2",), 2.5, below=None)),
)

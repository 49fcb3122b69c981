"""What is timed: each workload in our implementation, in PyTorch's and in others, with its ratios and their goals."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import jax_attn
import torch_ref
from benchmarks import inputs, limits
from benchmarks.inputs import (
    BASE,
    BEAM,
    BOS,
    EOS,
    SENTENCES,
    SMALL,
    STEPS,
    W1,
    W2,
    J,
    Translator,
    draw_normal,
    draw_training,
)
from benchmarks.our_training import EXAMPLE, Training, make_model
from benchmarks.records import COMPILED, OURS, REFERENCE, WITHOUT, Implementation, Operation, Program, Ratio, Workload
from benchmarks.tuned import Tuned, additive_score_to_compile
from benchmarks.tuned_transformer import TunedTransformer
from jax_attn.weights import from_torch, to_torch
from torch_ref.functional.losses import clip_gradients, sentence_losses
from train.config import SearchConfig
from train.machine.devices import start_jax
from train.translating.search import make_search

TUNED = ("tuned", COMPILED)
"""Plain PyTorch at its best, without and with torch.compile. A ratio takes the faster one."""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
"""Make glibc keep freed memory. Otherwise PyTorch's large tensors are unmapped and zeroed again at every step."""


def jax_program(compute: Callable[[], tuple[Mapping[str, Any], Any]]) -> Program:
    """Make a program of a function that returns what is compared, by name, and what else is computed."""
    return Program(
        lambda: jax.block_until_ready(compute()), lambda: {name: np.asarray(x) for name, x in compute()[0].items()}
    )


def torch_program(compute: Callable[[], Mapping[str, Tensor]]) -> Program:
    """Make a program of a function that returns what is compared, by name."""
    return Program(compute, lambda: {name: x.detach().numpy() for name, x in compute().items()})


# Functions of attention. With `along`, a shape, they are differentiated along a direction of this shape.

Draw = Callable[[], Mapping[str, np.ndarray]]


def draw_arrays(**shapes: tuple[int, ...]) -> Draw:
    """Draw the arguments of a function, in the process that needs them."""
    return lambda: {name: draw_normal(name, *shape) for name, shape in shapes.items()}


def in_jax(name: str, call: Callable[..., Any], draw: Draw, along: Any) -> Implementation:
    """Compute a function of arrays under jit, with their gradients."""

    @jax.jit
    def compute(arrays: Any, direction: Any) -> Any:
        if direction is None:
            return {"output": call(**arrays)}, None
        output, pull_back = jax.vjp(lambda arrays: call(**arrays), arrays)
        return {"output": output, **pull_back(direction)[0]}, None

    def build() -> Program:
        given = jax.device_put((draw(), None if along is None else draw_normal("direction", *along)))
        return jax_program(lambda: compute(*given))

    return Implementation(name, build)


def in_torch(name: str, call: Callable[..., Tensor], draw: Draw, along: Any) -> Implementation:
    """Compute a function of tensors, with their gradients."""

    def build() -> Program:
        tensors = {name: torch.tensor(x, requires_grad=along is not None) for name, x in draw().items()}
        direction = None if along is None else torch.tensor(draw_normal("direction", *along))
        function = torch.compile(call, dynamic=False) if name == COMPILED else call

        def compute() -> dict[str, Tensor]:
            output = function(**tensors)
            if direction is None:
                return {"output": output}
            gradients = torch.autograd.grad(output, list(tensors.values()), direction)
            return {"output": output, **dict(zip(tensors, gradients, strict=True))}

        return torch_program(compute)

    return Implementation(name, build)


def additive(name: str, along: Any, *ratios: Ratio) -> Workload:
    """Additive scores of 8 × 512 × 512 pairs of 128 features.

    Limit: one tanh for each of the terms, and as many again for the gradient, which must not store them.
    """

    def naive(queries: Any, keys: Any, w_v: Any) -> Any:
        return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v

    given = draw_arrays(queries=(8, 512, 128), keys=(8, 512, 128), w_v=(128,)), along
    implementations = (
        in_jax(OURS, jax_attn.additive_score, *given),
        in_torch(REFERENCE, torch_ref.additive_score, *given),
        in_torch(COMPILED, additive_score_to_compile, *given),
        in_jax("naive jnp", naive, *given),
    )
    needs = limits.values("tanh", 8 * 512 * 512 * 128 * (2 if along else 1))
    # The gradient of w_v is a sum of two million terms; PyTorch's is 4e-5 from float64's.
    return Workload(name, "call", implementations, ratios, needs, bound=1e-4)


def dot(name: str, along: Any, *ratios: Ratio) -> Workload:
    """Scaled dot-product attention: batch 8, 8 heads, length 1024, 64 features.

    Limit: for each head two products forward and five more backward: the scores again, and the gradients of the
    weights, values, queries and keys. (No exp is counted: that inside of SDPA cannot be measured alone.)
    """

    def ours(**arrays: Any) -> Any:
        return jax_attn.DotProductAttention().apply({}, **arrays, return_weights=False)[0]

    def sdpa(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(queries, keys, values)

    def jax_nn(queries: Any, keys: Any, values: Any) -> Any:  # its heads are the third axis
        return jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (queries, keys, values))).swapaxes(1, 2)

    given = draw_arrays(**dict.fromkeys(("queries", "keys", "values"), (8, 8, 1024, 64))), along
    implementations = (
        in_jax(OURS, ours, *given),
        in_torch(REFERENCE, lambda **tensors: torch_ref.DotProductAttention()(**tensors)[0], *given),
        in_torch("SDPA", sdpa, *given),
        in_jax("jax.nn", jax_nn, *given),
    )
    of_scores, of_values = (Operation("product", shape) for shape in ((1024, 64, 1024), (1024, 1024, 64)))
    needs = {of_scores: 64.0 * (3 if along else 1), of_values: 64.0 * (4 if along else 1)}
    return Workload(name, "call", implementations, ratios, needs, bound=2e-5)


LENS = np.array([128, 183, 238, 293, 348, 403, 458, 512], np.int32)


def tuned_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Apply PyTorch's softmax to the keys within the length; no length is 0."""
    within = torch.arange(scores.shape[-1]) < valid_lens[:, None, None]
    return scores.masked_fill(~within, -torch.inf).softmax(-1)


def masked_softmax(*ratios: Ratio) -> Workload:
    """Softmax of scores (8, 512, 512) with one length for each example.

    Limit: a score within its length is read, and needs one exp; every weight is written.
    """

    def naive(scores: Any, valid_lens: Any) -> Any:
        return jax.nn.softmax(scores, axis=-1, where=jnp.arange(scores.shape[-1]) < valid_lens[:, None, None])

    given = lambda: {"scores": 2 * draw_normal("scores", 8, 512, 512), "valid_lens": LENS}, None
    implementations = (
        in_jax(OURS, jax_attn.masked_softmax, *given),
        in_torch(REFERENCE, torch_ref.masked_softmax, *given),
        in_torch("tuned", tuned_softmax, *given),
        in_torch(COMPILED, tuned_softmax, *given),
        in_jax("naive jnp", naive, *given),
    )
    within, size = int(LENS.sum()) * 512, 8 * 512 * 512
    needs = {**limits.values("exp", within), Operation("copy", (size,)): (within + size) / (2 * size)}
    return Workload("masked_softmax", "call", implementations, ratios, needs, rounds=11)


# Models. All implementations have the same weights, drawn by PyTorch's names.


def draw_params(seed: str, scales: Any, init: Callable[..., Any], *example: Any) -> Any:
    """Draw a model's parameters in JAX; `init` takes the example."""
    params = jax.jit(init)(jax.random.key(0), *example)
    shapes = {name: x.shape for name, x in to_torch(params).items()}
    return from_torch(inputs.draw_weights(seed, shapes, scales), params)


def draw_translator(model: Any, seed: str, scales: Any = None) -> Any:
    """Draw a translator's parameters in JAX."""
    return draw_params(seed, scales, model.init, EXAMPLE.sources, EXAMPLE.targets, EXAMPLE.source_lens)


def load_weights(module: Any, seed: str, scales: Any = None) -> Any:
    """Draw a module's parameters in PyTorch, and return it."""
    drawn = inputs.draw_weights(seed, {name: tuple(x.shape) for name, x in module.state_dict().items()}, scales)
    module.load_state_dict({name: torch.tensor(x) for name, x in drawn.items()})
    return module


def torch_model(translator: Translator) -> torch_ref.EncoderDecoder:
    """Build torch_ref's model."""
    if translator.family == "transformer":
        halves = torch_ref.TransformerEncoder(**translator.encoder), torch_ref.TransformerDecoder(**translator.decoder)
        return torch_ref.EncoderDecoder(*halves)
    decoder = torch_ref.Seq2SeqAttentionDecoder(**translator.decoder, encoder_size=translator.encoder_size)
    return torch_ref.EncoderDecoder(torch_ref.Seq2SeqEncoder(**translator.encoder), decoder)


def tuned_model(translator: Translator, model: Any, kind: str) -> Any:
    """Return torch_ref's model in its fast form, and the module whose parameters that has."""
    if translator.family == "transformer":
        return (fast := TunedTransformer(model, kind == COMPILED)), fast
    return Tuned(model, kind == COMPILED), model


# W2's encoder after its embedding

TIME, FEATURES, HIDDENS, LAYERS = 30, 256, 512, 2

draw_sequences = draw_arrays(inputs=(SENTENCES, TIME, FEATURES), direction=(SENTENCES, TIME, HIDDENS))


def jax_lstm() -> Program:
    """Run our LSTM, with the gradients of inputs and weights."""
    x, along = jax.device_put(list(draw_sequences().values()))
    lstm = jax_attn.LSTM(num_hiddens=HIDDENS, num_layers=LAYERS)
    params = draw_params("recurrent", None, lstm.init, x)

    @jax.jit
    def both(params: Any, x: Any, along: Any) -> Any:
        outputs, pull_back = jax.vjp(lambda params, x: lstm.apply(params, x)[0], params, x)
        d_params, d_x = pull_back(along)
        return {"output": outputs, "gradient of inputs": d_x}, d_params

    return jax_program(lambda: both(params, x, along))


def torch_lstm() -> Program:
    """Run `nn.LSTM`, which torch_ref's LSTM calls, with the gradients of inputs and weights."""
    x, along = (torch.tensor(array) for array in draw_sequences().values())
    x.requires_grad_()
    module = load_weights(torch_ref.LSTM(FEATURES, HIDDENS, LAYERS), "recurrent")

    def compute() -> dict[str, Tensor]:
        outputs = module(x)[0]
        d_x, *_ = torch.autograd.grad(outputs, [x, *module.parameters()], along)
        return {"output": outputs, "gradient of inputs": d_x}

    return torch_program(compute)


def recurrent(*ratios: Ratio) -> Workload:
    """An LSTM of 2 layers, 256 → 512, on 64 sentences of 30, with gradients."""
    implementations = Implementation(OURS, jax_lstm), Implementation("nn.LSTM", torch_lstm)
    layers = limits.recurrent_layers(SENTENCES * TIME, SENTENCES, FEATURES, HIDDENS, LAYERS, gates=4, directions=1)
    return Workload("recurrent", "call", implementations, ratios, limits.training(layers), bound=2e-5)


# Training. The losses of the first steps are compared, without dropout: rounding errors drive later ones apart.

COMPARED = 4


def train_ours(translator: Translator, attention: str = "additive") -> Program:
    """Train as `python -m train.nmt` does."""
    start_jax(translator.width)
    groups, plain = draw_training(translator.name), translator.without_dropout()
    training = Training(translator, groups, attention)
    params = draw_translator(training.model, translator.name)
    state = training.start(params)

    def run() -> None:
        nonlocal state
        state, _ = training.run(state)

    def first_losses() -> dict[str, np.ndarray]:
        compared = training if plain == translator else Training(plain, groups[:1])
        _, (losses, *_) = compared.run(compared.start(params))
        return {"losses": np.asarray(losses.nats / np.maximum(losses.tokens, 1))[:COMPARED]}

    return Program(run, first_losses)


def train_torch(translator: Translator, kind: str) -> Program:
    """Train torch_ref's model as the book does, or tuned: batches are cut to their longest sentences, Adam is fused."""
    groups, plain = draw_training(translator.name), translator.without_dropout()
    is_reference, label_positions = kind == REFERENCE, groups[0].targets.shape[-1] - 1

    def make_batch(sources: Any, source_lens: Any, targets: Any, target_lens: Any) -> list[Tensor]:
        present = target_lens > 0  # without rows of padding
        S, T = (None, None) if is_reference else (source_lens.max(), target_lens.max())
        arrays = sources[present, :S], source_lens[present], targets[present, :T], target_lens[present]
        return [torch.tensor(x.astype(np.int64)) for x in arrays]

    batches = [make_batch(*batch) for group in groups for batch in zip(*group, strict=True)]

    def make_step(translator: Translator) -> Callable[[list[Tensor]], Callable[[], Tensor]]:
        """Make a training step. It returns a function that tells the loss before the step, in nats a token."""
        training = translator.training
        fast, model = tuned_model(translator, load_weights(torch_model(translator), translator.name).train(), kind)
        fused = None if is_reference else True
        optimizer = torch.optim.Adam(model.parameters(), lr=training["learning_rate"], fused=fused)

        def book_loss(*batch: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
            losses, label_lens = sentence_losses(model, *batch)
            return losses.sum(), lambda: losses.detach().sum() * label_positions / label_lens.sum()

        def tuned_loss(sources: Tensor, source_lens: Tensor, targets: Tensor, target_lens: Tensor) -> Any:
            counts = torch.arange(1, targets.shape[1]) < target_lens[:, None]
            logits, labels = fast.logits(sources, source_lens, targets[:, :-1], counts), targets[:, 1:][counts]
            nats = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=training["label_smoothing"])
            # The book's loss divides by all positions, although the batch is cut.
            loss = nats / (len(logits) if training["loss"] == "tokens" else label_positions)
            return loss, lambda: F.cross_entropy(logits.detach(), labels)

        def step(batch: list[Tensor]) -> Callable[[], Tensor]:
            loss, tell = (book_loss if is_reference else tuned_loss)(*batch)
            optimizer.zero_grad()
            loss.backward()
            if is_reference:
                clip_gradients(model, 1.0)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return tell

        return step

    step = make_step(translator)

    def run() -> None:
        for batch in batches:
            step(batch)

    def first_losses() -> dict[str, np.ndarray]:
        compared = step if plain == translator else make_step(plain)
        first = batches[: min(COMPARED, len(groups[0].sources))]
        return {"losses": torch.stack([compared(batch)() for batch in first]).numpy()}

    return Program(run, first_losses)


def train(translator: Translator, *ratios: Ratio, unit: str = "step", rounds: int = 5) -> Workload:
    """A pass over the batches of a translator. Only W1 and W2 have a reference, since the book has no such others."""
    groups = draw_training(translator.name)
    steps = sum(len(group.sources) for group in groups)
    units = steps if unit == "step" else sum(int(group.label_lens.sum()) for group in groups)
    theirs = partial(train_torch, translator)
    implementations = [Implementation(OURS, partial(train_ours, translator), units)]
    if translator in (W1, W2):
        implementations += [Implementation(WITHOUT, partial(train_ours, translator, "none"), units)]
        implementations += [Implementation(REFERENCE, partial(theirs, REFERENCE), units)]
    implementations += [Implementation(kind, partial(theirs, kind), units, KEEP_MEMORY) for kind in TUNED]
    of_step = limits.transformer_needs if translator.family == "transformer" else limits.translator_needs
    needs = {operation: times * steps / units for operation, times in of_step(translator).items()}
    return Workload(f"{translator.name}_train", unit, implementations, ratios, needs, 2e-5, rounds=rounds)


# Search


def search_ours(translator: Translator, beam_size: int) -> Program:
    """Encode and search as `python -m train.translate` does, all sentences at once; none ends before the last step."""
    model = make_model(translator)
    params = draw_translator(model, translator.name, inputs.SHARP)
    config = SearchConfig(beam_size=beam_size, length_penalty=0.0, min_len=STEPS, max_len=STEPS)
    translate = make_search((model,), config, STEPS)
    arguments = jax.device_put((*inputs.draw_sources(), np.arange(SENTENCES, dtype=np.int32)))

    def compute() -> Any:
        found = translate([params], *arguments)
        return {"ids": found.ids[:, 0], "scores": found.scores[:, 0]}, found

    return jax_program(compute)


def search_torch(translator: Translator, beam_size: int, kind: str) -> Program:
    """Search with the tuned model, all sentences at once, or greedily with torch_ref, four sentences one by one."""
    model = load_weights(torch_model(translator), translator.name, inputs.SHARP)
    sources, lens = (torch.tensor(x.astype(np.int64)) for x in inputs.draw_sources())
    fast, module = tuned_model(translator, model, kind)
    module.eval()

    @torch.inference_mode()
    def compute() -> dict[str, Tensor]:
        if kind == REFERENCE:
            memory = model.encode(sources[:4], lens[:4])
            given: Any = {"bos": BOS, "eos": EOS, "max_len": STEPS, "min_len": STEPS, "batch_size": 4}
            found = torch_ref.greedy_search(model.step, model.initial_state(memory), memory, **given)
            ids, scores = found.ids, found.scores
        else:
            ids, scores = fast.search(sources, lens, beam_size, BOS, EOS, STEPS)
        return {"ids": ids[:, 0], "scores": scores[:, 0]}

    return torch_program(compute)


def search(name: str, translator: Translator, beam_size: int, *ratios: Ratio) -> Workload:
    """A model translates 64 sentences in 30 steps. Random weights make some tokens equally likely up to rounding."""
    theirs = partial(search_torch, translator, beam_size)
    implementations = [Implementation(OURS, partial(search_ours, translator, beam_size), SENTENCES)]
    implementations += [Implementation(kind, partial(theirs, kind), SENTENCES, KEEP_MEMORY) for kind in TUNED]
    if translator == W2 and beam_size == 1:
        implementations += [Implementation(REFERENCE, partial(theirs, REFERENCE), 4, num_examples=4)]
    return Workload(name, "sentence", implementations, ratios, limits.search_needs(translator, beam_size), 2e-5, 0.03)


# The start

FIRST_STEP = """
import sys, time
import flax, jax, optax
start = time.perf_counter()
from benchmarks.our_training import take_first_step
take_first_step(sys.argv[1])
print(time.perf_counter() - start)
"""


def first_step(name: str) -> Program:
    """Take the first step of a translator in a fresh process, with everything compiled by an earlier one.

    The process imports JAX, Flax and Optax. Then the clock starts: our own imports, the initialisation of the model,
    and one step with one batch. JAX's compilation cache and Python's bytecode are in place.
    """
    folder = tempfile.TemporaryDirectory(prefix="speed-")
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "JAX_ENABLE_COMPILATION_CACHE": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run() -> float:
        command = [sys.executable, "-c", FIRST_STEP, name]
        environment["JAX_COMPILATION_CACHE_DIR"] = folder.name  # which lives as long as this function
        return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    return Program(run, lambda: {"took a step": np.array([run() > 0])})


def start(*ratios: Ratio) -> Workload:
    """The first training step of a fresh process, compiled by an earlier one."""
    implementations = [Implementation(name, partial(first_step, name)) for name in ("w1", "w2")]
    return Workload("start", "first step", implementations, ratios, rounds=7)


# The registry

ALL = (
    train(
        W1,
        Ratio("w1_train_vs_reference", (REFERENCE,), 5),
        Ratio("w1_train_vs_tuned", TUNED, 2.5),
        Ratio("w1_attention_overhead", (OURS,), 1.3, below=WITHOUT),
        rounds=7,
    ),
    train(
        W2,
        Ratio("w2_train_vs_reference", (REFERENCE,), 1.6),
        Ratio("w2_train_vs_tuned", TUNED, 1.1),
        Ratio("w2_attention_overhead", (OURS,), 1.15, below=WITHOUT),
    ),
    additive(
        "additive_forward",
        None,
        Ratio("additive_forward", (REFERENCE,), 25),
        Ratio("additive_forward_vs_compiled", (COMPILED,), 4),
        Ratio("additive_forward_memory", (REFERENCE,), 30, memory=True),
    ),
    additive(
        "additive_backward",
        (8, 512, 512),
        Ratio("additive_backward", (REFERENCE,), 18),
        Ratio("additive_backward_vs_compiled", (COMPILED,), 10),
        Ratio("additive_backward_memory", (REFERENCE,), 15, memory=True),
    ),
    dot("dot_forward", None, Ratio("dot_forward_vs_sdpa", ("SDPA",), 1)),
    dot("dot_backward", (8, 8, 1024, 64), Ratio("dot_backward_vs_sdpa", ("SDPA",), 1)),
    masked_softmax(Ratio("masked_softmax", (REFERENCE, *TUNED), 1)),
    recurrent(Ratio("recurrent_vs_nn_lstm", ("nn.LSTM",), 1)),
    train(J, Ratio("j_train_vs_tuned", TUNED, 1.1), unit="target token"),
    search("greedy", W2, 1, Ratio("greedy_vs_tuned", TUNED, 1.5), Ratio("greedy_vs_reference", (REFERENCE,), 30)),
    search("beam", W2, BEAM, Ratio("beam_vs_tuned", TUNED, 1.1)),
    train(BASE, Ratio("base_train_vs_nn_transformer", TUNED, 1)),
    train(SMALL, Ratio("small_train_vs_nn_transformer", TUNED, 1)),
    search("transformer_greedy", BASE, 1, Ratio("transformer_greedy_vs_tuned", TUNED, 1)),
    search("transformer_beam", BASE, BEAM, Ratio("transformer_beam_vs_tuned", TUNED, 1)),
    start(Ratio("w1_start_seconds", ("w1",), 1.2, below=None), Ratio("w2_start_seconds", ("w2",), 2.5, below=None)),
)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in ALL}


def build(workload: str, implementation: str) -> Program:
    """Build one implementation of a workload."""
    (found,) = (each for each in WORKLOADS[workload].implementations if each.name == implementation)
    return found.build()

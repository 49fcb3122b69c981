"""What a workload needs at least, and the programs that tell how fast JAX and PyTorch are at it.

A workload needs products of matrices, tanh, exp, and bytes read and written. The time of each is measured in the same
run, in both frameworks, at the shapes that occur in the workload, and the faster one counts; a product is measured
with its right matrix in either layout. The limit is the sum.
Nothing else is counted, so 100 % is out of reach for a whole model. Code that avoids tanh by arithmetic can exceed it.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from benchmarks.inputs import SENTENCES, STEPS, Translator, draw_sources, draw_training
from benchmarks.records import Needs, Operation, Program, Speeds


def add(*needs: Needs) -> dict[Operation, float]:
    """Add up what parts of a workload need."""
    total: dict[Operation, float] = {}
    for part in needs:
        for operation, times in part.items():
            total[operation] = total.get(operation, 0.0) + times
    return total


def values(name: str, count: float) -> dict[Operation, float]:
    """Return what so many values of tanh or exp need, computed in pieces that the cache holds."""
    return {Operation(name, (2**18,)): count / 2**18}


class Layer(NamedTuple):
    """A matrix of weights `[inner, columns]`, and the rows that are multiplied by it."""

    total: int
    """How many rows there are: one for each token."""
    rows: int
    """How many of them at once: those of one step within a recurrence, all of them elsewhere."""
    inner: int
    columns: int


def training(layers: Iterable[Layer]) -> dict[Operation, float]:
    """Return the products of layers: forward, for the gradient of the rows, and for that of the weights, which can be
    one product for all steps."""
    needs: list[Needs] = []
    for total, rows, inner, columns in layers:
        forward, of_rows = Operation("product", (rows, inner, columns)), Operation("product", (rows, columns, inner))
        of_weights = Operation("product", (inner, total, columns))
        needs += [{forward: total / rows}, {of_rows: total / rows}, {of_weights: 1.0}]
    return add(*needs)


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


def translator_needs(translator: Translator) -> dict[Operation, float]:
    """Return what a training step needs, on average over the batches of a pass. Padding needs nothing.

    These are the products, one tanh for each term of the attention, and Adam's seven passes over the parameters.
    """
    groups, decoder, V = draw_training(translator.name), translator.decoder, translator.encoder_size
    E, H, N, layers = (decoder[size] for size in ("embed_size", "num_hiddens", "vocab_size", "num_layers"))
    gates, inner = 4 if decoder["cell"] == "lstm" else 3, translator.encoder["num_hiddens"]
    steps = sum(len(group.sources) for group in groups)
    rows = round(sum(group.source_lens.size for group in groups) / steps)
    read = round(sum(group.source_lens.sum() for group in groups) / steps)
    written = round(sum(group.label_lens.sum() for group in groups) / steps)
    pairs = sum((group.source_lens * group.label_lens).sum() for group in groups) / steps
    matrices = [
        *recurrent_layers(read, rows, E, inner, layers, gates, V // inner),
        Layer(read, read, V, H),  # the keys
        Layer(written, written, E, gates * H),  # the embeddings' share of the first layer
        Layer(written, rows, (V if decoder["query"] == "previous" else H) + H, gates * H),  # the rest of it
        *[Layer(written, rows, 2 * H, gates * H)] * (layers - 1),
        Layer(written, rows, H, H),  # the queries
        *[Layer(written, rows, V + H, H)] * (decoder["query"] == "new"),  # the attentional vector
        Layer(written, written, H, N),  # the logits
    ]
    parameters = 2 * N * E + sum(layer.inner * layer.columns for layer in matrices)
    adam = {Operation("copy", (parameters,)): 7 / 2}  # a copy reads and writes
    return add(training(matrices), values("tanh", pairs * H), adam)


def transformer_needs(translator: Translator) -> dict[Operation, float]:
    """Return what a Transformer's training step needs, on average over the batches of a pass. Padding needs nothing.

    These are the products of all layers and of the attention (see `workloads.dot`), one exp for each of its weights,
    and Adam's passes over the parameters.
    """
    groups, (D, F, layers, N), heads = (
        draw_training(translator.name),
        _sizes(translator),
        translator.decoder["num_heads"],
    )
    steps = sum(len(group.sources) for group in groups)
    rows = sum(group.source_lens.size for group in groups) // steps
    read = round(sum(group.source_lens.sum() for group in groups) / steps)
    written = round(sum(group.label_lens.sum() for group in groups) / steps)
    of_source = (D, 3 * D), (D, D), (D, F), (F, D)
    of_target = *of_source, (D, D), (D, D)
    matrices = [Layer(read, read, *shape) for shape in (*of_source, (D, 2 * D))] * layers
    matrices += [Layer(written, written, *shape) for shape in of_target] * layers
    parameters = sum(layer.inner * layer.columns for layer in matrices) + 3 * N * D
    pairs = [(read // rows, read // rows), (written // rows, written // rows), (written // rows, read // rows)]
    count = float(layers * heads * rows)
    attention = [
        {Operation("product", (q, D // heads, k)): 3 * count, Operation("product", (q, k, D // heads)): 4 * count}
        for q, k in pairs
    ]
    exps, adam = values("exp", count * sum(q * k for q, k in pairs)), {Operation("copy", (parameters,)): 7 / 2}
    return add(training([*matrices, Layer(written, written, D, N)]), *attention, exps, adam)


def _sizes(translator: Translator) -> tuple[int, ...]:
    return tuple(translator.decoder[size] for size in ("embed_size", "num_hiddens", "num_layers", "vocab_size"))


def search_needs(translator: Translator, beam_size: int) -> dict[Operation, float]:
    """Return what the translation of a sentence needs: the decoder's products, which are those of all sentences in one
    step, and the tanh of W2's attention. (What a Transformer reads of its cache is not counted.)"""
    E, H, layers, N = _sizes(translator)
    if translator.family == "transformer":
        of_layer = [(E, 3 * E), (E, E), (E, E), (E, E), (E, H), (H, E)]
        each = [(shape, layers) for shape in of_layer] + [((E, N), 1)]
        return add(
            *({Operation("product", (beam_size * SENTENCES, *shape)): n * STEPS / SENTENCES} for shape, n in each)
        )
    shapes = (E + 2 * H, 4 * H), (2 * H, 4 * H), (H, H), (H, N)
    products = {Operation("product", (beam_size * SENTENCES, *shape)): STEPS / SENTENCES for shape in shapes}
    return add(products, values("tanh", beam_size * STEPS * draw_sources()[1].mean() * H))


def least_seconds(needs: Needs, speeds: Speeds) -> float | None:
    """Return the limit: each operation by the faster framework. None without needs, or if a speed is missing."""
    if not needs or not needs.keys() <= speeds.keys():
        return None
    return sum(times * min(speeds[operation].values()) for operation, times in needs.items())


def rates(needs: Needs, speeds: Speeds, name: str) -> dict[str, float]:
    """Return how many operations, values or bytes a second each framework reaches in the operations of this name."""
    parts = [(operation, times) for operation, times in needs.items() if operation.name == name and operation in speeds]
    total = sum(times * operation.amount for operation, times in parts)
    frameworks = speeds[parts[0][0]] if parts else ()
    return {each: total / sum(times * speeds[operation][each] for operation, times in parts) for each in frameworks}


def repeats(operation: Operation) -> int:
    """Return how often one program repeats an operation, so that starting the program costs little."""
    return math.ceil({"product": 1e9, "copy": 2**28}.get(operation.name, 2**23) / operation.amount)


def jax_program(operation: Operation, is_transposed: bool = False) -> Program:
    """Repeat an operation in one program; of a product, the form (Wᵀ xᵀ)ᵀ if `is_transposed`."""
    shape, steps = operation.shape, jnp.arange(repeats(operation)) * 1e-3

    def repeat(once: Callable[..., Any], first: Any, given: Any = None) -> Program:
        run = jax.jit(lambda first, given: jax.lax.scan(lambda x, i: (once(x, i, given), None), first, steps)[0])
        return Program(lambda: jax.block_until_ready(run(first, given)))

    def product(carry: tuple[Any, Any], _: Any, other: Any) -> tuple[Any, Any]:
        rows = carry[0].at[0, 0].add(carry[1][0, 0] * 1e-9)  # each product needs the one before
        return rows, other @ rows.T if is_transposed else rows @ other

    if operation.name == "product":
        order = slice(None, None, -1 if is_transposed else 1)
        first = jnp.full(shape[:2], 1 / shape[1]), jnp.zeros(shape[::2][order])
        return repeat(product, first, jnp.ones(shape[1:][order]))
    if operation.name == "copy":
        return repeat(lambda x, *_: x + 1, jnp.zeros(shape))
    function = getattr(jnp, operation.name)
    return repeat(lambda total, i, x: total + function(x + i).sum(), jnp.zeros(()), jnp.linspace(-2, 2, shape[0]))


def torch_program(operation: Operation, is_transposed: bool = False) -> Program:
    """Repeat an operation, with its result in memory that exists already; of a product, with W as Wᵀ in memory, which
    is how PyTorch keeps its weights, if `is_transposed`."""
    shape = operation.shape
    if operation.name == "product":
        other = torch.ones(shape[:0:-1]).T if is_transposed else torch.ones(shape[1:])
        once = partial(torch.mm, torch.ones(shape[:2]), other, out=torch.ones(shape[::2]))
    elif operation.name == "copy":
        once = partial(torch.ones(shape).copy_, torch.ones(shape))
    else:
        once = partial(getattr(torch, operation.name), torch.linspace(-2, 2, *shape), out=torch.ones(shape))

    def run() -> None:
        for _ in range(repeats(operation)):
            once()

    return Program(run)

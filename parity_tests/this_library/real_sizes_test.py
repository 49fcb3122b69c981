"""Everything public at the sizes that run, compiled as users compile it, against its own operations one by one.

Parity is proved small. A compiler may be wrong for large arrays alone, or for small axes beside long ones. So there are
two sizes: the scores of 512 queries and 512 keys, and 40,000 rows with 3 features, at which jaxlib 0.9 to 0.10 is wrong
without the flag that the programs set (see `jax_attn.compiler`).
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jax_attn
from jax_attn import functional
from parity_tests import compare_compiled
from parity_tests.your_port.compiled_test import wrong_if_compiled
from train.data.batches import Examples
from train.training.step import make_init, make_train_steps

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
WIDE, NARROW = (4, 512, 512, 64), (4000, 10, 12, 3)
"""Batch, queries, keys and features: 2,048 rows of 64 features, and 40,000 of 3."""
VOCAB = 8000
SEARCH = {"bos": 1, "eos": 2, "max_len": 12, "batch_size": 16}

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def draw(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def ints(low: int, high: int, *shape: int) -> Any:
    return jnp.asarray(RNG.integers(low, high, shape), jnp.int32)


def functions(batch: int, query: int, key: int, feature: int) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """The public functions; those of masks and positions alone have nothing that a fusion could change."""
    queries, keys, values = draw(batch, query, feature), draw(batch, key, feature), draw(batch, key, feature)
    scores, lens = draw(batch, query, key), ints(0, key + 1, batch)
    pair = (queries, keys)
    for name in ("dot", "scaled_dot", "cosine", "gaussian"):
        yield f"{name}_score", getattr(functional, f"{name}_score"), pair
    yield "additive_score", functional.additive_score, (*pair, draw(feature))
    yield "bilinear_score", functional.bilinear_score, (*pair, draw(feature, feature))
    yield "masked_softmax", functional.masked_softmax, (scores, lens)
    yield "masked_log_softmax", lambda x, lens: jnp.maximum(functional.masked_log_softmax(x, lens), -99), (scores, lens)
    yield "attend", functional.attend, (scores, values, lens)
    yield "attention", functional.attention, (*pair, values)
    blockwise = partial(functional.blockwise_attention, functional.scaled_dot_score)
    yield "blockwise_attention", lambda q, k, v, lens: blockwise(q, k, v, lens), (*pair, values, lens)
    yield "sequence_mask", functional.sequence_mask, (keys, lens)
    yield "dropout", functional.dropout, (scores, 0.3, jnp.asarray(RNG.random(scores.shape) < 0.7))
    hidden, rows = feature, batch * query
    state, gates = draw(rows, hidden), draw(rows, 4 * hidden)
    lstm, gru = draw(hidden, 4 * hidden), draw(hidden, 3 * hidden)
    yield "lstm_step", functional.lstm_step, ((state, draw(rows, hidden)), gates, lstm)
    yield "gru_step", functional.gru_step, (state, gates[:, : 3 * hidden], gru)
    step = partial(unroll_tanh, gru[:, :hidden])
    yield "unroll", lambda c, x, lens: functional.unroll(step, c, x, lens), (draw(batch, hidden), keys, lens)
    words = VOCAB if feature > 3 else 3
    short = (64, 16) if feature > 3 else (batch, query)
    labels, kernel, features = ints(0, words, *short), draw(feature, words), draw(*short, feature)
    yield "masked_cross_entropy", functional.masked_cross_entropy, (draw(*short, words), labels, ints(0, 9, short[0]))
    weights = draw(*short) ** 2
    yield (
        "projected_cross_entropy",
        functional.projected_cross_entropy,
        (features, kernel, draw(words), labels, weights),
    )


def unroll_tanh(kernel: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    new = jnp.tanh(x + carry @ kernel)
    return new, new


def modules(batch: int, query: int, key: int, feature: int) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    attended = draw(batch, query, feature), draw(batch, key, feature), draw(batch, key, feature), ints(1, key, batch)
    sequence = (attended[1], attended[3])
    for module, inputs in (
        (jax_attn.AdditiveAttention(feature), attended),
        (jax_attn.BilinearAttention(), attended),
        (jax_attn.CosineAttention(), attended),
        (jax_attn.DotProductAttention(), attended),
        (jax_attn.GaussianAttention(), attended),
        (jax_attn.MultiHeadAttention(feature if feature % 4 else 4 * feature, feature if feature % 4 else 4), attended),
        (jax_attn.LSTM(feature), (sequence[0][:, :12], ints(1, 13, batch))),
        (jax_attn.GRU(feature), (sequence[0][:, :12], ints(1, 13, batch))),
        (jax_attn.Embeddings(feature, VOCAB), (ints(0, VOCAB, batch, query),)),
        (jax_attn.FeedForward(4 * feature, feature), (attended[0],)),
        (jax_attn.PositionalEncoding(feature + feature % 2), (draw(batch, query, feature + feature % 2),)),
    ):
        variables = module.init(jax.random.key(0), *inputs)
        yield type(module).__name__, module.apply, (variables, *inputs)


RECURRENT = jax_attn.EncoderDecoder(
    jax_attn.Seq2SeqEncoder(VOCAB, 64, 96, num_layers=2, cell="lstm"),
    jax_attn.Seq2SeqAttentionDecoder(VOCAB, 64, 96, num_layers=2, cell="lstm"),
)
TRANSFORMER = jax_attn.EncoderDecoder(
    jax_attn.TransformerEncoder(VOCAB, 96, 192, num_layers=2, num_heads=4),
    jax_attn.TransformerDecoder(VOCAB, 96, 192, num_layers=2, num_heads=4),
)
FAMILIES = {"recurrent": RECURRENT, "Transformer": TRANSFORMER}
SIZES = {"wide": WIDE, "narrow": NARROW}
PROGRAMS = {(size, row[0]): row[1:] for size, n in SIZES.items() for kind in (functions, modules) for row in kind(*n)}


@pytest.mark.parametrize(("size", "name"), PROGRAMS, ids=map(" ".join, PROGRAMS))
def test_functions_and_modules(size: str, name: str) -> None:
    report = compare_compiled(*PROGRAMS[size, name], name=name)
    assert report, str(report)
    assert len({m.variant for m in report.measurements}) == 2  # alone, and with gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_step(family: str) -> None:
    model, optimizer = FAMILIES[family], optax.adam(1e-3)
    ids = Examples(ints(1, VOCAB, 1, 32, 15), ints(1, 16, 1, 32), ints(1, VOCAB, 1, 32, 14), ints(2, 15, 1, 32))
    state = make_init(model, optimizer)(np.uint32(0), jax.tree.map(lambda x: x[0], ids))
    report = compare_compiled(make_train_steps(model, optimizer), (state, ids), gradients=False, name=family)
    assert report, str(report)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("search", ["greedy_search", "beam_search"])
def test_a_search(family: str, search: str) -> None:
    model, sources = FAMILIES[family], ints(3, VOCAB, 16, 12)
    variables = model.init(jax.random.key(0), sources, sources, ints(1, 13, 16))
    options = SEARCH | ({"beam_size": 4} if search == "beam_search" else {})

    def translate(variables: Any, sources: Any) -> Any:
        memory = model.apply(variables, sources, method="encode")
        state = model.apply(variables, memory, options["max_len"], method="initial_state")
        step = partial(model.apply, variables, method="step")
        return getattr(jax_attn, search)(step, state, memory, **options)

    report = compare_compiled(translate, (variables, sources), gradients=False, name=search)
    assert report, str(report)


def test_a_wrong_program_is_seen() -> None:
    def wrong(scores: Any) -> Any:
        return functional.masked_softmax(wrong_if_compiled.bind(scores))

    report = compare_compiled(wrong, draw(*WIDE[:3]), gradients=False)
    assert [m.tensor for m in report.failed] == ["result"]
    assert "wrong_if_compiled in real_sizes_test.py" in str(report)


def test_every_public_function_and_module_is_here() -> None:
    exact = {"attention_mask", "causal_mask", "length_mask", "sinusoidal_positions", "ensemble", "sample_search"}
    exact |= {"build_model"}  # it makes the models that are here
    models = {type(part).__name__ for model in FAMILIES.values() for part in (model, model.encoder, model.decoder)}
    tested = {name for _, name in PROGRAMS} | models | {"greedy_search", "beam_search", "MLPAttention", "Attention"}
    records = (tuple, jax_attn.search.Stationary)
    public = {name: getattr(jax_attn, name) for name in jax_attn.__all__ if not name.startswith("show_")}
    classes = {n for n, x in public.items() if inspect.isclass(x) and not issubclass(x, nn.Module)}
    assert all(issubclass(public[name], records) or hasattr(public[name], "__dataclass_fields__") for name in classes)
    assert set(public) - classes - exact == tested & set(public) - classes

"""Properties of attention, recurrence and loss that hold for any numbers, checked in both libraries alike.

A property draws its numbers from a generator, and raises AssertionError if it does not hold. In float64 two ways to
compute the same value differ by rounding alone, so that 1e-11 of numbers around 1 is a difference. What must not be
read must leave every bit as it is, in every dtype.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import torch

from parity_tests.this_library.properties.subjects import (
    LONG,
    SHORT,
    SIZES,
    SUBJECTS,
    VOCAB,
    Arrays,
    Edit,
    Sample,
    Side,
    Subject,
    draw_sample,
)
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import Transform, forget_programs, without_jit

TOLERANCE = 1e-11
BATCH = SIZES["B"]


# Comparisons and edits


def assert_close(found: Arrays, expected: Arrays) -> None:
    """Require equality up to rounding."""
    for name, wanted in expected.items():
        x = found[name]
        assert x.shape == wanted.shape, f"{name}: shape {x.shape}, not {wanted.shape}"
        assert not np.isnan(wanted).any(), f"{name} has NaN"
        error = relative_error(x, wanted)
        assert error <= TOLERANCE, f"{name}: {error:.3g} apart"


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    """Require equality to the bit, and no NaN on either side."""
    for name, wanted in expected.items():
        assert not np.isnan(wanted).any(), f"{name} has NaN"
        assert np.array_equal(found[name], wanted), f"{name} changed"


def taker(subject: Subject, chosen: np.ndarray) -> Edit:
    """Make the edit that takes the positions `chosen[b]` of each example b."""

    def take(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        batch = subject.letters(name).index("B")
        lead = np.moveaxis(array, (batch, axis), (0, 1))
        return np.moveaxis(lead[np.arange(len(chosen))[:, None], chosen], (0, 1), (batch, axis))

    return take


def clearer(subject: Subject, stays: np.ndarray) -> Edit:
    """Make the edit that puts 0, or a result's masked value, wherever `stays`, `[B, positions]`, is False."""

    def clear(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        sizes = {"B": stays.shape[0], subject.positions: stays.shape[1]}
        places = stays.reshape([sizes.get(letter, 1) for letter in subject.letters(name)])
        return np.where(places, array, subject.masked if name in subject.results else 0.0)

    return clear


def lengths_as_mask(sample: Sample) -> Sample:
    """Express the lengths by the mask, for properties that change the positions' order."""
    if not sample.subject.hides:
        return sample
    mask = np.broadcast_to(sample.counts, sample.inputs["mask"].shape)
    return sample.with_inputs(mask=mask, valid_lens=np.full(BATCH, sample.length, np.int32))


def draw_orders(rng: np.random.Generator) -> np.ndarray:
    """Draw an order of the positions for each example."""
    return np.argsort(rng.random((BATCH, LONG)), axis=1)


def draw_unreadable(rng: np.random.Generator, name: str, like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Draw what must not be read."""
    if like.dtype == bool:
        return rng.random(shape) < 0.5
    if name == "labels":
        return rng.choice([-100, -1, 0, 10**6], shape).astype(like.dtype)
    if like.dtype.kind == "i":  # the token that occurs in padding only
        return np.full(shape, VOCAB - 1, like.dtype)
    kinds = [np.nan, np.inf, -np.inf, 3e38]
    return rng.choice(kinds if rng.random() < 0.25 else [rng.choice(kinds[:3])], shape)


# The properties


def masking_is_deleting(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """What is masked for all queries of an example may as well not be there. (A score has no mask: deleting a key
    deletes its scores.)"""
    full, letter = draw_sample(subject, rng, dtype), subject.positions
    kept = np.sort(draw_orders(rng)[:, :SHORT], axis=1)
    stays = (np.arange(LONG) == kept[:, :, None]).any(1)
    delete, clear = taker(subject, kept), clearer(subject, stays)
    if subject.hides:
        full = lengths_as_mask(full)
        mask = full.inputs["mask"]
        full = full.with_inputs(mask=mask & (stays[:, None] if mask.ndim == 3 else stays))
    else:
        full = replace(full, directions=full.edit(letter, clear).directions)
    few = full.edit(letter, delete)
    if subject.hides:
        few = few.with_inputs(valid_lens=np.full(BATCH, SHORT, np.int32))
    found = full.run(side)
    assert_close(subject.edit(found, letter, delete), few.run(side))
    if subject.hides:
        assert_same_bits(found, subject.edit(found, letter, clear))


def padding_changes_nothing(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """More padding, whatever it holds, changes nothing, and nothing comes out of it."""
    short, letter = draw_sample(subject, rng, dtype, SHORT), subject.positions

    def pad(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        shape = (*array.shape[:axis], LONG - SHORT, *array.shape[axis + 1 :])
        more = rng.normal(size=shape) if name in subject.results else draw_unreadable(rng, name, array, shape)
        return np.concatenate([array, more], axis)

    found = short.edit(letter, pad).run(side)
    cut = subject.edit(found, letter, lambda name, array, axis: np.take(array, range(SHORT), axis))
    assert_close(cut, short.run(side))
    clear = clearer(subject, np.broadcast_to(np.arange(LONG) < SHORT, (BATCH, LONG)))
    assert_same_bits(found, subject.edit(found, letter, clear))


def order_of_keys_is_nothing(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """Keys in another order: the weights in that order, the same context."""
    sample, letter = lengths_as_mask(draw_sample(subject, rng, dtype)), subject.positions
    reorder = taker(subject, draw_orders(rng))
    assert_close(sample.edit(letter, reorder).run(side), subject.edit(sample.run(side), letter, reorder))


def batch_is_its_rows(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """A batch gives what its examples give one at a time; the gradient of what they share is a sum."""
    sample = draw_sample(subject, rng, dtype)
    rows = [sample.edit("B", lambda _, x, axis, b=b: np.take(x, [b], axis)).run(side) for b in range(BATCH)]  # type: ignore[misc]
    axes = {name: subject.letters(name).find("B") for name in rows[0]}
    joined = {
        name: np.concatenate([row[name] for row in rows], axis) if axis >= 0 else np.sum([row[name] for row in rows], 0)
        for name, axis in axes.items()
    }
    assert_close(sample.run(side), joined)


def jit_is_no_jit(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """The compiled program computes what the operations compute one by one."""
    sample = draw_sample(subject, rng, dtype)
    assert_close(sample.run(side), sample.run(side, without_jit))


def vmap_is_a_batch(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """The program for one example without a batch axis, mapped by vmap, gives what the batch gives."""
    sample = draw_sample(subject, rng, dtype)
    mapped = sample.run(side, over_examples(subject.name))
    assert_close({n: x if "B" in subject.letters(n) else x.sum(0) for n, x in mapped.items()}, sample.run(side))


@cache
def over_examples(subject_name: str) -> Transform:
    """Map the program for one example over the batch; what examples share has a gradient for each of them."""
    subject = SUBJECTS[subject_name]

    def axes(names: Any, shared: int | None) -> dict[str, int | None]:
        letters = {name: subject.letters(name) for name in names}
        return {name: found.index("B") if "B" in found else shared for name, found in letters.items()}

    def transform(program: Callable[..., Any]) -> Callable[..., Any]:
        def run(weights: Any, moved: Any, constants: Any, directions: Any) -> Any:
            in_axes = (None, axes(moved, None), (axes(constants[0], None), None), axes(directions, None))
            out_axes = (axes(directions, 0), axes([*weights, *moved], 0))
            return jax.vmap(program, in_axes, out_axes)(weights, moved, constants, directions)

        return jax.jit(run)

    return transform


def what_is_masked_stays_out(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """NaN and infinities where nothing attends change no bit of a result or a gradient, and get gradient 0."""
    sample = draw_sample(subject, rng, dtype)
    hidden = {name: places for name in sample.inputs if (places := sample.hidden(name)) is not None}
    inputs = {
        name: np.where(places, draw_unreadable(rng, name, x := sample.inputs[name], x.shape), x)
        for name, places in hidden.items()
    }
    weights = {name: x.copy() for name, x in sample.weights.items()}
    for name in {"embedding.weight", "encoder.embedding.weight"} & weights.keys() if "tokens" in hidden else ():
        weights[name][VOCAB - 1] = draw_unreadable(rng, name, weights[name], weights[name][VOCAB - 1].shape)
    found = replace(sample.with_inputs(**inputs), weights=weights).run(side)
    assert_same_bits(found, sample.run(side))
    for name in hidden:
        gradient = found.get(f"gradient of {name}", np.zeros(()))
        assert not (hidden[name] & (gradient != 0)).any(), f"gradient of {name} where nothing attends"


def empty_rows_are_empty(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """A query that may attend to nothing, a sequence of length 0: zero weights and context, zero finite gradients."""
    empty = rng.integers(BATCH)
    sample = draw_sample(subject, rng, dtype, lens=np.where(np.arange(BATCH) == empty, 0, rng.integers(0, LONG + 1, 3)))
    for name, array in sample.run(side).items():
        letters, source = subject.letters(name), name.removeprefix("gradient of ")
        assert not np.isnan(array).any(), f"{name} has NaN"
        if "B" not in letters:
            assert np.isfinite(array).all() or name in subject.results, f"{name} is not finite"
        elif name != "logits":
            expected: Any = subject.masked if name in subject.results and subject.positions in letters else 0.0
            if source in ("h", "c"):  # an initial state is the final one of an empty sequence
                expected = sample.directions[f"final {source}"].take([empty], letters.index("B"))
            elif name.startswith("final ") and name[-1] in sample.inputs:
                expected = sample.inputs[name[-1]].take([empty], letters.index("B"))
            row = array.take([empty], letters.index("B"))
            assert np.array_equal(row, np.broadcast_to(expected, row.shape)), f"{name} of an empty row"


def uniform_rows_are_uniform(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """With `empty_row="uniform"` an empty row weighs all keys alike, and none of its scores has a gradient."""
    found = draw_sample(subject, rng, dtype, lens=np.zeros(BATCH, int)).run(side)
    assert_close(found, {"weights": np.full((BATCH, SIZES["Q"], LONG), 1 / LONG)})
    for name in {f"gradient of {name}" for name in ("scores", "queries", "keys")} & found.keys():
        assert not found[name].any(), name


def nothing_that_counts_moves_nothing(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """A batch of padding alone: loss 0, every gradient exactly 0, and an optimiser's step that changes no bit."""
    sample = draw_sample(subject, rng, dtype, lens=np.zeros(BATCH, int))
    if "source_lens" in subject.inputs:
        sample = sample.with_inputs(source_lens=rng.integers(0, 5, BATCH).astype(np.int32))
    found = sample.run(side)
    for name, array in found.items():
        assert not array.any(), f"{name} of a batch of padding"
    if sample.weights:
        step = _torch_step if side == "torch_ref" else _jax_step
        gradients = {name: found[f"gradient of {name}"] for name in sample.weights}
        assert_same_bits(step(sample.weights, gradients), sample.weights)


def _torch_step(weights: Arrays, gradients: Arrays) -> Arrays:
    """Take a step of Adam in PyTorch."""
    parameters = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in weights.items()}
    for name, parameter in parameters.items():
        parameter.grad = torch.tensor(gradients[name])
    torch.optim.Adam(parameters.values(), 0.005).step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def _jax_step(weights: Arrays, gradients: Arrays) -> Arrays:
    """Take a step of Adam in Optax."""
    with jax.enable_x64(any(x.dtype == np.float64 for x in weights.values())):
        params, adam = jax.device_put(dict(weights)), optax.adam(0.005)
        updates, _ = adam.update(jax.device_put(dict(gradients)), adam.init(params), params)
        return jax.device_get(optax.apply_updates(params, updates))


def large_scores_give_weights(side: Side, subject: Subject, rng: np.random.Generator, dtype: str) -> None:
    """Scores as large as the dtype holds: weights in [0, 1] that sum to 1 within K u, and finite gradients."""
    sample, roundoff = draw_sample(subject, rng, dtype), unit_roundoff(dtype)
    special, largest = np.array([0.0, 1.0, -1.0, rng.uniform(-1, 1)]), 6e4 if dtype == "float16" else 1e38
    scores = rng.choice(special[rng.integers(0, 4, 3)], sample.inputs["scores"].shape) * largest
    found = sample.with_inputs(scores=scores).run(side)
    weights = found["weights"]
    if subject.masked == -np.inf:
        assert (weights <= 0).all(), "a logarithm of a weight above 0"
        weights = np.exp(weights)
    assert ((weights >= 0) & (weights <= 1 + LONG * roundoff)).all(), "a weight outside [0, 1]"
    # In log space an error of u max|log w| is one of the weight's: those that count are at most log K.
    slack = LONG * roundoff * (1 + np.log(LONG) if subject.masked else 1)
    assert (np.abs(weights.sum(-1) - sample.counts.any(-1)) <= slack).all(), f"weights sum to {weights.sum(-1)}"
    for name, array in found.items():
        assert name in subject.results or np.isfinite(array).all(), f"{name} is not finite"


# The table


@dataclass(frozen=True)
class Property:
    """A property, and the subjects it holds for."""

    check: Callable[[Side, Subject, np.random.Generator, str], None]
    subjects: tuple[str, ...]
    slow: tuple[str, ...] = ()
    """The subjects whose programs take long to compile: the quick tests leave them out."""
    sides: tuple[Side, ...] = ("jax_attn", "torch_ref")
    dtypes: tuple[str, ...] = ("float64",)
    share: float = 1.0
    """How many cases it gets, relative to the others."""

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", " ")


def _names(keep: Callable[[Subject], bool]) -> tuple[str, ...]:
    return tuple(name for name, subject in SUBJECTS.items() if keep(subject))


_SETS = _names(lambda s: ("mask" in s.inputs or not s.hides) and "sentences" not in s.name)
"""Their positions have no order, and are masked by a mask or not at all."""
_PROPER = _names(lambda s: s.hides and not s.uniform)
"""Those that mask, and give an empty row zeros."""
_ROWS = _names(lambda s: all("B" in letters for letters in s.results.values()))
_PADDED = tuple(name for name in _PROPER if "sentences" not in name)
_LOSSES = _names(lambda s: s.name.startswith("masked_cross") or s.name == "EncoderDecoder, loss")
_MODELS = ("EncoderDecoder", "EncoderDecoder, loss")
_SLOW = (*_MODELS, "LSTM, both directions", "Seq2SeqEncoder")
_LIGHT = ("masked_softmax", "attend", "additive_score", "AdditiveAttention", "MultiHeadAttention")
_HEAVY = tuple(name for name in SUBJECTS if name not in _LIGHT)
_ROWS_HEAVY = tuple(name for name in _HEAVY if name not in ("GRU, two layers", "bilinear_score"))
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_JAX: tuple[Side, ...] = ("jax_attn",)

PROPERTIES = (
    Property(masking_is_deleting, tuple(name for name in _SETS if "uniform" not in name)),
    Property(padding_changes_nothing, _PADDED, _SLOW),
    Property(order_of_keys_is_nothing, _SETS),
    Property(batch_is_its_rows, _ROWS, _ROWS_HEAVY),
    Property(jit_is_no_jit, tuple(SUBJECTS), _HEAVY, _JAX, share=0.02),
    Property(vmap_is_a_batch, tuple(name for name in _ROWS if name not in _MODELS), _HEAVY, _JAX),
    Property(what_is_masked_stays_out, _names(lambda s: s.hides), _MODELS, dtypes=_DTYPES[:3], share=2.0),
    Property(empty_rows_are_empty, tuple(name for name in _PROPER if name != "EncoderDecoder, loss"), _MODELS),
    Property(uniform_rows_are_uniform, _names(lambda s: s.uniform), share=0.5),
    Property(nothing_that_counts_moves_nothing, _LOSSES, dtypes=_DTYPES[:2]),
    Property(large_scores_give_weights, ("masked_softmax", "masked_log_softmax", "attend"), dtypes=_DTYPES, share=2.0),
)


def check_property(chosen: Property, subject: str, cases: int, seed: int = 0) -> None:
    """Check a property of a subject on this many cases, on every side; the same ones for the same seed."""
    for case in range(cases):
        dtype = chosen.dtypes[case % len(chosen.dtypes)]
        for side in chosen.sides:
            rng = np.random.default_rng([seed, zlib.crc32(f"{chosen.name}/{subject}".encode()), case])
            try:
                chosen.check(side, SUBJECTS[subject], rng, dtype)
            except AssertionError as error:
                where = f"{chosen.name}, {subject}, {side}, {dtype}, case {case} of seed {seed}"
                raise AssertionError(f"{where}: {error}") from None


def check_subject(subject: str, per_share: float, seed: int) -> int:
    """Check all properties of a subject in a process of its own; return the number of cases."""
    torch.set_num_threads(1)
    counts = {chosen: math.ceil(chosen.share * per_share) for chosen in PROPERTIES if subject in chosen.subjects}
    for chosen, cases in counts.items():
        check_property(chosen, subject, cases, seed)
    forget_programs()
    return sum(counts.values())

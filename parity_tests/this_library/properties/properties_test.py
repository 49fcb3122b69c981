"""Properties of attention, recurrence and loss that hold for any numbers.

In float64 two ways to compute the same value differ by rounding alone. What must not be read must leave every bit as it
is, in every dtype. Beside each property stands a fault that it must notice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from parity_tests.this_library.faults.fault import Fault, Make, instead, unchanged
from parity_tests.this_library.faults.fault import given as argument
from parity_tests.this_library.faults.in_jax_attn import one_more, unshifted
from parity_tests.this_library.properties.subjects import (
    LONG,
    SHORT,
    SIZES,
    SUBJECTS,
    VOCAB,
    Arrays,
    Edit,
    Sample,
    Subject,
    over_examples,
    program_of,
)
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff

TOLERANCE = 1e-11
SMALLEST = 1e-2
"""The smallest size by which an error is measured. Where a softmax is nearly one-hot, products of numbers around 10
cancel in its gradients and leave 2e-14 of rounding, which is 2e-12 here."""
BATCH = SIZES["B"]
Draw = Callable[..., Any]
"""Draw from a strategy of hypothesis."""


@dataclass(frozen=True)
class Property:
    """A property, the subjects it holds for, and a fault that breaks it."""

    check: Callable[[Draw, Subject, str], None]
    """(draw, subject, dtype): raises AssertionError where it does not hold."""
    subjects: tuple[str, ...]
    slow: tuple[str, ...]
    """The subjects whose programs take long to compile: the quick tests leave them out."""
    dtypes: tuple[str, ...]
    fault: Fault
    """It must be noticed in the subject called as the fault's case."""


PROPERTIES: list[Property] = []


def holds_for(
    keep: Callable[[Subject], bool],
    broken_by: Fault,
    slow: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = ("float64",),
) -> Any:
    """Add a property to the list."""

    def add(check: Any) -> Any:
        names = tuple(name for name, subject in SUBJECTS.items() if keep(subject))
        PROPERTIES.append(Property(check, names, slow, dtypes, broken_by))
        return check

    return add


def planted(on: str, make: Make, at: str = "") -> Fault:
    """Name the fault's subject and the function that is wrong."""
    return Fault("", on, make, at or f":{on.partition(',')[0]}")


# What is drawn


def draw_sample(
    draw: Draw, subject: Subject, dtype: str = "float64", length: int = LONG, lens: np.ndarray | None = None
) -> Sample:
    """Draw a case: lengths from 0, a mask or none, and numbers with ties and zeros among normal ones."""
    rng, scale = draw_generator(draw), draw(st.sampled_from([1.0, 0.1, 3.0]))
    special = np.array([0.0, 0.0, *rng.uniform(-1, 1, 2), rng.choice([-1.0, 1.0])])
    lens = draw_lens(draw) if lens is None else lens

    def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name == "mask":
            drawn: np.ndarray = draw(st.one_of(st.just(np.ones(shape, bool)), arrays(bool, shape)))
            return drawn
        if name in ("tokens", "targets", "labels"):
            return rng.integers(0, SIZES["N"] if name == "labels" else VOCAB - 1, shape).astype(np.int32)
        if name in ("valid_lens", "source_lens"):
            return np.minimum(lens, length).astype(np.int32)
        return np.where(rng.random(shape) < 0.25, rng.choice(special, shape), rng.normal(size=shape)) * scale

    inputs = {name: numbers(name, subject.shape(letters, length)) for name, letters in subject.inputs.items()}
    directions = {name: rng.normal(size=subject.shape(letters, length)) for name, letters in subject.results.items()}
    weights = {name: rng.normal(size=shape) * 0.5 for name, shape in subject.weight_shapes.items()}
    return Sample(subject, inputs, directions, weights, dtype)


def draw_generator(draw: Draw) -> np.random.Generator:
    """Make a generator of numbers: hypothesis draws what has a structure, and this one the rest."""
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def draw_lens(draw: Draw, longest: int = LONG) -> np.ndarray:
    return np.array(draw(st.lists(st.integers(0, longest), min_size=BATCH, max_size=BATCH)))


def draw_orders(draw: Draw) -> np.ndarray:
    """Draw an order of the positions for each example."""
    return np.array([draw(st.permutations(range(LONG))) for _ in range(BATCH)])


def draw_unreadable(draw: Draw, name: str, like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Draw what must not be read."""
    if like.dtype == bool:
        return draw_generator(draw).random(shape) < 0.5
    if name == "labels":
        return draw_generator(draw).choice([-100, -1, 0, 10**6], shape).astype(like.dtype)
    if like.dtype.kind == "i":  # the token that occurs in padding only
        return np.full(shape, VOCAB - 1, like.dtype)
    kinds = draw(st.sampled_from([[np.nan], [np.inf], [-np.inf], [np.nan, np.inf, -np.inf, 3e38]]))
    return draw_generator(draw).choice(kinds, shape)


# Comparisons and edits


def assert_close(found: Arrays, expected: Arrays) -> None:
    """Require equality up to rounding."""
    for name, wanted in expected.items():
        assert not np.isnan(wanted).any(), f"{name} has NaN"
        error = relative_error(found[name], wanted, SMALLEST)
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


# Which subjects, and in what


def is_set(subject: Subject) -> bool:
    """Whether positions have no order, and are masked by a mask or not at all."""
    return ("mask" in subject.inputs or not subject.hides) and "sentences" not in subject.name


def has_rows(subject: Subject) -> bool:
    return all("B" in letters for letters in subject.results.values())


def is_loss(subject: Subject) -> bool:
    return "loss" in subject.results


MODELS = ("EncoderDecoder", "EncoderDecoder, loss")
SLOW = (*MODELS, "LSTM, both directions", "Seq2SeqEncoder")
LIGHT = ("masked_softmax", "attend", "additive_score", "AdditiveAttention", "MultiHeadAttention")
HEAVY = tuple(name for name in SUBJECTS if name not in LIGHT)
DTYPES = ("float64", "float32", "bfloat16", "float16")


def by_position(scores: Any) -> Any:
    return scores + np.arange(scores.shape[-1])


# The properties


@holds_for(
    is_set,
    planted("attend", lambda attend: lambda *a, **k: attend(*a, **{**k, "mask": None})),
)
def masking_is_deleting(draw: Draw, subject: Subject, dtype: str) -> None:
    """What is masked for all queries of an example may as well not be there. (A score has no mask: deleting a key
    deletes its scores.)"""
    full, letter = draw_sample(draw, subject, dtype), subject.positions
    kept = np.sort(draw_orders(draw)[:, :SHORT], axis=1)
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
    found = full.run()
    assert_close(subject.edit(found, letter, delete), few.run())
    if subject.hides:
        assert_same_bits(found, subject.edit(found, letter, clear))


@holds_for(
    lambda s: s.hides and "sentences" not in s.name,
    planted("attend", one_more, "functional.masks:length_mask"),
    slow=SLOW,
)
def padding_changes_nothing(draw: Draw, subject: Subject, dtype: str) -> None:
    """More padding, whatever it holds, changes nothing, and nothing comes out of it."""
    short, letter = draw_sample(draw, subject, dtype, SHORT), subject.positions

    def pad(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        shape = (*array.shape[:axis], LONG - SHORT, *array.shape[axis + 1 :])
        ignored = name in subject.results
        more = draw_generator(draw).normal(size=shape) if ignored else draw_unreadable(draw, name, array, shape)
        return np.concatenate([array, more], axis)

    found = short.edit(letter, pad).run()
    cut = subject.edit(found, letter, lambda name, array, axis: np.take(array, range(SHORT), axis))
    assert_close(cut, short.run())
    clear = clearer(subject, np.broadcast_to(np.arange(LONG) < SHORT, (BATCH, LONG)))
    assert_same_bits(found, subject.edit(found, letter, clear))


@holds_for(is_set, planted("attend", argument(scores=by_position)))
def order_of_keys_is_nothing(draw: Draw, subject: Subject, dtype: str) -> None:
    """Keys in another order: the weights in that order, the same context."""
    sample, letter = lengths_as_mask(draw_sample(draw, subject, dtype)), subject.positions
    reorder = taker(subject, draw_orders(draw))
    assert_close(sample.edit(letter, reorder).run(), subject.edit(sample.run(), letter, reorder))


@holds_for(
    has_rows,
    planted("attend", argument(scores=lambda scores: scores - scores.mean(0))),
    slow=tuple(name for name in HEAVY if name not in ("GRU, two layers", "bilinear_score")),
)
def batch_is_its_rows(draw: Draw, subject: Subject, dtype: str) -> None:
    """A batch gives what its examples give one at a time; the gradient of what they share is a sum."""
    sample = draw_sample(draw, subject, dtype)
    rows = [sample.edit("B", lambda _, x, axis, b=b: np.take(x, [b], axis)).run() for b in range(BATCH)]  # type: ignore[misc]
    axes = {name: subject.letters(name).find("B") for name in rows[0]}
    joined = {
        name: np.concatenate([row[name] for row in rows], axis) if axis >= 0 else np.sum([row[name] for row in rows], 0)
        for name, axis in axes.items()
    }
    assert_close(sample.run(), joined)


@holds_for(
    lambda s: has_rows(s) and s.name not in MODELS,
    planted("attend", argument(scores=lambda scores: scores - scores.mean(0))),
    slow=HEAVY,
)
def vmap_is_a_batch(draw: Draw, subject: Subject, dtype: str) -> None:
    """The program for one example without a batch axis, mapped by vmap, gives what the batch gives."""
    sample = draw_sample(draw, subject, dtype)
    mapped = sample.run(over_examples(subject))
    assert_close({n: x if "B" in subject.letters(n) else x.sum(0) for n, x in mapped.items()}, sample.run())


@holds_for(
    lambda s: s.hides,
    planted("attend", unchanged, "functional.attend:zero_unattended"),
    slow=MODELS,
    dtypes=DTYPES[:3],
)
def what_is_masked_stays_out(draw: Draw, subject: Subject, dtype: str) -> None:
    """NaN and infinities where nothing attends change no bit of a result or a gradient, and get gradient 0."""
    sample = draw_sample(draw, subject, dtype)
    hidden = {name: places for name in sample.inputs if (places := sample.hidden(name)) is not None}
    inputs = {
        name: np.where(places, draw_unreadable(draw, name, x := sample.inputs[name], x.shape), x)
        for name, places in hidden.items()
    }
    weights = {name: x.copy() for name, x in sample.weights.items()}
    for name in [name for name in weights if name.endswith("embedding")] if "tokens" in hidden else ():
        if not name.startswith("decoder"):
            weights[name][VOCAB - 1] = draw_unreadable(draw, name, weights[name], weights[name][VOCAB - 1].shape)
    found = replace(sample.with_inputs(**inputs), weights=weights).run()
    assert_same_bits(found, sample.run())
    for name in hidden:
        gradient = found.get(f"gradient of {name}", np.zeros(()))
        assert not (hidden[name] & (gradient != 0)).any(), f"gradient of {name} where nothing attends"


@holds_for(
    lambda s: s.hides and s.name != "EncoderDecoder, loss",
    planted("attend", argument(empty_row="uniform")),
    slow=MODELS,
)
def empty_rows_are_empty(draw: Draw, subject: Subject, dtype: str) -> None:
    """A query that may attend to nothing, a sequence of length 0: zero weights and context, zero finite gradients."""
    empty = draw(st.integers(0, BATCH - 1))
    lens = np.where(np.arange(BATCH) == empty, 0, draw_lens(draw))
    sample = draw_sample(draw, subject, dtype, lens=lens)
    for name, array in sample.run().items():
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


@holds_for(
    is_loss,
    planted("masked_cross_entropy, tokens", one_more, "functional.losses:length_mask"),
    slow=MODELS,
    dtypes=DTYPES[:2],
)
def nothing_that_counts_moves_nothing(draw: Draw, subject: Subject, dtype: str) -> None:
    """A batch of padding alone: loss 0, every gradient exactly 0, and an optimiser's step that changes no bit."""
    sample = draw_sample(draw, subject, dtype, lens=np.zeros(BATCH, int))
    if "source_lens" in subject.inputs:
        sample = sample.with_inputs(source_lens=draw_lens(draw, 4).astype(np.int32))
    found = sample.run()
    for name, array in found.items():
        assert not array.any(), f"{name} of a batch of padding"
    if sample.weights:
        gradients = {name: found[f"gradient of {name}"] for name in sample.weights}
        params, adam = jax.device_put(dict(sample.weights)), optax.adam(0.005)
        updates, _ = adam.update(jax.device_put(gradients), adam.init(params), params)
        assert_same_bits(jax.device_get(optax.apply_updates(params, updates)), jax.device_get(params))


@holds_for(
    lambda s: s.name in ("masked_softmax", "masked_log_softmax", "attend"),
    planted("attend", instead(unshifted), "functional.attend:masked_softmax"),
    dtypes=DTYPES,
)
def large_scores_give_weights(draw: Draw, subject: Subject, dtype: str) -> None:
    """Scores as large as the dtype holds: weights in [0, 1] that sum to 1 within K u, and finite gradients."""
    sample, roundoff, rng = draw_sample(draw, subject, dtype), unit_roundoff(dtype), draw_generator(draw)
    special, largest = np.array([0.0, 1.0, -1.0, rng.uniform(-1, 1)]), 6e4 if dtype == "float16" else 1e38
    kinds = draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
    scores = rng.choice(special[kinds], sample.inputs["scores"].shape) * largest
    found = sample.with_inputs(scores=scores).run()
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


# They hold, and each notices its fault


def rows() -> Iterator[Any]:
    """Yield each property with each of its subjects and dtypes.

    Another dtype is another program to compile: the quick tests leave it out, but for softmaxes, which compile in no
    time.
    """
    for chosen in PROPERTIES:
        for subject in chosen.subjects:
            for dtype in chosen.dtypes:
                slow = subject in chosen.slow or (dtype != "float64" and "float16" not in chosen.dtypes)
                name = f"{chosen.check.__name__.replace('_', ' ')}: {subject}, {dtype}"
                yield pytest.param(chosen, subject, dtype, id=name, marks=[pytest.mark.slow] if slow else [])


def check_cases(chosen: Property, subject: str, dtype: str, **options: Any) -> None:
    """Check a property on as many cases as the profile says."""

    @settings(suppress_health_check=[HealthCheck.too_slow], **options)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        chosen.check(data.draw, SUBJECTS[subject], dtype)

    check()


@pytest.mark.parametrize(("chosen", "subject", "dtype"), list(rows()))
def test_holds(chosen: Property, subject: str, dtype: str) -> None:
    check_cases(chosen, subject, dtype)


@pytest.mark.parametrize("chosen", PROPERTIES, ids=lambda chosen: chosen.check.__name__)
def test_notices_its_fault(chosen: Property) -> None:
    """Without the other phases of hypothesis, which look for the smallest case."""
    program_of.cache_clear()
    with chosen.fault.planted(), pytest.raises(AssertionError):
        check_cases(chosen, chosen.fault.case, chosen.dtypes[0], phases=[Phase.generate])
    program_of.cache_clear()


def test_a_small_gradient_is_measured_by_its_own_size() -> None:
    right = {"gradient of keys": np.full(3, 1e-6)}
    assert_close({name: x + 1e-18 for name, x in right.items()}, right)
    with pytest.raises(AssertionError, match="gradient of keys: 1e-09 apart"):
        assert_close({name: x * (1 + 1e-5) for name, x in right.items()}, right)

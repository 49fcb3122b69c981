"""What holds whatever the numbers: properties of attention, recurrence and loss, asked of both libraries alike.

A property is a function of a side (see `answers`), a subject (see `subjects`) and what was drawn for the case; it
raises AssertionError. In float64 two ways to compute the same differ by rounding alone, so that 1e-11 of numbers around
1 is a difference; what must not be seen at all must leave every bit as it is, in every dtype.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from parity_tests.properties.answers import INTEGERS, JAX, TORCH, Side, of_example, weight_shapes
from parity_tests.properties.subjects import SIZES, SUBJECTS, VOCAB, Answer, Question, Subject

MANY, FEW = 5, 3
"""Positions: two lengths for all that is asked, so that few programs serve many cases."""

TOLERANCE = 1e-11
POISONS = ("nan", "inf", "-inf", "all of them")


@dataclass(frozen=True)
class Drawn:
    """What hypothesis draws for a case."""

    seed: int
    """Of the numbers, the orders and whatever else there are many of."""
    special: tuple[float, ...] = (0.0,)
    """In [-1, 1]: numbers that stand, scaled, among the normal ones, and tie with each other."""
    scale: float = 1.0
    lens: tuple[int, ...] = (MANY,) * SIZES["B"]
    """How many positions of each example count."""
    mask: int = -1
    """A bit for each entry of the mask."""
    poison: str = "nan"
    dtype: str = "float64"

    def rng(self, purpose: int = 0) -> np.random.Generator:
        return np.random.default_rng((self.seed, purpose))

    def numbers(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Normal ones with the special ones among them."""
        special = rng.choice(np.asarray(self.special, np.float64), shape)
        return np.where(rng.random(shape) < 0.25, special, rng.normal(size=shape)) * self.scale

    def bits(self, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array([self.mask >> i & 1 for i in range(count)], bool).reshape(shape)


def make_question(subject: Subject, drawn: Drawn, length: int = MANY) -> Question:
    """The question that was drawn, of so many positions."""
    rng = drawn.rng()
    inputs: dict[str, np.ndarray] = {}
    for name, letters in subject.inputs.items():
        shape = subject.shape(letters, length)
        if name in ("tokens", "targets"):
            inputs[name] = rng.integers(0, VOCAB - 1, shape).astype(np.int32)
        elif name == "labels":
            inputs[name] = rng.integers(0, SIZES["N"], shape).astype(np.int32)
        elif name == "mask":
            inputs[name] = drawn.bits(shape)
        elif name in INTEGERS:
            inputs[name] = np.minimum(drawn.lens, length).astype(np.int32)
        else:
            inputs[name] = drawn.numbers(rng, shape)
    directions = {name: rng.normal(size=subject.shape(letters, length)) for name, letters in subject.results.items()}
    weights = {name: rng.normal(size=shape) * 0.5 for name, shape in weight_shapes(subject.name).items()}
    return Question(subject, inputs, directions, weights, drawn.dtype)


# Comparisons


def assert_close(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], what: str) -> None:
    """Equal but for rounding."""
    for name, truth in expected.items():
        x = found[name]
        assert x.shape == truth.shape, f"{what} {name}: shape {x.shape}, not {truth.shape}"
        assert not np.isnan(truth).any(), f"{what} {name} has NaN"
        finite = np.isfinite(truth)
        assert np.array_equal(x[~finite], truth[~finite]), f"{what} {name}: other infinities"
        error = np.abs(x[finite] - truth[finite]).max(initial=0.0)
        bound = TOLERANCE * max(1.0, np.abs(truth[finite]).max(initial=0.0))
        assert error <= bound, f"{what} {name}: differs by {error:.3g}"


def assert_same_bits(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], what: str) -> None:
    """Equal, and with no NaN on either side."""
    for name, truth in expected.items():
        assert not np.isnan(truth).any(), f"{what} {name} has NaN"
        assert np.array_equal(found[name], truth), f"{what} {name} changed"


def assert_same_answer(found: Answer, expected: Answer, same: Callable[..., None] = assert_close) -> None:
    same(found.outputs, expected.outputs, "output")
    same(found.gradients, expected.gradients, "gradient of")
    same(found.weight_gradients, expected.weight_gradients, "gradient of")


def transform(subject: Subject, answer: Answer, letter: str, edit: Callable[..., np.ndarray]) -> Answer:
    """Outputs and gradients with every array that has the axis `letter` replaced by edit(name, array, axis)."""

    def changed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: edit(name, x, subject.letters_of(name).index(letter)) if letter in subject.letters_of(name) else x
            for name, x in arrays.items()
        }

    return replace(answer, outputs=changed(answer.outputs), gradients=changed(answer.gradients))


def take(array: np.ndarray, chosen: np.ndarray, axis: int, batch: int) -> np.ndarray:
    """Of each example (along the axis `batch`) the positions `chosen[b]` of an axis."""
    lead = np.moveaxis(array, (batch, axis), (0, 1))
    return np.moveaxis(lead[np.arange(len(chosen))[:, None], chosen], (0, 1), (batch, axis))


def fold(question: Question) -> Question:
    """The lengths expressed by the mask, for what changes the positions' order."""
    if not question.subject.hides:
        return question
    shape = question.inputs["mask"].shape
    lens = np.full_like(question.inputs["valid_lens"], question.length)
    return question.with_inputs(mask=np.broadcast_to(question.counts, shape), valid_lens=lens)


# The properties


def masking_is_deleting(side: Side, subject: Subject, drawn: Drawn) -> None:
    """What is masked for all queries of an example may as well not be there. (A score has no mask: deleting a key
    deletes its scores.)"""
    full, letter = make_question(subject, drawn), subject.positions
    kept = np.sort(np.argsort(drawn.rng(1).random((SIZES["B"], MANY)), axis=1)[:, :FEW], axis=1)
    stays = np.zeros((SIZES["B"], MANY), bool)
    np.put_along_axis(stays, kept, True, axis=1)

    def delete(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        return take(array, kept, axis, subject.letters_of(name).index("B"))

    def clear(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        """0, or what a masked result holds, at what was deleted."""
        letters = subject.letters_of(name)
        shape = tuple(
            size if letter_ in ("B", letter) else 1 for letter_, size in zip(letters, array.shape, strict=True)
        )
        value = subject.masked if name in subject.results else 0.0
        return np.where(stays.reshape(shape), array, value)

    if subject.hides:
        full = fold(full)
        mask = full.inputs["mask"]
        full = full.with_inputs(mask=mask & (stays[:, None] if mask.ndim == 3 else stays))
    else:
        full = replace(full, directions=full.change(letter, clear).directions)
    few = full.change(letter, delete)
    if subject.hides:
        few = few.with_inputs(valid_lens=np.full(SIZES["B"], FEW, np.int32))
    with_all, with_few = side(full), side(few)
    assert_same_answer(transform(subject, with_all, letter, delete), with_few)
    if subject.hides:
        cleared = transform(subject, with_all, letter, clear)
        assert_same_answer(with_all, cleared, assert_same_bits)


def padding_changes_nothing(side: Side, subject: Subject, drawn: Drawn) -> None:
    """More padding, whatever it holds, changes nothing, and nothing comes out of it."""
    short, letter = make_question(subject, drawn, FEW), subject.positions
    rng = drawn.rng(1)

    def pad(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        shape = list(array.shape)
        shape[axis] = MANY - FEW
        if array.dtype == bool:
            more: np.ndarray = rng.random(shape) < 0.5
        elif name == "labels":
            more = rng.choice([-100, -1, 0, 10**6], shape)
        elif name in INTEGERS:
            more = rng.integers(0, VOCAB, shape)
        elif name in subject.results:
            more = rng.normal(size=shape)
        else:
            more = poison(drawn, rng, tuple(shape))
        return np.concatenate([array, more.astype(array.dtype)], axis)

    def cut(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        return np.take(array, range(FEW), axis)

    def clear(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        inside = np.arange(MANY) < FEW
        value = subject.masked if name in subject.results else 0.0
        return np.where(np.moveaxis(np.broadcast_to(inside, (*[1] * (array.ndim - 1), MANY)), -1, axis), array, value)

    padded = side(short.change(letter, pad))
    assert_same_answer(transform(subject, padded, letter, cut), side(short))
    assert_same_answer(padded, transform(subject, padded, letter, clear), assert_same_bits)


def poison(drawn: Drawn, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What must not be read."""
    if drawn.poison != "all of them":
        return np.full(shape, float(drawn.poison))
    return rng.choice([np.nan, np.inf, -np.inf, 3e38], shape)


def order_of_keys_is_nothing(side: Side, subject: Subject, drawn: Drawn) -> None:
    """Keys in another order: the weights in that order, the same context."""
    question, letter = fold(make_question(subject, drawn)), subject.positions
    order = np.argsort(drawn.rng(1).random((SIZES["B"], MANY)), axis=1)

    def reorder(name: str, array: np.ndarray, axis: int) -> np.ndarray:
        return take(array, order, axis, subject.letters_of(name).index("B"))

    expected = transform(subject, side(question), letter, reorder)
    assert_same_answer(side(question.change(letter, reorder)), expected)


def batch_is_its_rows(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A batch gives what its examples give one at a time; the gradient of what they share is a sum."""
    question = make_question(subject, drawn)
    answers = [of_example(side, question, b) for b in range(SIZES["B"])]
    outputs = {name: _stack(subject, name, [a.outputs[name] for a in answers]) for name in subject.results}
    gradients = {name: _stack(subject, name, [a.gradients[name] for a in answers]) for name in answers[0].gradients}
    weights = {name: sum(a.weight_gradients[name] for a in answers) for name in answers[0].weight_gradients}
    assert_same_answer(side(question), Answer(outputs, gradients, weights))  # type: ignore[arg-type]


def _stack(subject: Subject, name: str, rows: list[np.ndarray]) -> np.ndarray:
    letters = subject.letters_of(name)
    return np.stack(rows, letters.index("B")) if "B" in letters else np.sum(rows, axis=0)


def jit_is_no_jit(side: Side, subject: Subject, drawn: Drawn) -> None:
    """The compiled program computes what the operations compute one by one."""
    question = make_question(subject, drawn)
    assert_close(JAX(question).outputs, JAX.without_jit(question).outputs, "output")


def vmap_is_a_loop(side: Side, subject: Subject, drawn: Drawn) -> None:
    """vmap over the batch gives what a loop over it gives, for every example its own gradients."""
    question = make_question(subject, drawn)
    answers = [of_example(JAX, question, b) for b in range(SIZES["B"])]

    def stacked(parts: list[dict[str, np.ndarray]], known: bool = True) -> dict[str, np.ndarray]:
        def axis(name: str) -> int:
            letters = subject.letters_of(name) if known else ""
            return letters.index("B") if "B" in letters else 0

        return {name: np.stack([part[name] for part in parts], axis(name)) for name in parts[0]}

    looped = Answer(
        stacked([a.outputs for a in answers]),
        stacked([a.gradients for a in answers]),
        stacked([a.weight_gradients for a in answers], known=False),
    )
    assert_same_answer(JAX.vmapped(question), looped)


def what_is_masked_stays_out(side: Side, subject: Subject, drawn: Drawn) -> None:
    """NaN and infinities where nobody attends change no bit of an output or a gradient, and get gradient 0."""
    question, rng = make_question(subject, drawn), drawn.rng(1)
    poisoned = {}
    for name, array in question.inputs.items():
        hidden = question.hidden(name)
        if hidden is None:
            continue
        if name == "labels":
            poisoned[name] = np.where(hidden, rng.choice([-100, -1, 10**6], array.shape), array).astype(np.int32)
        elif name in INTEGERS:  # the token that stands in padding alone
            poisoned[name] = np.where(hidden, VOCAB - 1, array).astype(np.int32)
        else:
            poisoned[name] = np.where(hidden, poison(drawn, rng, array.shape), array)
    weights = dict(question.weights)
    for name in ("embedding.weight", "encoder.embedding.weight"):
        if name in weights and "tokens" in poisoned:
            weights[name] = weights[name].copy()
            weights[name][VOCAB - 1] = poison(drawn, rng, weights[name][VOCAB - 1].shape)
    answer = side(replace(question.with_inputs(**poisoned), weights=weights))
    assert_same_answer(answer, side(question), assert_same_bits)
    for name, gradient in answer.gradients.items():
        hidden = question.hidden(name)
        assert hidden is None or not gradient[hidden].any(), f"gradient of {name} where nobody attends"


def empty_rows_are_empty(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A query that may attend to nothing, a sequence of length 0: zero weights and context, zero finite gradients."""
    lens = tuple(0 if b == drawn.seed % 3 else n for b, n in enumerate(drawn.lens))
    question = make_question(subject, replace(drawn, lens=lens))
    answer, empty = side(question), drawn.seed % 3
    for kind, arrays in (("output", answer.outputs), ("gradient of", answer.gradients)):
        for name, array in arrays.items():
            letters = subject.letters_of(name)
            assert not np.isnan(array).any(), f"{kind} {name} has NaN"
            if "B" not in letters:
                continue
            row = np.take(array, empty, letters.index("B"))
            expected: np.ndarray | float = subject.masked if kind == "output" and subject.positions in letters else 0.0
            if name in ("h", "c"):  # an initial state is the final one of an empty sequence
                expected = np.take(question.directions[f"final {name}"], empty, letters.index("B"))
            elif name.startswith("final "):
                state = question.inputs.get(name[-1])
                expected = 0.0 if state is None else np.take(state, empty, letters.index("B"))
            elif name == "logits":
                continue
            assert np.array_equal(row, np.broadcast_to(expected, row.shape)), f"{kind} {name} of an empty row"
    for name, array in answer.weight_gradients.items():
        assert np.isfinite(array).all(), f"gradient of {name} is not finite"


def uniform_rows_are_uniform(side: Side, subject: Subject, drawn: Drawn) -> None:
    """With `empty_row="uniform"` an empty row weighs all keys alike, and none of its scores has a gradient."""
    question = make_question(subject, replace(drawn, lens=(0,) * SIZES["B"]))
    answer = side(question)
    assert_close({"weights": answer.outputs["weights"]}, {"weights": np.full((3, 2, MANY), 1 / MANY)}, "output")
    for name in {"scores", "queries", "keys"} & answer.gradients.keys():
        assert not answer.gradients[name].any(), f"gradient of {name}"


def nothing_that_counts_moves_nothing(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A batch of padding alone: loss 0, every gradient exactly 0, and an optimiser's step that changes no bit."""
    question = make_question(subject, replace(drawn, lens=(0,) * SIZES["B"]))
    if "source_lens" in subject.inputs:
        question = question.with_inputs(source_lens=drawn.rng(1).integers(0, 5, SIZES["B"]).astype(np.int32))
    answer = side(question)
    for name, array in {**answer.outputs, **answer.gradients, **answer.weight_gradients}.items():
        assert np.array_equal(array, np.zeros_like(array)), f"{name} of a batch of padding"
    if question.weights:
        stepped = side.descend(question.weights, answer.weight_gradients)
        assert_same_bits(stepped, question.weights, "after a step,")


LIMITS = {"float64": 1e38, "float32": 1e38, "bfloat16": 1e38, "float16": 6e4}


def large_scores_give_weights(side: Side, subject: Subject, drawn: Drawn) -> None:
    """Scores as large as the dtype holds: weights in [0, 1] that sum to 1 within K u, and finite gradients."""
    question = make_question(subject, drawn)
    scores = drawn.rng(1).choice(np.asarray(drawn.special), question.inputs["scores"].shape) * LIMITS[drawn.dtype]
    question = question.with_inputs(scores=scores)
    answer = side(question)
    weights = answer.outputs["weights"]
    if subject.masked == -np.inf:
        assert (weights <= 0).all(), "a logarithm of a weight above 0"
        weights = np.exp(weights)
    assert ((weights >= 0) & (weights <= 1 + MANY * roundoff(drawn.dtype))).all(), "a weight outside [0, 1]"
    total = 1.0 * question.counts.any(-1)
    # In log space an error of u max|log w| is one of the weight's: those that count are at most log K.
    slack = MANY * roundoff(drawn.dtype) * (1 + np.log(MANY) if subject.masked else 1)
    assert (np.abs(weights.sum(-1) - total) <= slack).all(), f"weights sum to {weights.sum(-1)}"
    for name, array in answer.gradients.items():
        assert np.isfinite(array).all(), f"gradient of {name} is not finite"


def roundoff(dtype: str) -> float:
    """u: half the distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps) / 2


# The table


@dataclass(frozen=True)
class Property:
    """A property, and of what it is asked."""

    check: Callable[[Side, Subject, Drawn], None]
    subjects: tuple[str, ...]
    sides: tuple[Side, ...] = (JAX, TORCH)
    dtypes: tuple[str, ...] = ("float64",)
    share: float = 1.0
    """How many cases it gets, beside the others."""
    quick: tuple[str, ...] | None = None
    """The subjects of the quick run, where compiling a program for each would take too long."""

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", " ")


def _names(keep: Callable[[Subject], bool]) -> tuple[str, ...]:
    return tuple(name for name, subject in SUBJECTS.items() if keep(subject))


def _is_set(subject: Subject) -> bool:
    """Whether its positions have no order, and are masked by a mask or not at all."""
    return ("mask" in subject.inputs or not subject.hides) and "sentences" not in subject.name


def _has_rows(subject: Subject) -> bool:
    return all("B" in letters for letters in subject.results.values())


def _is_model(subject: Subject) -> bool:
    return subject.name.startswith("EncoderDecoder")


def _without(names: tuple[str, ...], *left_out: str) -> tuple[str, ...]:
    return tuple(name for name in names if name not in left_out)


_PADDED = _names(lambda s: s.hides and not s.uniform and "sentences" not in s.name)
_HIDING = _names(lambda s: s.hides)
_EMPTY = _names(lambda s: s.hides and not s.uniform and s.name != "EncoderDecoder, loss")
_MODELS = _names(_is_model)
_LIGHT = ("masked_softmax", "attend", "additive_score", "AdditiveAttention", "MultiHeadAttention")

PROPERTIES = (
    Property(masking_is_deleting, _names(lambda s: _is_set(s) and not s.uniform)),
    Property(
        padding_changes_nothing, _PADDED, quick=_without(_PADDED, *_MODELS, "LSTM, both directions", "Seq2SeqEncoder")
    ),
    Property(order_of_keys_is_nothing, _names(_is_set)),
    Property(batch_is_its_rows, _names(_has_rows), quick=(*_LIGHT, "GRU, two layers", "bilinear_score")),
    Property(jit_is_no_jit, _names(lambda s: True), (JAX,), share=0.02, quick=_LIGHT),
    Property(vmap_is_a_loop, _names(lambda s: _has_rows(s) and not _is_model(s)), (JAX,), quick=_LIGHT),
    Property(
        what_is_masked_stays_out,
        _HIDING,
        dtypes=("float64", "float32", "bfloat16"),
        share=2.0,
        quick=_without(_HIDING, *_MODELS),
    ),
    Property(empty_rows_are_empty, _EMPTY, quick=_without(_EMPTY, *_MODELS)),
    Property(uniform_rows_are_uniform, _names(lambda s: s.uniform), share=0.5),
    Property(
        nothing_that_counts_moves_nothing,
        _names(lambda s: s.name.startswith("masked_cross") or s.name == "EncoderDecoder, loss"),
        dtypes=("float64", "float32"),
    ),
    Property(
        large_scores_give_weights,
        ("masked_softmax", "masked_log_softmax", "attend"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        share=2.0,
    ),
)

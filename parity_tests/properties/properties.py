"""Properties of attention, recurrence and loss that hold for any numbers, checked in both libraries alike.

A property is a function of a side (see `answers`), a subject (see `subjects`) and what was drawn for the case; it
raises AssertionError. In float64 two ways to compute the same value differ by rounding alone, so that 1e-11 of numbers
around 1 is a difference. What must not be read must leave every bit as it is, in every dtype.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity_tests.compare import unit_roundoff
from parity_tests.jax_side import without_jit
from parity_tests.properties.answers import Answer, Side, answer, answer_for_example, descend, over_examples
from parity_tests.properties.subjects import SIZES, SUBJECTS, VOCAB, Edit, Question, Subject

MANY, FEW = 5, 3
"""Positions: only two lengths for all questions, so that few programs serve many cases."""

TOLERANCE = 1e-11
POISONS = ("nan", "inf", "-inf", "all of them")
INTEGERS = frozenset({"tokens", "targets", "labels", "valid_lens", "source_lens"})


@dataclass(frozen=True)
class Drawn:
    """What hypothesis draws for a case."""

    seed: int
    """Of the numbers and the orders."""
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
        """Draw normal numbers with the special ones among them."""
        special = rng.choice(np.asarray(self.special, np.float64), shape)
        return np.where(rng.random(shape) < 0.25, special, rng.normal(size=shape)) * self.scale

    def bits(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.array([self.mask >> i & 1 for i in range(int(np.prod(shape)))], bool).reshape(shape)


def make_question(subject: Subject, drawn: Drawn, length: int = MANY) -> Question:
    """Make the drawn question, with this many positions."""
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
    weights = {name: rng.normal(size=shape) * 0.5 for name, shape in subject.weight_shapes.items()}
    return Question(subject, inputs, directions, weights, drawn.dtype)


# Comparisons

Arrays = Mapping[str, np.ndarray]


def assert_close(found: Arrays, expected: Arrays, what: str) -> None:
    """Require equality up to rounding."""
    for name, truth in expected.items():
        x = found[name]
        assert x.shape == truth.shape, f"{what} {name}: shape {x.shape}, not {truth.shape}"
        assert not np.isnan(truth).any(), f"{what} {name} has NaN"
        finite = np.isfinite(truth)
        assert np.array_equal(x[~finite], truth[~finite]), f"{what} {name}: other infinities"
        error = np.abs(x[finite] - truth[finite]).max(initial=0.0)
        scale = max(1.0, np.abs(truth[finite]).max(initial=0.0))
        assert error <= TOLERANCE * scale, f"{what} {name}: {error:.3g} apart"


def assert_same_bits(found: Arrays, expected: Arrays, what: str) -> None:
    """Require equality to the bit, and no NaN on either side."""
    for name, truth in expected.items():
        assert not np.isnan(truth).any(), f"{what} {name} has NaN"
        assert np.array_equal(found[name], truth), f"{what} {name} changed"


def assert_same_answer(found: Answer, expected: Answer, same: Callable[..., None] = assert_close) -> None:
    same(found.outputs, expected.outputs, "output")
    same(found.gradients, expected.gradients, "gradient of")
    same(found.weight_gradients, expected.weight_gradients, "gradient of")


def transform(subject: Subject, found: Answer, letter: str, edit: Edit) -> Answer:
    """Edit every output and gradient that has the axis `letter`."""
    outputs, gradients = (subject.edit(arrays, letter, edit) for arrays in (found.outputs, found.gradients))
    return replace(found, outputs=outputs, gradients=gradients)


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


def fold(question: Question) -> Question:
    """Express the lengths by the mask, for properties that change the positions' order."""
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
    delete, clear = taker(subject, kept), clearer(subject, stays)
    if subject.hides:
        full = fold(full)
        mask = full.inputs["mask"]
        full = full.with_inputs(mask=mask & (stays[:, None] if mask.ndim == 3 else stays))
    else:
        full = replace(full, directions=full.change(letter, clear).directions)
    few = full.change(letter, delete)
    if subject.hides:
        few = few.with_inputs(valid_lens=np.full(SIZES["B"], FEW, np.int32))
    with_all, with_few = answer(side, full), answer(side, few)
    assert_same_answer(transform(subject, with_all, letter, delete), with_few)
    if subject.hides:
        assert_same_answer(with_all, transform(subject, with_all, letter, clear), assert_same_bits)


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

    padded = answer(side, short.change(letter, pad))
    cut = transform(subject, padded, letter, lambda name, array, axis: np.take(array, range(FEW), axis))
    assert_same_answer(cut, answer(side, short))
    clear = clearer(subject, np.broadcast_to(np.arange(MANY) < FEW, (SIZES["B"], MANY)))
    assert_same_answer(padded, transform(subject, padded, letter, clear), assert_same_bits)


def poison(drawn: Drawn, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw what must not be read."""
    if drawn.poison != "all of them":
        return np.full(shape, float(drawn.poison))
    return rng.choice([np.nan, np.inf, -np.inf, 3e38], shape)


def order_of_keys_is_nothing(side: Side, subject: Subject, drawn: Drawn) -> None:
    """Keys in another order: the weights in that order, the same context."""
    question, letter = fold(make_question(subject, drawn)), subject.positions
    reorder = taker(subject, np.argsort(drawn.rng(1).random((SIZES["B"], MANY)), axis=1))
    expected = transform(subject, answer(side, question), letter, reorder)
    assert_same_answer(answer(side, question.change(letter, reorder)), expected)


def batch_is_its_rows(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A batch gives what its examples give one at a time; the gradient of what they share is a sum."""
    question = make_question(subject, drawn)
    answers = [answer_for_example(side, question, b) for b in range(SIZES["B"])]

    def joined(name: str, rows: list[np.ndarray]) -> np.ndarray:
        letters = subject.letters(name)
        return np.stack(rows, letters.index("B")) if "B" in letters else np.sum(rows, axis=0)

    outputs = {name: joined(name, [a.outputs[name] for a in answers]) for name in subject.results}
    gradients = {name: joined(name, [a.gradients[name] for a in answers]) for name in answers[0].gradients}
    weights = {n: np.sum([a.weight_gradients[n] for a in answers], axis=0) for n in answers[0].weight_gradients}
    assert_same_answer(answer(side, question), Answer(outputs, gradients, weights))


def jit_is_no_jit(side: Side, subject: Subject, drawn: Drawn) -> None:
    """The compiled program computes what the operations compute one by one."""
    question = make_question(subject, drawn)
    one_by_one = answer("jax_attn", question, without_jit, differentiate=False)
    assert_close(answer("jax_attn", question).outputs, one_by_one.outputs, "output")


def vmap_is_a_loop(side: Side, subject: Subject, drawn: Drawn) -> None:
    """vmap over the batch gives what a loop over it gives, for every example its own gradients."""
    question = make_question(subject, drawn)
    answers = [answer_for_example("jax_attn", question, b) for b in range(SIZES["B"])]

    def stacked(parts: list[dict[str, np.ndarray]], known: bool = True) -> dict[str, np.ndarray]:
        letters = {name: subject.letters(name) if known else "" for name in parts[0]}
        return {n: np.stack([part[n] for part in parts], max(0, letters[n].find("B"))) for n in parts[0]}

    looped = Answer(
        stacked([a.outputs for a in answers]),
        stacked([a.gradients for a in answers]),
        stacked([a.weight_gradients for a in answers], known=False),
    )
    assert_same_answer(answer("jax_attn", question, over_examples(subject.name)), looped)


def what_is_masked_stays_out(side: Side, subject: Subject, drawn: Drawn) -> None:
    """NaN and infinities where nothing attends change no bit of an output or a gradient, and get gradient 0."""
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
    found = answer(side, replace(question.with_inputs(**poisoned), weights=weights))
    assert_same_answer(found, answer(side, question), assert_same_bits)
    for name, gradient in found.gradients.items():
        hidden = question.hidden(name)
        assert hidden is None or not gradient[hidden].any(), f"gradient of {name} where nothing attends"


def empty_rows_are_empty(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A query that may attend to nothing, a sequence of length 0: zero weights and context, zero finite gradients."""
    empty = drawn.seed % 3
    lens = tuple(0 if b == empty else n for b, n in enumerate(drawn.lens))
    question = make_question(subject, replace(drawn, lens=lens))
    found = answer(side, question)
    for kind, arrays in (("output", found.outputs), ("gradient of", found.gradients)):
        for name, array in arrays.items():
            letters = subject.letters(name)
            assert not np.isnan(array).any(), f"{kind} {name} has NaN"
            if "B" not in letters or name == "logits":
                continue
            row = np.take(array, empty, letters.index("B"))
            expected: np.ndarray | float = subject.masked if kind == "output" and subject.positions in letters else 0.0
            if name in ("h", "c"):  # an initial state is the final one of an empty sequence
                expected = np.take(question.directions[f"final {name}"], empty, letters.index("B"))
            elif name.startswith("final ") and name[-1] in question.inputs:
                expected = np.take(question.inputs[name[-1]], empty, letters.index("B"))
            assert np.array_equal(row, np.broadcast_to(expected, row.shape)), f"{kind} {name} of an empty row"
    for name, array in found.weight_gradients.items():
        assert np.isfinite(array).all(), f"gradient of {name} is not finite"


def uniform_rows_are_uniform(side: Side, subject: Subject, drawn: Drawn) -> None:
    """With `empty_row="uniform"` an empty row weighs all keys alike, and none of its scores has a gradient."""
    found = answer(side, make_question(subject, replace(drawn, lens=(0,) * SIZES["B"])))
    assert_close({"weights": found.outputs["weights"]}, {"weights": np.full((3, 2, MANY), 1 / MANY)}, "output")
    for name in {"scores", "queries", "keys"} & found.gradients.keys():
        assert not found.gradients[name].any(), f"gradient of {name}"


def nothing_that_counts_moves_nothing(side: Side, subject: Subject, drawn: Drawn) -> None:
    """A batch of padding alone: loss 0, every gradient exactly 0, and an optimiser's step that changes no bit."""
    question = make_question(subject, replace(drawn, lens=(0,) * SIZES["B"]))
    if "source_lens" in subject.inputs:
        question = question.with_inputs(source_lens=drawn.rng(1).integers(0, 5, SIZES["B"]).astype(np.int32))
    found = answer(side, question)
    for name, array in {**found.outputs, **found.gradients, **found.weight_gradients}.items():
        assert np.array_equal(array, np.zeros_like(array)), f"{name} of a batch of padding"
    if question.weights:
        stepped = descend(side, question.weights, found.weight_gradients)
        assert_same_bits(stepped, question.weights, "after a step,")


LIMITS = {"float64": 1e38, "float32": 1e38, "bfloat16": 1e38, "float16": 6e4}


def large_scores_give_weights(side: Side, subject: Subject, drawn: Drawn) -> None:
    """Scores as large as the dtype holds: weights in [0, 1] that sum to 1 within K u, and finite gradients."""
    question, roundoff = make_question(subject, drawn), unit_roundoff(drawn.dtype)
    scores = drawn.rng(1).choice(np.asarray(drawn.special), question.inputs["scores"].shape) * LIMITS[drawn.dtype]
    question = question.with_inputs(scores=scores)
    found = answer(side, question)
    weights = found.outputs["weights"]
    if subject.masked == -np.inf:
        assert (weights <= 0).all(), "a logarithm of a weight above 0"
        weights = np.exp(weights)
    assert ((weights >= 0) & (weights <= 1 + MANY * roundoff)).all(), "a weight outside [0, 1]"
    # In log space an error of u max|log w| is one of the weight's: those that count are at most log K.
    slack = MANY * roundoff * (1 + np.log(MANY) if subject.masked else 1)
    assert (np.abs(weights.sum(-1) - question.counts.any(-1)) <= slack).all(), f"weights sum to {weights.sum(-1)}"
    for name, array in found.gradients.items():
        assert np.isfinite(array).all(), f"gradient of {name} is not finite"


# The table


@dataclass(frozen=True)
class Property:
    """A property, and the subjects it holds for."""

    check: Callable[[Side, Subject, Drawn], None]
    subjects: tuple[str, ...]
    sides: tuple[Side, ...] = ("jax_attn", "torch_ref")
    dtypes: tuple[str, ...] = ("float64",)
    share: float = 1.0
    """How many cases it gets, relative to the others."""
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
_NOTHING = _names(lambda s: s.name.startswith("masked_cross") or s.name == "EncoderDecoder, loss")
_SOFTMAXES = ("masked_softmax", "masked_log_softmax", "attend")
_MODELS = _names(_is_model)
_SLOW = (*_MODELS, "LSTM, both directions", "Seq2SeqEncoder")
_LIGHT = ("masked_softmax", "attend", "additive_score", "AdditiveAttention", "MultiHeadAttention")
_WIDE, _ALL_DTYPES = ("float64", "float32"), ("float64", "float32", "bfloat16", "float16")

PROPERTIES = (
    Property(masking_is_deleting, _names(lambda s: _is_set(s) and not s.uniform)),
    Property(padding_changes_nothing, _PADDED, quick=_without(_PADDED, *_SLOW)),
    Property(order_of_keys_is_nothing, _names(_is_set)),
    Property(batch_is_its_rows, _names(_has_rows), quick=(*_LIGHT, "GRU, two layers", "bilinear_score")),
    Property(jit_is_no_jit, _names(lambda s: True), ("jax_attn",), share=0.02, quick=_LIGHT),
    Property(vmap_is_a_loop, _names(lambda s: _has_rows(s) and not _is_model(s)), ("jax_attn",), quick=_LIGHT),
    Property(what_is_masked_stays_out, _HIDING, dtypes=_ALL_DTYPES[:3], share=2.0, quick=_without(_HIDING, *_MODELS)),
    Property(empty_rows_are_empty, _EMPTY, quick=_without(_EMPTY, *_MODELS)),
    Property(uniform_rows_are_uniform, _names(lambda s: s.uniform), share=0.5),
    Property(nothing_that_counts_moves_nothing, _NOTHING, dtypes=_WIDE),
    Property(large_scores_give_weights, _SOFTMAXES, dtypes=_ALL_DTYPES, share=2.0),
)

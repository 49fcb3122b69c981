"""What the functions refuse: wrong shapes, ranks, dtypes, choices, and lengths out of range."""

import numpy as np
import pytest

from jax_attn import (
    additive_score,
    attend,
    attention,
    attention_mask,
    bilinear_score,
    blockwise_attention,
    causal_mask,
    dot_score,
    dropout,
    gaussian_score,
    gru_step,
    length_mask,
    lstm_step,
    masked_cross_entropy,
    masked_log_softmax,
    masked_softmax,
    projected_cross_entropy,
    reverse_sequence,
    scaled_dot_score,
    sequence_mask,
    sinusoidal_positions,
    unroll,
)


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.ones(shape, np.int32)


def bools(*shape):
    return np.ones(shape, bool)


SCORES = {"scores": floats(2, 3, 4)}
PAIR = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4)}
PARAMETERS = {bilinear_score: {"weight": floats(4, 4)}, additive_score: {"w_v": floats(4)}}
CELLS = {lstm_step: (4, (floats(2, 3), floats(2, 3))), gru_step: (3, floats(2, 3))}
WRONG_LENS = [{"valid_lens": ints(3)}, {"valid_lens": ints(2, 4)}, {"valid_lens": bools(2)}]
WRONG_MASKS = [{"mask": ints(2, 3, 4)}, {"mask": bools(2, 3, 5)}, {"mask": bools(1, 2, 3, 4)}]


def of_masks():
    yield length_mask, {"size": 3}, [{"valid_lens": bools(2)}]
    yield length_mask, {"valid_lens": ints(2)}, [{"size": -1}]
    yield attention_mask, {"valid_lens": ints(2)}, [{"shape": (4,)}, "scores", "[4]"]
    yield attention_mask, {"shape": (2, 3, 4)}, *([wrong] for wrong in WRONG_LENS + WRONG_MASKS)
    yield sequence_mask, {"X": floats(2, 3)}, [{"valid_lens": ints(3)}], [{"valid_lens": bools(2)}]
    yield sequence_mask, {"X": floats(2, 3)}, [{"valid_lens": ints(2, 3)}, "X"]
    for softmax in (masked_softmax, masked_log_softmax):
        yield softmax, SCORES, *([wrong] for wrong in WRONG_LENS + WRONG_MASKS), [{"valid_lens": ints(2, 3, 4)}]
        yield softmax, SCORES, [{"scores": ints(2, 3, 4)}], [{"scores": floats(4)}], [{"empty_row": "nan"}]


def of_scores():
    for score in (dot_score, scaled_dot_score, gaussian_score, bilinear_score, additive_score):
        wrong = [{"keys": floats(3, 5, 4)}, {"keys": floats(1, 5, 4)}, {"keys": floats(5, 4)}, {"keys": ints(2, 5, 4)}]
        wrong += [{"queries": floats(4), "keys": floats(4)}, {"queries": ints(2, 3, 4)}]
        wrong += [{"keys": floats(2, 5, 6)}] if score is not bilinear_score else []
        yield score, PAIR | PARAMETERS.get(score, {}), *([each] for each in wrong)
    yield bilinear_score, {"queries": floats(2, 3), "keys": floats(5, 4)}, [{"weight": floats(4, 3)}]
    yield additive_score, PAIR, [{"w_v": floats(1, 4)}], [{"w_v": floats(3)}]
    yield gaussian_score, PAIR, [{"sigma": 0.0}]


def of_attention():
    fitting = {"scores": floats(2, 3, 5), "values": floats(2, 5, 4)}
    wrong_values = [floats(2, 4, 4), floats(1, 5, 4), floats(5, 4), ints(2, 5, 4)]
    wrong_keep_masks = [floats(2, 3, 5), bools(2, 3, 4)]
    yield attend, fitting, *([{"values": wrong}] for wrong in wrong_values)
    yield attend, fitting, *([{"keep_mask": wrong, "dropout_rate": 0.5}] for wrong in wrong_keep_masks)
    fitting = {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 6)}
    yield attention, fitting, [{"value": floats(2, 4, 6)}], [{"query": ints(2, 3, 4)}], [{"mask": ints(2, 3, 5)}]
    yield attention, fitting, [{"key": floats(2, 5, 3)}, "keys?", "3"]
    yield attention, fitting, [{"query": floats(1, 3, 4)}, "key", "[2]"]
    fitting = PAIR | {"values": floats(2, 5, 6), "score": dot_score}
    yield blockwise_attention, fitting, [{"values": floats(2, 4, 6)}], [{"queries": ints(2, 3, 4)}]
    yield blockwise_attention, fitting, [{"mask": ints(2, 3, 5)}], [{"valid_lens": ints(2, 4)}]
    yield blockwise_attention, fitting, [{"empty_row": "nan"}], [{"block_size": 0}]
    yield blockwise_attention, fitting, [{"queries": floats(1, 3, 4)}, "keys", "[2]"]
    fitting = {"x": floats(2, 3), "keep_mask": bools(2, 3), "rate": 0.5}
    yield dropout, fitting, [{"rate": 1.0}], [{"rate": -0.1}], [{"x": ints(2, 3)}]
    yield dropout, fitting, [{"keep_mask": bools(3)}], [{"keep_mask": ints(2, 3)}]


def of_recurrence():
    for step, (gates, carry) in CELLS.items():
        fitting = {"carry": carry, "projected": floats(2, gates * 3), "kernel_hh": floats(3, gates * 3)}
        for wrong in (floats(2, gates * 4), floats(1, gates * 3), ints(2, gates * 3)):
            yield step, fitting, [{"projected": wrong}]
        yield step, fitting, [{"kernel_hh": floats(4, gates * 3)}]
        yield step, fitting, [{"bias_hh": floats(1)}], [{"bias_hh": ints(gates * 3)}]
        fitting = {"step": recurrent(step), "carry": carry, "inputs": floats(2, 5, gates * 3)}
        wrong = [{"inputs": floats(gates * 3)}, {"valid_lens": ints(3)}, {"valid_lens": ints(2, 5)}]
        yield unroll, fitting, *([each] for each in [*wrong, {"valid_lens": bools(2)}])
        yield unroll, fitting, [{"inputs": floats(2, 5, gates * 4)}, "projected", str([2, gates * 4])]
        other = (floats(3, 3), floats(3, 3)) if step is lstm_step else floats(3, 3)
        yield unroll, fitting, [{"carry": other}, "projected", str([2, gates * 3])]
    fitting = {"projected": floats(2, 12), "kernel_hh": floats(3, 12)}
    yield lstm_step, fitting, [{"carry": (floats(2, 3), floats(1, 3))}, "c", "[1, 3]"]
    fitting = {"inputs": floats(2, 3, 4)}
    wrong = [{"valid_lens": ints(3)}, {"valid_lens": ints(2, 3)}, {"valid_lens": bools(2)}]
    yield reverse_sequence, fitting, *([each] for each in wrong), [{"inputs": floats(3)}]


def recurrent(step):
    """The step with a kernel of ones, as `unroll` calls it."""
    kernel = floats(3, CELLS[step][0] * 3)
    return lambda carry, projected: step(carry, projected, kernel)


def of_losses():
    wrong_lens = [{"valid_lens": ints(3)}, {"valid_lens": ints(2, 3)}, {"valid_lens": bools(2)}]
    wrong_masks = [{"mask": ints(2, 3)}, {"mask": bools(2, 4)}]
    wrong_labels = [{"labels": ints(2, 4)}, {"labels": floats(2, 3)}]
    wrong_logits = [{"logits": ints(2, 3, 4)}, {"logits": floats(4), "labels": ints()}]
    settings = [{"reduction": "mean"}, {"label_smoothing": 1.5}]
    fitting = {"logits": floats(2, 3, 4), "labels": ints(2, 3)}
    for wrong in (*wrong_lens, *wrong_masks, *wrong_labels, *wrong_logits, *settings):
        yield masked_cross_entropy, fitting, [wrong]
    fitting = {"features": floats(2, 3, 5), "kernel": floats(5, 4), "bias": floats(4), "labels": ints(2, 3)}
    fitting |= {"weights": floats(2, 3)}
    wrong = [{"features": ints(2, 3, 5)}, {"kernel": floats(4, 5)}, {"weights": floats(2, 4)}, {"weights": ints(2, 3)}]
    yield projected_cross_entropy, fitting, *([each] for each in [*wrong, *wrong_labels, {"label_smoothing": 1.5}])
    yield projected_cross_entropy, fitting, [{"bias": floats(5)}, "kernel", "[5, 4]"]


def of_positions():
    fitting = {"length": 3, "num_features": 4}
    yield sinusoidal_positions, fitting, [{"length": -1}], [{"num_features": 0}]


REFUSED = [
    (function, arguments, wrong)
    for source in (of_masks, of_scores, of_attention, of_recurrence, of_losses, of_positions)
    for function, arguments, *every_wrong in source()
    for wrong in every_wrong
]


@pytest.mark.parametrize(("function", "arguments", "wrong"), REFUSED)
def test_wrong_arguments_are_refused(refuses, function, arguments, wrong):
    refuses(function, arguments, *wrong)


@pytest.mark.parametrize("sizes", [(-1,), (2, -1)])
def test_a_negative_number_of_positions_is_refused(sizes):
    with pytest.raises((TypeError, ValueError), match=r"nonnegative|at least 0"):
        causal_mask(*sizes)


TAKE_LENS = [
    (length_mask, {"size": 5}),
    (attention_mask, {"shape": (2, 3, 5)}),
    (sequence_mask, {"X": floats(2, 5)}),
    (reverse_sequence, {"inputs": floats(2, 5, 4)}),
    (masked_softmax, {"scores": floats(2, 3, 5)}),
    (masked_log_softmax, {"scores": floats(2, 3, 5)}),
    (attend, {"scores": floats(2, 3, 5), "values": floats(2, 5, 4)}),
    (attention, {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 4)}),
    (masked_cross_entropy, {"logits": floats(2, 5, 4), "labels": ints(2, 5)}),
]


@pytest.mark.parametrize(("function", "arguments"), TAKE_LENS)
@pytest.mark.parametrize("wrong", [6, -1, np.nan])
def test_lengths_out_of_range_are_refused_outside_a_jit(refuses, function, arguments, wrong):
    lens = np.array([wrong, 1], np.int32 if wrong == wrong else np.float32)
    refuses(function, arguments, {"valid_lens": lens}, got=f"{wrong}", traced=False)

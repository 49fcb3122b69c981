"""The known mistakes of moving a model, as wrong versions of the functions that PyTorch calls: a table.

A row says what JAX does, which functions it concerns, and what stands in their place. There are seven kinds: another
option, another function, a mask read otherwise, another scale, two things exchanged, parts or axes in another order,
an operand left out. What needs more than an expression stands in `wrong_functions`. To add a mistake, add a row.
What is wrong with weights, inputs or results stands in `hypotheses`, in a training in `training/settings` and in
`training/loss_causes` and its kin.
"""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from parity_tests.your_port.cause import wrong_functions as wrong
from parity_tests.your_port.cause.planting import Call, Mistake

Row = tuple[str, str, wrong.Wrong]
"""What JAX does in words, the functions, and the wrong one."""


def mistake(words: str, names: str, function: wrong.Wrong) -> Mistake:
    """Make a mistake with one wrong function for all."""
    return Mistake(f"{words} in JAX", dict.fromkeys(names.split(), function))


def several(words: str, **functions: wrong.Wrong) -> Mistake:
    """Make a mistake that is in several functions at once."""
    return Mistake(f"{words} in JAX", functions)


def mistakes_in(called: Set[str], sizes: Sequence[int]) -> Iterator[list[Mistake]]:
    """Yield those that a program can have which calls these functions, kind by kind, likely and cheap ones first.

    The `sizes` of its axes make wrong scales.
    """
    tables = (_replaced(), _options(sizes), NORMS_WRITTEN_OUT, _masked(), CONDITIONS, LOSSES, _scaled(sizes), EXCHANGED)
    kinds = [[mistake(*row) for row in rows] for rows in (*tables, CONVOLUTIONS, _permuted(), DROPPED)]
    kinds[-1] += IN_SEVERAL  # a softmax may hide which of them it is
    yield from ([m for m in kind if called & m.wrong.keys()] for kind in kinds)


EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 1e-7, 1e-4, 1e-2, 0.0)
"""Defaults of PyTorch, Flax, Keras and the papers."""
MOMENTA = (0.9, 0.99, 0.999, 0.1, 0.01, 0.001)
NORMS = "layer_norm rms_norm group_norm batch_norm instance_norm"
LABELLED = "cross_entropy nll_loss"
BINARY = "binary_cross_entropy binary_cross_entropy_with_logits"
ANY_LOSS = f"{LABELLED} {BINARY} mse_loss l1_loss smooth_l1_loss huber_loss kl_div"
SOFTMAX = "softmax log_softmax"
CONVOLVED = "conv1d conv2d conv3d"
LOWEST = torch.finfo(torch.float64).min
SHAPING = "view reshape flatten unflatten"
AXES = "axes of {sizes} (heads and features, or height and width)"
POOLS = " ".join(f"{{0}}_pool{n}d adaptive_{{0}}_pool{n}d" for n in (1, 2, 3))
MAXIMA = "max_pool1d max_pool2d max_pool3d"
AVERAGES = " ".join(f"adaptive_avg_pool{n}d" for n in (1, 2, 3))
RESIZED: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest"},
    "nearest, from the middles of pixels,": {"mode": "nearest-exact"},
    **{f"bi{kind}{words}": {"mode": f"bi{kind}", "align_corners": aligned, "antialias": smooth}
       for kind, cubic in (("linear", ""), ("cubic", " with a = −0.5 as"))
       for words, aligned, smooth in ((" without antialias or corners aligned", False, False),
                                      (f"{cubic} with antialias", False, True),
                                      (" with corners aligned", True, False))},
}  # fmt: skip

# 1. Another option: the argument has one of these values


def _options(sizes: Sequence[int]) -> Iterator[Row]:
    rows: tuple[tuple[str, str, str, Sequence[Any]], ...] = (
        ("epsilon is {:g}", NORMS, "eps", EPSILONS),
        ("the number of groups is {}", "group_norm", "num_groups", (1, *sizes)),
        ("the batch norm takes the batch's statistics, as in training,", "batch_norm", "training", (True,)),
        ("the batch norm takes the running statistics", "batch_norm", "training", (False,)),
        ("the batch norm's momentum is {} in PyTorch's sense", "batch_norm", "momentum", MOMENTA),
        ("the loss is reduced by the {}", ANY_LOSS, "reduction", ("mean", "sum", "batchmean")),
        ("the label smoothing is {:g}", "cross_entropy", "label_smoothing", (0.0, 0.1, 0.05, 0.2)),
        ("the weights of the classes are ignored", ANY_LOSS, "weight", (None,)),
        ("the norm's scale is missing", NORMS, "weight", (None,)),
        ("vectors are normalised along axis {}", "normalize", "dim", (0, -1)),
        ("the mode of the padding is {}", "pad", "mode", ("constant", "reflect", "replicate", "circular")),
    )
    for words, names, option, values in rows:
        for value in values:
            yield words.format(value), names, partial(lambda changed, call: call.but(**changed), {option: value})


# 2. Another function of the same argument

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "GELU approximated by tanh": partial(F.gelu, approximate="tanh"),
    "the exact GELU": F.gelu,
    "ReLU": F.relu,
    "SiLU": F.silu,
    "tanh": torch.tanh,
    "missing": lambda x: x,
    "x σ(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "the sigmoid": torch.sigmoid,
    "the hard sigmoid": lambda x: (x / 6 + 0.5).clamp(0, 1),  # F.hardsigmoid has 1/6 in float32
    "the hard sigmoid of old Keras": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "the hard swish": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "ELU": F.elu,
    "softplus": F.softplus,
    "squared ReLU": lambda x: F.relu(x) ** 2,
    **{f"leaky ReLU of slope {s:g}": partial(F.leaky_relu, negative_slope=s) for s in (0.01, 0.1, 0.2, 0.3, 1 / 3)},
}
ACTIVATED = "gelu relu silu tanh sigmoid elu leaky_relu hardswish hardsigmoid mish relu6 softplus hardtanh selu celu"


def _replaced() -> Iterator[Row]:
    for words, function in ACTIVATIONS.items():
        for name in ACTIVATED.split():
            yield f"{name} is {words}", name, partial(lambda function, call: function(call.x), function)
    yield from (
        ("the norm is missing", NORMS, lambda call: call.x),
        ("vectors are not normalised", "normalize", lambda call: call.x),
        ("the softmax is missing", SOFTMAX, lambda call: call.x),
        ("exp is missing", "exp", lambda call: call.x),
        ("the logarithm is of base 10", "log log2", lambda call: call.x.log10()),
        ("the logarithm is of base 2", "log log10", lambda call: call.x.log2()),
        ("the logarithm is natural", "log2 log10", lambda call: call.x.log()),
        ("nothing is squared, as in a magnitude for a power,", "pow square", wrong.not_squared),
        ("log_softmax is softmax", "log_softmax", lambda call: call.right().exp()),
        ("softmax is a sigmoid", "softmax", lambda call: call.x.sigmoid()),
        ("the norm's variance is divided by n − 1", "layer_norm", wrong.unbiased_norm),
        ("the norm's scale is 1 + weight", NORMS, lambda call: call.but(weight=call.named()["weight"] + 1)),
        ("the running variance is taken for a standard deviation", "batch_norm", wrong.variance_as_deviation),
        ("the norm subtracts the mean, as a layer norm,", "rms_norm", wrong.as_layer_norm),
        ("the norm does not subtract the mean, as an RMS norm,", "layer_norm", wrong.as_rms_norm),
        ("epsilon is added outside of the root", "layer_norm rms_norm", wrong.epsilon_outside),
        ("the softmax has one more term, exp(0), in its sum", "softmax", wrong.one_more_term),
        ("softplus is exp", "softplus", lambda call: call.x.exp()),
        ("exp is softplus", "exp", lambda call: F.softplus(call.x)),
        ("softplus is never linear, as PyTorch's is above its threshold,", "softplus", wrong.softplus_throughout),
        ("the limits of a clip are missing", "clamp clip clamp_min clamp_max", lambda call: call.x),
        ("nothing is turned round", "flip", lambda call: call.x),
        ("nothing is rolled", "roll", lambda call: call.x),
        ("the largest are divided by their sum: top-k with renormalisation", "topk", wrong.largest_renormalised),
        ("top-k takes the largest alone", "topk", wrong.largest_alone),
        ("the absolute value is missing", "abs", lambda call: call.x),
        ("the KL divergence is taken the other way round", "kl_div", wrong.kl_reversed),
        ("features are not rotated by their positions", "mul", wrong.not_rotated),
        ("positions begin at 1", "arange", lambda call: call.right() + 1),
        ("the rotation goes the other way round", "sin", lambda call: -call.right()),
        (
            "a sum is taken for a mean",
            f"mean {AVERAGES}",
            lambda call: call.right() * call.x.numel() / call.right().numel(),
        ),
        ("a mean is taken for a sum", "sum", lambda call: call.right() / call.x.numel() * call.right().numel()),
        ("an embedding is multiplied by √d", "embedding", lambda call: call.right() * call.args[1].shape[-1] ** 0.5),
    )
    for base in (5e5, 1e6, 1e4, 1e2):
        words = f"the base of the frequencies is {base:g}"
        yield words, "__rpow__", partial(lambda base, call: call.on(call.x, base), base)
    for axis in (2, 0, 1, 3):
        for without in (-1e30, -math.inf):  # numbers that count as hidden, or none
            yield f"the softmax goes over axis {axis}", SOFTMAX, partial(wrong.other_axis, axis, without)
    for momentum in (None, *MOMENTA):
        also = f" and the momentum is {momentum} in PyTorch's sense," if momentum else ""
        words = f"the running variance is that of n, not of n − 1,{also}"
        yield words, "batch_norm", partial(wrong.running_variance_of_n, momentum)


# Norms that are written out: `x * rsqrt((x * x).mean(-1) + 1e-6) * weight`

NORMS_WRITTEN_OUT: tuple[Row, ...] = (
    *((f"epsilon is {eps:g}", "add", partial(wrong.other_epsilon, eps)) for eps in EPSILONS),
    ("the norm's scale is 1 + weight", "mul", wrong.one_more),
    ("a standard deviation is that of n, not of n − 1,", "std", wrong.of_n),
    ("a variance is that of n, not of n − 1,", "var", wrong.of_n),
)

# 3. Masks, be they applied by masked_fill, by where, or by adding large negative numbers


def _masked() -> Iterator[Row]:
    rows: list[tuple[str, wrong.OfScores]] = [
        ("the mask is ignored", lambda scores, hidden, value: scores),
        ("the mask is read the other way round", lambda scores, hidden, value: scores.masked_fill(~hidden, value)),
        ("the mask is read the other way round", lambda scores, hidden, _: scores.masked_fill(~hidden, -math.inf)),
        ("the mask is read the other way round", lambda scores, hidden, _: scores.masked_fill(~hidden, LOWEST)),
    ]
    for weak in (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -10.0, -1.0):
        filled = lambda scores, hidden, _, weak=weak: scores.masked_fill(hidden, weak)  # noqa: E731
        added = lambda scores, hidden, _, weak=weak: scores + weak * hidden  # noqa: E731
        rows.append((f"the mask is too weak: hidden scores are {weak:g}", filled))
        rows.append((f"the mask is too weak: {weak:g} is added to hidden scores", added))
    rows.append(("hidden scores are 0", lambda scores, hidden, _: scores.masked_fill(hidden, 0.0)))
    for words, change in rows:
        yield words, "masked_fill where add", partial(wrong.other_mask, change)
    for by in (1, -1):
        diagonal = partial(lambda by, call: call.function(call.x, call.option("diagonal", 1, 0) + by), by)
        yield f"the triangular mask is shifted by {by:+d}", "tril triu", diagonal
    yield "padding is counted in the length by which a sum is divided", "sum", wrong.count_all


CONDITIONS: tuple[Row, ...] = (
    *((f"a limit, such as of a window or a length, is off by one: {by:+d}", "lt le gt ge",
       partial(wrong.other_limit, by)) for by in (1, -1)),
    ("a window reaches to both sides", "lt le gt ge", wrong.in_both_directions),
    ("a condition is ignored, as if it always held", "lt le gt ge", lambda call: torch.ones_like(call.right())),
    ("a condition is ignored, as if it never held", "lt le gt ge", lambda call: torch.zeros_like(call.right())),
    ("a triangular mask is ignored: nothing is cut off", "tril triu", lambda call: call.x),
)  # fmt: skip

LOSSES: tuple[Row, ...] = (
    ("padding is counted: the loss is divided by the number of all labels", LABELLED,
     lambda call: call.but(reduction="sum") / call.args[1].numel()),
    ("the loss is the sum divided by the size of the batch", ANY_LOSS,
     lambda call: call.but(reduction="sum") / len(call.x)),
    ("the loss is divided by the number of labels, not by the sum of their weights", LABELLED,
     lambda call: call.but(reduction="sum") / (call.args[1] != call.named()["ignore_index"]).sum()),
    ("padding is counted: no label is ignored", LABELLED, wrong.no_label_ignored),
    ("the loss takes probabilities for logits", "cross_entropy", lambda call: call.on(call.x.softmax(1))),
    ("the loss takes probabilities for logits", BINARY, lambda call: call.on(call.x.sigmoid())),
    ("squared errors are halved", "mse_loss", lambda call: call.right() / 2),
    ("the loss is Huber's: its square is not divided by beta", "smooth_l1_loss",
     lambda call: call.right() * call.named()["beta"]),
    ("the loss is the smooth L1: Huber's divided by delta", "huber_loss",
     lambda call: call.right() / call.named()["delta"]),
    ("the CTC losses are not divided by the lengths of their labels", "ctc_loss",
     lambda call: call.but(reduction="none").mean()),
)  # fmt: skip

# 4. Another scale, instead of a number or of a constant of one element


def _scaled(sizes: Sequence[int]) -> Iterator[Row]:
    words: dict[float, list[str]] = {}
    for size in sizes:
        words.setdefault(float(size), []).append(f"{size}")
        words.setdefault(size**0.5, []).append(f"√{size}")
    rows: list[tuple[str, Callable[[float], float]]] = [("the factor {c} is missing", lambda c: 1.0)]
    for value, texts in words.items():
        other = partial(lambda value, c: math.copysign(value if abs(c) > 1 else 1 / value, c), value)
        rows.append((f"the factor is {{new}}, by {' or '.join(texts)}, and not {{c}}", other))
    rows += [
        ("the factor {c} is applied twice", lambda c: c * c),
        ("what is divided by {c} is multiplied, or the other way round,", lambda c: 1 / c),
        ("the factor {c} has the other sign", lambda c: -c),
    ]
    for text, change in rows:
        yield text, "mul div __rmul__", partial(wrong.other_factor, change)


# 5. Two things exchanged

EXCHANGED: tuple[Row, ...] = (
    ("the halves of a GLU are exchanged", "glu", lambda call: call.on(wrong.halves_exchanged(call))),
    (
        "the two directions of a recurrent layer are put together in the other order",
        "lstm gru rnn_tanh rnn_relu",
        wrong.directions_exchanged,
    ),
    ("the other end is cut off", "__getitem__", wrong.cut_otherwise),
    ("both ends are cut off, not one,", "__getitem__", wrong.cut_on_both_sides),
    ("the padding stands at both ends, not at one,", "pad", wrong.padded_on_both_sides),
    ("a difference is taken the other way round", "sub", lambda call: -call.right()),
    ("a quotient is taken for a product", "mul", lambda call: wrong.operand(0, call) / call.args[1]),
    ("a product is taken for a quotient", "div", lambda call: wrong.operand(0, call) * call.args[1]),
    *((f"the {other}imum is taken for the {name}imum", f"{name} {name}imum a{name}", partial(wrong.extreme, other))
      for name, other in (("min", "max"), ("max", "min"))),
    ("a roll goes the other way round", "roll", wrong.rolled_back),
    ("the first is taken for the last, or the last for the first,", "__getitem__", wrong.other_end),
)  # fmt: skip
CONVOLUTIONS: tuple[Row, ...] = (
    ("the padding is SAME, which adds more at the end than at the beginning where the stride is 2,", CONVOLVED,
     wrong.padding_same),
    ("the kernel is flipped along its last axis", f"{CONVOLVED} conv_transpose1d conv_transpose2d",
     lambda call: call.on(call.x, call.args[1].flip(-1))),
    ("the kernel is flipped along its last two axes", f"{CONVOLVED} conv_transpose1d conv_transpose2d",
     lambda call: call.on(call.x, call.args[1].flip((-1, -2)))),
    ("height and width of the kernel are exchanged", "conv2d", lambda call: call.on(call.x, call.args[1].mT)),
    ("the dilation is missing", CONVOLVED, wrong.not_dilated),
    *((f"the padding is {words}, not zeros,", CONVOLVED, partial(wrong.other_padding, mode))
      for words, mode in (("reflected", "reflect"), ("the edge repeated", "replicate"), ("circular", "circular"))),
    ("the maximum is taken for the mean", f"mean {POOLS.format('avg')}", partial(wrong.pooled, "max")),
    ("the mean is taken for the maximum", f"amax {POOLS.format('max')}", partial(wrong.pooled, "avg")),
    ("padding is counted in a mean where PyTorch counts it not, or the other way round,",
     "avg_pool1d avg_pool2d avg_pool3d", wrong.padding_in_mean),
    ("the padding of the maximum is SAME, which adds more at the end than at the beginning where the stride is 2,",
     MAXIMA, partial(wrong.maximum_padded, -math.inf, 1)),
    ("zeros are counted in a maximum, whose padding is −∞ in PyTorch,", MAXIMA, partial(wrong.maximum_padded, 0.0, 0)),
    *((f"the resize is {words}", "interpolate", partial(wrong.resized, options)) for words, options in RESIZED.items()),
)  # fmt: skip

# 6. Parts, heads and axes in another order


def _permuted() -> Iterator[Row]:
    for count in (2, 3, 4):
        for order in list(permutations(range(count)))[1:]:
            text = ", ".join(map(str, order))
            parts = partial(lambda order, call: wrong.in_order(order, call.right()), order)
            joined = partial(lambda order, call: call.on(wrong.in_order(order, call.x)), order)
            yield f"the {count} parts are taken in the order {text}", "chunk split unbind tensor_split", parts
            yield f"the {count} parts are put together in the order {text}", "cat stack concat", joined
    yield from (
        (f"{AXES} change places where they are split", SHAPING, wrong.split_otherwise),
        (f"{AXES} change places where they are merged", SHAPING, wrong.merged_otherwise),
        ("the channels come last when axes are flattened", SHAPING, wrong.channels_last),
        ("the parts of a pixel stand before the channels, not behind them,", "pixel_shuffle",
         wrong.pixels_before_channels),
        ("the parts of a pixel stand before the channels, not behind them,", "pixel_unshuffle",
         wrong.pixels_behind_channels),
        ("an axis is reshaped, not transposed,", "transpose permute mT t swapaxes",
         lambda call: call.x.reshape(call.right().shape)),
        ("the heads of keys and values are repeated as a whole, not each in turn,", "repeat_interleave", wrong.tiled),
    )  # fmt: skip


# 7. An operand left out

DROPPED: tuple[Row, ...] = (
    ("the first term of a sum is missing: a residual, a position or a bias,", "add", partial(wrong.operand, 1)),
    ("the second term of a sum is missing: a residual, a position or a bias,", "add", partial(wrong.operand, 0)),
    ("the term {c} of a sum is missing", "add", wrong.without_number),
    ("the second term of a sum has the other sign", "add", lambda call: wrong.operand(0, call) - call.args[1]),
    ("a gate or a scale is missing: the first factor of a product", "mul", partial(wrong.operand, 1)),
    ("a gate or a scale is missing: the second factor of a product", "mul", partial(wrong.operand, 0)),
    ("the division by a tensor is missing", "div", partial(wrong.operand, 0)),
    ("the first term of a sum stands in both places", "add", lambda call: 2 * wrong.operand(0, call)),
    ("the second term of a sum stands in both places", "add", lambda call: 2 * wrong.operand(1, call)),
)

# In several functions at once: the second one looks at the call of the first, see `Call.last`

IN_SEVERAL = (
    several("sine and cosine are exchanged", sin=lambda call: call.x.cos(), cos=lambda call: call.x.sin()),
    *(several(f"{name} is applied to each term of a sum, and not to the sum,",
              add=Call.right, **{name: wrong.to_each_term})
      for name in ("tanh", "relu", "sigmoid", "gelu", "softmax")),
    several("epsilon is added to the variance, which is divided by n, not by n − 1,",
            std=wrong.of_n, add=wrong.epsilon_inside),
    several("the loss is the mean of the sentences' means", cross_entropy=wrong.mean_of_sentences,
            flatten=wrong.sentences, reshape=wrong.sentences, view=wrong.sentences),
    several("the residual is taken after the norm, not before it,",
            layer_norm=Call.right, rms_norm=Call.right, add=wrong.residual_of_normed),
    several("the norms stand after the residual sums (post-norm), not before the sublayers,",
            layer_norm=lambda call: call.x, rms_norm=lambda call: call.x, add=wrong.normed_sum),
    several("the norm subtracts the mean, as a layer norm,", mul=wrong.centred_if_squared,
            pow=wrong.centred_square, square=wrong.centred_square),
    several("epsilon is added outside of the root", add=wrong.without_epsilon,
            sqrt=wrong.root_and_epsilon, rsqrt=wrong.root_and_epsilon),
    several("the activation stands before the norm, not after it,", **dict.fromkeys(NORMS.split(), Call.right),
            **dict.fromkeys(ACTIVATED.split(), wrong.activated_before)),
    several("the activation stands after the norm, not before it,", **dict.fromkeys(ACTIVATED.split(), Call.right),
            **dict.fromkeys(NORMS.split(), wrong.activated_before)),
    several("the soft cap is applied after the mask, not before it,", tanh=Call.right, mul=wrong.after_tanh,
            **dict.fromkeys(("masked_fill", "where", "add"), wrong.mask_before_cap)),
    several("a gate and 1 − the gate are exchanged", __rsub__=wrong.gate_for_rest, mul=wrong.rest_for_gate),
    several("a gate is applied after a product with a matrix, not before it,", mul=Call.right,
            linear=wrong.gate_after_product),
    several("a gate is applied before a product with a matrix, not after it,", linear=Call.right,
            mul=wrong.gate_before_product),
    several("nothing is divided by its sum: top-k without renormalisation", sum=Call.right, div=wrong.not_divided),
    several("the softmax is taken before the choice of the largest, not after it,", topk=Call.right,
            softmax=wrong.softmax_of_all),
    several("B is discretised by a zero-order hold, not by Δ B,", exp=Call.right, mul=wrong.zero_order_hold,
            einsum=wrong.zero_order_hold),
    several("B is discretised by Δ B, not by a zero-order hold,", exp=Call.right, sub=wrong.first_order),
)  # fmt: skip

"""The known mistakes of moving a model, as wrong versions of the functions that PyTorch calls: a table.

A row says what JAX does, which functions it concerns, and what stands in their place. Generators make mistakes of
rows (option, replace, drop an operand, scale, permute, mask); those that need more than a row are written out beside
them. `mistakes` lists all. To add a mistake, add a row. What is wrong with weights, inputs or results stands in
`hypotheses`, what is wrong in a training in `training/settings` and `training/causes`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from parity_tests.your_port.cause.plain import PLAIN
from parity_tests.your_port.cause.planting import Call, Mistake, NotHereError, only_if

Wrong = Callable[[Call], Any]
"""A wrong function, computed in the place of `call.right()`."""


def mistake(words: str, names: str, wrong: Wrong) -> Mistake:
    """Make a mistake with one wrong function for all."""
    return Mistake(f"{words} in JAX", dict.fromkeys(names.split(), wrong))


def several(words: str, **wrong: Wrong) -> Mistake:
    """Make a mistake that is in several functions at once."""
    return Mistake(f"{words} in JAX", wrong)


def first(function: Wrong) -> Wrong:
    """Compute the function, and remember the result and the call, for the one that follows."""

    def wrong(call: Call) -> Any:
        call.memory["first"], call.memory["result"] = call, function(call)
        return call.memory["result"]

    return wrong


def then(function: Callable[[Call, Call], Any]) -> Wrong:
    """Compute function(call, the remembered call), where the call gets its result."""

    def wrong(call: Call) -> Any:
        only_if(call.x is call.memory.get("result"))
        return function(call, call.memory["first"])

    return wrong


def beside(function: Callable[[Call, Call], Any]) -> Wrong:
    """Compute function(call, the remembered call), where both get the same: a residual and its norm."""

    def wrong(call: Call) -> Any:
        only_if("first" in call.memory and call.x is call.memory["first"].x)
        return function(call, call.memory["first"])

    return wrong


def mistakes(sizes: Sequence[int]) -> Iterator[list[Mistake]]:
    """Yield them kind by kind, likely and cheap ones first; `sizes` of axes make wrong scales."""
    yield from (list(_replaced()), list(_gates()), list(_options(sizes)), [*NORMS_WRITTEN_OUT])
    yield from ([*_masks(), *MASKED], [*LOSSES], list(_scaled(sizes)), [*EXCHANGED])
    yield from ([*CONVOLUTIONS], list(_permuted()), list(_dropped()), [*RESIDUALS])


# 1. Options: another value of an argument

EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 1e-7, 1e-4, 1e-2, 0.0)
"""Defaults of PyTorch, Flax, Keras and the papers."""
NORMS = "layer_norm rms_norm group_norm batch_norm instance_norm"
LABELLED = "cross_entropy nll_loss"
BINARY = "binary_cross_entropy binary_cross_entropy_with_logits"
ANY_LOSS = f"{LABELLED} {BINARY} mse_loss l1_loss smooth_l1_loss huber_loss kl_div"
MOMENTA = (0.9, 0.99, 0.999, 0.1, 0.01, 0.001)


def _options(sizes: Sequence[int]) -> Iterator[Mistake]:
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
    )
    for words, names, option, values in rows:
        for value in values:
            change = partial(lambda option, value, call: call.but(**{option: value}), option, value)
            yield mistake(words.format(value), names, change)


# 2. Replaced: another function of the same argument

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "GELU approximated by tanh": partial(F.gelu, approximate="tanh"),
    "the exact GELU": F.gelu,
    "ReLU": F.relu,
    "SiLU": F.silu,
    "tanh": torch.tanh,
    "missing": lambda x: x,
    "x σ(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "the sigmoid": torch.sigmoid,
    "the hard sigmoid": F.hardsigmoid,
    "the hard sigmoid of old Keras": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "the hard swish": F.hardswish,
    "ELU": F.elu,
    "softplus": F.softplus,
    "squared ReLU": lambda x: F.relu(x) ** 2,
    **{f"leaky ReLU of slope {s:g}": partial(F.leaky_relu, negative_slope=s) for s in (0.01, 0.1, 0.2, 0.3, 1 / 3)},
}
ACTIVATED = "gelu relu silu tanh sigmoid elu leaky_relu hardswish hardsigmoid mish relu6 softplus hardtanh selu celu"


def _replaced() -> Iterator[Mistake]:
    for words, function in ACTIVATIONS.items():
        for name in ACTIVATED.split():
            yield mistake(f"{name} is {words}", name, partial(lambda function, call: function(call.x), function))
    rows: tuple[tuple[str, str, Wrong], ...] = (
        ("the norm is missing", NORMS, lambda call: call.x),
        ("vectors are not normalised", "normalize", lambda call: call.x),
        ("the mean is not subtracted in the norm", "layer_norm", _not_centered),
        ("the norm's variance is divided by n − 1", "layer_norm", _unbiased),
        ("a reversal is missing", "flip", lambda call: call.x),
        ("the softmax is missing", "softmax log_softmax", lambda call: call.x),
        ("log_softmax is softmax", "log_softmax", lambda call: call.right().exp()),
        ("softmax is a sigmoid", "softmax", lambda call: call.x.sigmoid()),
        ("exp is missing", "exp", lambda call: call.x),
        ("the norm's scale is 1 + weight", NORMS, lambda call: call.but(weight=call.named()["weight"] + 1)),
        ("the running variance is taken for a standard deviation", "batch_norm", partial(_deviation, inside=True)),
        ("the running variance is taken for a standard deviation", "batch_norm", partial(_deviation, inside=False)),
        ("positions begin at 1", "arange", lambda call: call.right() + 1),
        ("the rotation goes the other way round", "sin", lambda call: -call.right()),
        ("a sum is taken for a mean", "mean", lambda call: call.right() * _entries(call)),
        ("a mean is taken for a sum", "sum", lambda call: call.right() / _entries(call)),
        ("an embedding is multiplied by √d", "embedding", lambda call: call.right() * call.args[1].shape[-1] ** 0.5),
        *(
            (f"the base of the frequencies is {base:g}", "__rpow__", partial(_with_base, base))
            for base in (5e5, 1e6, 1e4, 1e2)
        ),
        *(
            (f"the softmax goes over axis {axis}", "softmax log_softmax", partial(_other_axis, axis))
            for axis in (2, 0, 1, 3)
        ),
    )
    for words, names, wrong in rows:
        yield mistake(words, names, wrong)
    for momentum in (None, *MOMENTA):
        also = f" and the momentum is {momentum} in PyTorch's sense," if momentum else ""
        words = f"the running variance is that of n, not of n − 1,{also}"
        yield mistake(words, "batch_norm", partial(_running_variance, momentum))
    for name in ("tanh", "relu", "sigmoid", "gelu", "softmax"):
        words = f"{name} is applied to each term of a sum, and not to the sum,"
        yield several(words, **{"add": first(Call.right), name: then(_to_each_term)})


def _entries(call: Call) -> float:
    return call.x.numel() / max(call.right().numel(), 1)


def _not_centered(call: Call) -> Any:
    given = call.named()
    normed = F.rms_norm(given["input"], given["normalized_shape"], given["weight"], given["eps"])
    return normed if given["bias"] is None else normed + given["bias"]


def _unbiased(call: Call) -> Any:
    given = call.named()
    ratio = 1 - 1 / math.prod(given["normalized_shape"])
    return call.but(weight=given["weight"] * ratio**0.5, eps=given["eps"] * ratio)


def _deviation(call: Call, inside: bool) -> Any:
    """With epsilon inside of the root, or added to the deviation."""
    given = call.named()
    only_if(not given["training"])
    return call.but(
        running_var=given["running_var"] ** 2 if inside else (given["running_var"] + given["eps"]) ** 2 - given["eps"]
    )


def _running_variance(momentum: float | None, call: Call) -> Any:
    given = call.named()
    only_if(given["training"] and given["running_var"] is not None and momentum != given["momentum"])
    new, n = given["running_var"], call.x.numel() / call.x.shape[1]
    kept = (1 - (momentum or given["momentum"])) * new
    result = call.right() if momentum is None else call.but(momentum=momentum)
    new.data.copy_(kept + (new - kept) * (n - 1) / n)  # which the backward pass does not mind
    return result


def _with_base(base: float, call: Call) -> Any:
    return call.on(call.x, base)


def _other_axis(axis: int, call: Call) -> Any:
    only_if(axis < call.x.ndim and call.option("dim", 1, -1) % call.x.ndim != axis)
    return getattr(torch, call.name)(call.x.masked_fill(call.x < -1e30, -math.inf), axis)  # the lowest number is a mask


def _to_each_term(call: Call, sum_: Call) -> Any:
    only_if(all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in sum_.args))
    return call.on(sum_.args[0]) + call.on(sum_.args[1])


# Norms that are written out: `x * rsqrt((x * x).mean(-1) + 1e-6) * weight`


def _other_epsilon(eps: float, call: Call) -> Any:
    small = [x for x in call.args[1:2] if isinstance(x, float) and 0 < x <= 0.01 and x != eps]
    only_if(small and isinstance(call.x, torch.Tensor) and call.x.is_floating_point())
    return call.on(call.x, eps)


def _one_more(call: Call) -> Any:
    scales = [x for x in call.args if isinstance(x, torch.nn.Parameter) and x.ndim == 1]
    only_if(len(scales) == 1 and len(call.args) == 2)
    return call.function(*(x + 1 if x is scales[0] else x for x in call.args))


def _of_all(call: Call) -> Any:
    return call.x.std(call.option("dim", 1, None), correction=0, keepdim=call.option("keepdim", 3, False))


_inside = then(lambda call, _: (call.x**2 + call.args[1]).sqrt())

NORMS_WRITTEN_OUT = (
    *(mistake(f"epsilon is {eps:g}", "add", partial(_other_epsilon, eps)) for eps in EPSILONS),
    mistake("the norm's scale is 1 + weight", "mul", _one_more),
    mistake("a standard deviation is divided by n, not by n − 1,", "std", _of_all),
    several("epsilon is added to the variance, not to the standard deviation,",
            std=first(Call.right), add=_inside),
    several("epsilon is added to the variance, which is divided by n, not by n − 1,", std=first(_of_all), add=_inside),
)  # fmt: skip

# Recurrent networks: PyTorch's are fused functions, which are computed step by step (see `plain`)


def _cell_mistake(words: str, cell: str, change: Any) -> Mistake:
    wrong = lambda call: PLAIN[call.name](*call.args, change=change, **call.options)  # noqa: E731
    return Mistake(words, {cell: wrong, f"{cell}_cell": wrong})


def _gates() -> Iterator[Mistake]:
    rows: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
        "b_hn is missing in JAX: the hidden bias of n, inside of the reset gate": (
            "n", lambda gate, bias: (gate[0], gate[1] - bias)),
        "b_hn stands outside of the reset gate in JAX: bias_hh is merged into bias_ih": (
            "n", lambda gate, bias: (gate[0] + bias, gate[1] - bias)),
        "the update gate is inverted in JAX: z for 1 − z": ("z", lambda gate, bias: (-gate[0], -gate[1])),
        "the forget gate has a bias of 1 more in JAX": ("f", lambda gate, bias: (gate[0] + 1, gate[1])),
    }  # fmt: skip
    for words, (gate, change) in rows.items():
        other = lambda parts, biases, gate=gate, change=change: {**parts, gate: change(parts[gate], biases[gate])}  # noqa: E731
        yield _cell_mistake(words, "gru" if gate in "rzn" else "lstm", other)
    for cell, gates in (("gru", "rzn"), ("lstm", "ifgo")):
        for order in list(permutations(gates))[1:]:
            words = f"gates in another order: for {', '.join(gates)} JAX takes PyTorch's {', '.join(order)}"
            moved = lambda parts, _, order=order: dict(zip(parts, (parts[gate] for gate in order), strict=True))  # noqa: E731
            yield _cell_mistake(words, cell, moved)


# 3. Masks, be they applied by masked_fill, by where, or by adding large negative numbers

MASKING = "masked_fill where add"


def _masks() -> Iterator[Mistake]:
    lowest, inf = torch.finfo(torch.float64).min, math.inf
    rows: list[tuple[str, Callable[[Any, Any, Any], Any]]] = [
        ("the mask is ignored", lambda scores, hidden, value: scores),
        ("the mask is read the other way round", lambda scores, hidden, value: scores.masked_fill(~hidden, value)),
        ("the mask is read the other way round", lambda scores, hidden, value: scores.masked_fill(~hidden, -inf)),
        ("the mask is read the other way round", lambda scores, hidden, value: scores.masked_fill(~hidden, lowest)),
    ]
    for weak in (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -10.0, -1.0):
        filled = lambda scores, hidden, _, weak=weak: scores.masked_fill(hidden, weak)  # noqa: E731
        added = lambda scores, hidden, _, weak=weak: scores + weak * hidden  # noqa: E731
        rows.append((f"the mask is too weak: hidden scores are {weak:g}", filled))
        rows.append((f"the mask is too weak: {weak:g} is added to hidden scores", added))
    for words, change in rows:
        yield mistake(words, MASKING, partial(_fill, change))
    for by in (1, -1):
        shifted = partial(lambda by, call: call.function(call.x, call.option("diagonal", 1, 0) + by), by)
        yield mistake(f"the triangular mask is shifted by {by:+d}", "tril triu", shifted)


def _fill(change: Callable[[Any, Any, Any], Any], call: Call) -> Any:
    """Compute change(scores, what is hidden, the value there) in the place of masked scores."""
    args = (*call.args, *call.options.values())
    if call.name == "masked_fill":
        scores, hidden, value = args[:3]
    elif call.name == "where":
        only_if(len(args) == 3)
        constant = [i for i in (1, 2) if not isinstance(args[i], torch.Tensor) or args[i].unique().numel() == 1]
        only_if(len(constant) == 1)
        scores, value = args[3 - constant[0]], torch.as_tensor(args[constant[0]]).flatten()[0]
        hidden = args[0] if constant[0] == 1 else ~args[0]
    else:
        only_if(all(isinstance(x, torch.Tensor) and x.is_floating_point() and x.numel() for x in args[:2]))
        mask = next((x for x in args[:2] if x.min() <= -100 and ((x == 0) | (x <= -100)).all()), None)
        if mask is None:
            raise NotHereError
        scores, hidden, value = args[1] if mask is args[0] else args[0], mask <= -100, mask.min()
    only_if(scores.any())  # else the mask itself is being made
    right = call.right()
    return torch.as_tensor(change(scores, hidden, value)).expand(right.shape).to(right.dtype)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and bool(((x == 0) | (x == 1)).all()) and bool((x == 0).any())


def _not_multiplied(call: Call) -> Any:
    only_if(len(call.args) == 2 and _is_mask(call.args[1]))
    return _one_operand(1, call)


def _count_all(call: Call) -> Any:
    only_if(_is_mask(call.x))
    return call.on(torch.ones_like(call.x))


MASKED = (
    several(
        "a length or a position is off by one: a comparison includes its limit on one side",
        le=lambda call: torch.lt(*call.args), lt=lambda call: torch.le(*call.args),
        ge=lambda call: torch.gt(*call.args), gt=lambda call: torch.ge(*call.args)),
    mistake("padding is counted in the length by which a sum is divided", "sum", _count_all),
    several("padding is counted: a mean goes over all positions", mul=_not_multiplied, sum=_count_all),
)  # fmt: skip

# Losses


def _summed(size: Callable[[Call], int], call: Call) -> Any:
    return call.but(reduction="sum") / size(call)


def _ignoring(ignored: int | None, call: Call) -> Any:
    """Ignore another label; without any, the ignored ones count as a class if they are one."""
    only_if(ignored is not None or call.named()["ignore_index"] >= 0)
    return call.but(ignore_index=int(call.args[1].max()) + 1 if ignored is None else ignored)


def _remember_sentences(call: Call) -> Any:
    only_if(isinstance(call.x, torch.Tensor) and not call.x.is_floating_point() and call.x.ndim == 2)
    call.memory["sentences"] = len(call.x)
    return call.right()


def _by_sentence(call: Call) -> Any:
    """The mean of the sentences' means; those without a label count nothing."""
    labels = call.args[1]
    count = len(labels) if labels.ndim == 2 else call.memory.get("sentences", 1)
    only_if(count > 1 and labels.numel() % count == 0)
    losses = call.but(reduction="none").reshape(count, -1)
    seen = (labels != call.named()["ignore_index"]).reshape(count, -1)
    return (losses.sum(1) / seen.sum(1)).mean()


def _shifted(by: int, call: Call) -> Any:
    return call.on(call.x, call.args[1].roll(by, -1))


LOSSES = (
    mistake("padding is counted: the loss is divided by the number of all labels", LABELLED,
            partial(_summed, lambda call: call.args[1].numel())),
    mistake("the loss is the sum divided by the size of the batch", ANY_LOSS,
            partial(_summed, lambda call: len(call.x))),
    several("the loss is the mean of the sentences' means", cross_entropy=_by_sentence,
            **dict.fromkeys(("flatten", "reshape", "view"), _remember_sentences)),
    mistake("padding is counted: no label is ignored", LABELLED, partial(_ignoring, None)),
    mistake("label 0 is ignored, as padding", LABELLED, partial(_ignoring, 0)),
    mistake("the loss takes probabilities for logits", "cross_entropy", lambda call: call.on(call.x.softmax(1))),
    mistake("the loss takes probabilities for logits", BINARY, lambda call: call.on(call.x.sigmoid())),
    *(mistake(f"the labels are shifted by {by:+d}", LABELLED, partial(_shifted, by)) for by in (1, -1, 2, -2, 3, -3)),
    mistake("the squared error is halved", "mse_loss", lambda call: call.right() / 2),
)  # fmt: skip


# 4. Scales: another factor in the place of a number, or of a constant of one element


def _scaled(sizes: Sequence[int]) -> Iterator[Mistake]:
    names = "mul div __rmul__"
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
        yield mistake(text, names, partial(_other_factor, change))


def _other_factor(change: Callable[[float], float], call: Call) -> Any:
    only_if(len(call.args) == 2)
    numbers = [x for x in call.args if not isinstance(x, torch.Tensor)]
    numbers = numbers or [x for x in call.args if x.numel() == 1 and not x.requires_grad and x.grad_fn is None]
    only_if(len(numbers) == 1 and float(numbers[0]) != 0)
    c = float(numbers[0])
    new = change(c)
    only_if(abs(new - c) > 1e-12 * abs(c))
    call.facts |= {"c": f"{c:.6g}", "new": f"{new:.6g}"}
    return call.function(*(new if x is numbers[0] else x for x in call.args))


# 5. Exchanged: two things in each other's place


def _other_half(call: Call) -> Any:
    axis = call.option("dim", 1, -1)
    return call.on(call.x.roll(call.x.shape[axis] // 2, axis))


def _halves_by_turns(call: Call) -> Any:
    right = call.right()
    only_if(len(right) == 2 and right[0].shape == right[1].shape and right[0].shape[-1] * 2 == call.x.shape[-1])
    return call.x[..., ::2], call.x[..., 1::2]


def _half_by_turns(call: Call) -> Any:
    key, half = _last_slice(call), call.x.shape[-1] // 2
    only_if(key in (slice(None, half), slice(half, None)))
    return call.x[..., (0 if key.start is None else 1) :: 2]


def _last_slice(call: Call) -> slice:
    key = call.args[1]
    last = key[-1] if isinstance(key, tuple) and key and len(call.args) == 2 else None
    only_if(isinstance(last, slice))
    return last  # type: ignore[return-value]


def _interleaved(call: Call) -> Any:
    only_if(len(call.x) == 2 and call.x[0].shape == call.x[1].shape and call.right().shape[-1] != call.x[0].shape[-1])
    return torch.stack(tuple(call.x), -1).flatten(-2)


EXCHANGED = (
    mistake("the halves of a GLU are exchanged", "glu", _other_half),
    several("sine and cosine are exchanged", sin=lambda call: call.x.cos(), cos=lambda call: call.x.sin()),
    several("features are rotated in pairs of x[2i] and x[2i + 1], not in pairs of x[i] and x[i + d/2],",
            chunk=_halves_by_turns, split=_halves_by_turns, __getitem__=_half_by_turns, cat=_interleaved),
)  # fmt: skip

# Convolution

CONVOLVED = "conv1d conv2d conv3d"
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _convolution(call: Call) -> dict[str, Any]:
    defaults = {"stride": 1, "padding": 0, "dilation": 1}
    return defaults | dict(zip(CONVOLUTION, call.args, strict=False)) | call.options


def _convolve(call: Call, **changes: Any) -> Any:
    return call.function(**{**_convolution(call), **changes})


def _flip_kernel(axes: tuple[int, ...], call: Call) -> Any:
    return call.on(call.x, call.args[1].flip(axes))


def _cut_otherwise(call: Call) -> Any:
    """x[…, :n] for x[…, -n:]."""
    key = _last_slice(call)
    only_if(key.step is None and (key.start is None) != (key.stop is None))
    size = call.right().shape[-1]
    return call.x[..., -size:] if key.start is None else call.x[..., :size]


def _same(call: Call) -> Any:
    given = _convolution(call)
    pads: list[int] = []
    for axis in range(2, call.x.ndim):
        stride, dilation = (n[axis - 2] if isinstance(n, tuple) else n for n in (given["stride"], given["dilation"]))
        size, kernel = call.x.shape[axis], given["weight"].shape[axis]
        total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        pads = [total // 2, total - total // 2, *pads]
    return _convolve(call, input=F.pad(call.x, pads), padding=0)


CONVOLUTIONS = (
    mistake("the padding is SAME, which adds more at the end than at the beginning where the stride is 2,",
            CONVOLVED, _same),
    mistake("the convolution has no padding", CONVOLVED, partial(_convolve, padding=0)),
    mistake("the kernel is flipped along its last axis", f"{CONVOLVED} conv_transpose1d conv_transpose2d",
            partial(_flip_kernel, (-1,))),
    mistake("the kernel is flipped along its last two axes", f"{CONVOLVED} conv_transpose1d conv_transpose2d",
            partial(_flip_kernel, (-2, -1))),
    mistake("height and width of the kernel are exchanged", "conv2d", lambda call: call.on(call.x, call.args[1].mT)),
    mistake("the other end is cut off", "__getitem__", _cut_otherwise),
)  # fmt: skip


# 6. Permuted: parts, heads and axes in another order

SHAPING = "view reshape flatten unflatten"


def _permuted() -> Iterator[Mistake]:
    for count in (2, 3, 4):
        for order in list(permutations(range(count)))[1:]:
            text = ", ".join(map(str, order))
            parts = partial(lambda order, call: _in_order(order, call.right()), order)
            joined = partial(lambda order, call: call.on(_in_order(order, call.x)), order)
            yield mistake(f"the {count} parts are taken in the order {text}", "chunk split unbind tensor_split", parts)
            yield mistake(f"the {count} parts are put together in the order {text}", "cat stack concat", joined)
    rows: list[tuple[str, str, Wrong]] = [
        ("heads and their features change places where an axis is split", SHAPING, partial(_split_otherwise, (1, 0)))
    ]
    for order in ((1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        words = f"an axis that is split in three has its parts in the order {order}"
        rows.append((words, SHAPING, partial(_split_otherwise, order)))
    rows.append(("heads and their features change places where they are merged", SHAPING, _merged_otherwise))
    words = "the parts are split head by head: those of one head stand side by side"
    rows += [(words, "chunk split", partial(_by_heads, heads)) for heads in (2, 4, 8, 12, 16)]
    rows += [
        ("the channels come last when axes are flattened", SHAPING, _flattened),
        ("an axis is reshaped, not transposed,", "transpose permute mT t swapaxes",
         lambda call: call.x.reshape(call.right().shape)),
        ("the heads of keys and values are repeated as a whole, not each in turn,", "repeat_interleave", _tiled),
    ]  # fmt: skip
    for words, names, wrong in rows:
        yield mistake(words, names, wrong)


def _by_heads(heads: int, call: Call) -> Any:
    """[…, heads, 3, size] for [3, heads, size]."""
    parts = call.right()
    size = parts[0].shape[-1]
    only_if(size % heads == 0 and len(parts) * size == call.x.shape[-1])
    return call.x.unflatten(-1, (heads, len(parts), -1)).movedim(-2, 0).flatten(-2)


def _in_order(order: tuple[int, ...], parts: Sequence[Any]) -> Any:
    only_if(len(parts) == len(order))
    return tuple(parts[i] for i in order)


def _split_otherwise(order: tuple[int, ...], call: Call) -> Any:
    right, n = call.right(), len(order)
    only_if(right.ndim >= n and math.prod(right.shape[-n:]) == call.x.shape[-1] and call.x.ndim < right.ndim)
    lead, split = right.shape[:-n], right.shape[-n:]
    back = [order.index(i) for i in range(n)]
    parts = call.x.reshape(*lead, *(split[i] for i in order))
    return parts.permute(*range(len(lead)), *(len(lead) + i for i in back))


def _merged_otherwise(call: Call) -> Any:
    right = call.right()
    only_if(call.x.ndim > right.ndim and math.prod(call.x.shape[-2:]) == right.shape[-1])
    return call.x.transpose(-1, -2).reshape(right.shape)


def _flattened(call: Call) -> Any:
    right = call.right()
    only_if(call.x.ndim == 4 and right.ndim < 4)
    return call.x.permute(0, 2, 3, 1).reshape(right.shape)


def _tiled(call: Call) -> Any:
    axis = call.option("dim", 2, 0)
    return torch.cat([call.x] * (call.right().shape[axis] // call.x.shape[axis]), axis)


# 7. Dropped: an operand is missing, or stands in both places


def _dropped() -> Iterator[Mistake]:
    for place, words in enumerate(("first", "second")):
        alone, twice = partial(_one_operand, place), partial(_one_operand, 1 - place, times=2)
        yield mistake(f"the {words} term of a sum is missing: a residual, a position or a bias,", "add", alone)
        yield mistake(f"a gate or a scale is missing: the {words} factor of a product", "mul", alone)
        yield mistake(f"the {words} term of a sum stands in both places", "add", twice)


def _one_operand(missing: int, call: Call, times: int = 1) -> Any:
    right, other = call.right(), call.args[1 - missing]
    only_if(len(call.args) == 2 and isinstance(other, torch.Tensor) and other.is_floating_point())
    return times * other.expand(right.shape)


# Residual sums: x + sublayer(norm(x))


def _residual(words: str, norm: Wrong, add: Callable[[Call, Call], Any]) -> Mistake:
    return several(words, layer_norm=first(norm), rms_norm=first(norm), add=beside(add))


RESIDUALS = (
    _residual("the residual is taken after the norm, not before it,",
              Call.right, lambda call, norm: call.on(norm.right())),
    _residual("the norms stand after the residual sums (post-norm), not before the sublayers,",
              lambda call: call.x, lambda call, norm: norm.on(call.right())),
)  # fmt: skip

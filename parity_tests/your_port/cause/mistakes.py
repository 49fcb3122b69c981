"""The known mistakes of moving a model, as wrong versions of the functions that PyTorch calls.

A mistake has a wrong function for each right one: wrong(call) is computed in the place of `call.right()`. The likely
and cheap ones stand first. What is wrong with weights or inputs, and not with a function, stands in `traps`.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from parity_tests.your_port.cause.plain import PLAIN


class NotHereError(Exception):
    """The mistake does not apply to this call."""


def only_if(condition: Any) -> None:
    """Leave the call as it is unless the condition holds."""
    if not condition:
        raise NotHereError


@dataclass
class Call:
    """One call of a function of PyTorch."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    memory: dict[str, Any] = field(default_factory=dict)
    """What the wrong functions of one run remember."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the words of the mistake need."""
    kind: str = ""
    """The kind of the submodule in which it is called."""

    @property
    def name(self) -> str:
        """The function's name, without the `_` of one that works in place."""
        name = self.function.__name__
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter((*self.args, *self.options.values())))

    def right(self) -> Any:
        return self.function(*self.args, **self.options)

    def on(self, x: Any, *second: Any) -> Any:
        """Call the function with another first, or first and second, argument."""
        return self.function(x, *second, *self.args[1 + len(second) :], **self.options)

    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        try:
            bound = inspect.signature(self.function).bind(*self.args, **self.options)
        except ValueError:  # it is written in C
            raise NotHereError from None
        bound.apply_defaults()
        return bound.arguments

    def but(self, **changes: Any) -> Any:
        """Call the function with other options."""
        given = self.named()
        only_if(all(name in given and given[name] is not value for name, value in changes.items()))
        return self.function(**{**given, **changes})


Wrong = Callable[[Call], Any]


@dataclass(frozen=True)
class Mistake:
    """A mistake in words, in which {…} are facts of the call; the wrong functions by the names of the right ones."""

    words: str
    wrong: Mapping[str, Wrong]


def mistake(words: str, names: str, wrong: Wrong) -> Mistake:
    """Make a mistake with one wrong function for all."""
    return Mistake(words + " in JAX", dict.fromkeys(names.split(), wrong))


def options(words: str, names: str, option: str, values: tuple[Any, ...]) -> Iterator[Mistake]:
    """Yield the mistakes of having another value of an option."""
    for value in values:
        yield mistake(words.format(value), names, partial(lambda value, call: call.but(**{option: value}), value))


def mistakes(sizes: tuple[int, ...]) -> Iterator[Mistake]:
    """Yield them all; `sizes` are those of axes, from which wrong scales are made."""
    yield from (*_activations(), *_recurrent(), *_norms(sizes), *_masks(), *_softmax(), *_losses(), *_scales(sizes))
    yield from (*_positions(), *_convolutions(), *_elements(), *_orders(), *_sums())


# Activations

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
    "ReLU6": F.relu6,
    "softplus": F.softplus,
    "squared ReLU": lambda x: F.relu(x) ** 2,
    **{f"leaky ReLU of slope {s:g}": partial(F.leaky_relu, negative_slope=s) for s in (0.01, 0.1, 0.2, 0.3, 1 / 3)},
}


def _activations() -> Iterator[Mistake]:
    names = "gelu relu silu tanh sigmoid elu leaky_relu hardswish hardsigmoid mish relu6 softplus hardtanh"
    for words, function in ACTIVATIONS.items():

        def wrong(call: Call, function: Any = function) -> Any:
            call.facts["name"] = call.name
            return function(call.x)

        yield mistake(f"{{name}} is {words}", names, wrong)
    before: dict[str, Wrong] = {"add": _relu_before, "relu": _not_after}
    yield Mistake("a ReLU stands before a residual sum in JAX, not after it", before)
    yield mistake("the halves of a GLU are exchanged", "glu", _other_half)
    for name in ("exp", "log"):
        yield mistake(f"{name} is missing", name, lambda call: call.x)


def _other_half(call: Call) -> Any:
    axis = (*call.args[1:], *call.options.values(), -1)[0]
    return call.on(torch.cat(call.x.chunk(2, axis)[::-1], axis))


def _relu_before(call: Call) -> Any:
    call.memory["sum"] = F.relu(call.args[0]) + call.args[1]
    return call.memory["sum"]


def _not_after(call: Call) -> Any:
    only_if(call.x is call.memory.get("sum"))
    return call.x


# Recurrent networks: PyTorch's are fused functions, which are computed step by step (see `plain`)


def _recurrent() -> Iterator[Mistake]:
    changes: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
        "b_hn is missing in JAX: the hidden bias of n, inside of the reset gate": (
            "n", lambda gate, bias: (gate[0], gate[1] - bias)),
        "b_hn stands outside of the reset gate in JAX: bias_hh is merged into bias_ih": (
            "n", lambda gate, bias: (gate[0] + bias, gate[1] - bias)),
        "the update gate is inverted in JAX: z for 1 − z": ("z", lambda gate, bias: (-gate[0], -gate[1])),
        "the forget gate has a bias of 1 more in JAX": ("f", lambda gate, bias: (gate[0] + 1, gate[1])),
    }  # fmt: skip
    for words, (gate, change) in changes.items():
        yield _cell_mistake(words, "gru" if gate in "rzn" else "lstm", partial(_change_gate, gate, change))
    outside = lambda parts, _: {**parts, "outside": True}  # noqa: E731
    yield _cell_mistake("the reset gate stands outside of the tanh in JAX", "gru", outside)
    for cell, gates in (("gru", "rzn"), ("lstm", "ifgo")):
        for order in list(permutations(gates))[1:]:
            words = f"gates in another order: for {', '.join(gates)} JAX takes PyTorch's {', '.join(order)}"
            yield _cell_mistake(words, cell, partial(_reorder_gates, order))
    yield mistake("the sequence is read in reverse", "gru lstm", _read_in_reverse)
    yield mistake("time and batch are exchanged", "gru lstm", _exchange_time_and_batch)


def _cell_mistake(words: str, cell: str, change: Any) -> Mistake:
    wrong = lambda call: PLAIN[call.name](*call.args, change=change, **call.options)  # noqa: E731
    return Mistake(words, {cell: wrong, f"{cell}_cell": wrong})


def _change_gate(gate: str, change: Any, parts: Any, biases: Any) -> Any:
    return {**parts, gate: change(parts[gate], biases[gate])}


def _reorder_gates(order: Sequence[str], parts: Any, _: Any) -> Any:
    return dict(zip(parts, (parts[gate] for gate in order), strict=True))


def _read_in_reverse(call: Call) -> Any:
    time = 1 if call.args[-1] else 0  # batch_first
    outputs, *states = call.on(call.x.flip(time))
    return outputs.flip(time), *states


def _exchange_time_and_batch(call: Call) -> Any:
    x, states, *rest, batch_first = call.args
    size, given = x.shape[1 if batch_first else 0], states if isinstance(states, tuple) else (states,)
    only_if(not any(s.any() for s in given))
    zeros = tuple(s.new_zeros(s.shape[0], size, s.shape[2]) for s in given)
    return call.function(x, zeros if isinstance(states, tuple) else zeros[0], *rest, not batch_first)


# Norms

EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 1e-7, 1e-4, 1e-2, 0.0)
"""Defaults of PyTorch, Flax, Keras and the papers."""
NORMS = "layer_norm rms_norm group_norm batch_norm instance_norm"


def _norms(sizes: tuple[int, ...]) -> Iterator[Mistake]:
    """Of the library's functions; `traps` has those of norms that are modules, however they are written."""
    for eps in EPSILONS:
        yield from options("epsilon is {:g}", NORMS, "eps", (eps,))
    yield from options("the number of groups is {}", "group_norm", "num_groups", (1, *sizes))
    for train, words in ((True, "batch's statistics, as in training,"), (False, "running statistics")):
        yield from options(f"the batch norm takes the {words}", "batch_norm", "training", (train,))
    yield mistake("the running statistics are not loaded: they are 0 and 1", "batch_norm", _not_loaded)
    momenta = (0.9, 0.99, 0.999, 0.1, 0.01, 0.001)
    yield from options("the batch norm's momentum is {} in PyTorch's sense", "batch_norm", "momentum", momenta)
    yield mistake("the running variance is that of n, not of n − 1,", "batch_norm", _biased_running_variance)
    yield from options("vectors are normalised along axis {}", "normalize", "dim", (0, -1))
    yield mistake("the norm is missing", NORMS, lambda call: call.x)
    yield mistake("vectors are not normalised", "normalize", lambda call: call.x)


def _not_loaded(call: Call) -> Any:
    given = call.named()
    return call.but(running_mean=0 * given["running_mean"], running_var=0 * given["running_var"] + 1)


def _biased_running_variance(call: Call) -> Any:
    given = call.named()
    only_if(given["training"] and given["running_var"] is not None)
    new, n = given["running_var"], call.x.numel() / call.x.shape[1]
    kept = (1 - given["momentum"]) * new
    result = call.right()
    new.copy_(kept + (new - kept) * (n - 1) / n)
    return result


# Masks

MASKING = "masked_fill where add"
WEAK = (-1e9, -1e6, -1e5, -1e4, -1e3, -100.0, -50.0, -10.0, -1.0)
Unmasked = Callable[[Any, Any, Any], Any]
"""(scores, what is hidden, the value there) -> scores."""


def _masks() -> Iterator[Mistake]:
    yield mistake("the mask is ignored", MASKING, partial(_fill, lambda scores, hidden, value: scores))
    inverted: list[Unmasked] = [lambda scores, hidden, value: scores.masked_fill(~hidden, value)]
    inverted += [lambda scores, hidden, _: scores.masked_fill(~hidden, -math.inf)]
    for change in inverted:
        yield mistake("the mask is read the other way round", MASKING, partial(_fill, change))
    kept: dict[str, Wrong] = dict.fromkeys(
        MASKING.split(), partial(_fill, lambda scores, hidden, value: scores, keep=True)
    )
    yield Mistake("the mask is applied after the softmax in JAX", {**kept, "softmax": _mask_later})
    for weak in WEAK:
        filled = partial(_fill, partial(lambda weak, scores, hidden, _: scores.masked_fill(hidden, weak), weak))
        added = partial(_fill, partial(lambda weak, scores, hidden, _: scores + weak * hidden, weak))
        yield mistake(f"the mask is too weak: hidden scores are {weak:g}", MASKING, filled)
        yield mistake(f"the mask is too weak: {weak:g} is added to hidden scores", MASKING, added)
    zero = partial(_fill, lambda scores, hidden, _: scores.masked_fill(hidden, 0))
    yield mistake("hidden scores are 0, which is no mask before a softmax,", MASKING, zero)
    for by in (1, -1):
        shifted = partial(
            lambda by, call: call.function(call.x, (*call.args[1:], *call.options.values(), 0)[0] + by), by
        )
        yield mistake(f"the triangular mask is shifted by {by:+d}", "tril triu", shifted)
    limits: dict[str, Callable[..., Any]] = {"le": torch.lt, "lt": torch.le, "ge": torch.gt, "gt": torch.ge}
    compared: dict[str, Wrong] = {
        name: partial(lambda other, call: other(*call.args), other) for name, other in limits.items()
    }
    yield Mistake("a length or a position is off by one in JAX: a comparison includes its limit on one side", compared)
    yield mistake("a mask of 0 and 1 is not multiplied with", "mul", _not_multiplied)
    yield mistake("padding is counted in the length by which a sum is divided", "sum", _count_all)
    everywhere: dict[str, Wrong] = {"mul": _not_multiplied, "sum": _count_all}
    yield Mistake("padding is counted in JAX: a mean goes over all positions", everywhere)


def _fill(change: Unmasked, call: Call, keep: bool = False) -> Any:
    """Mask otherwise, be it by masked_fill, by where, or by adding large negative numbers."""
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
    if keep:
        call.memory["hidden"] = call.memory["hidden"] | hidden if "hidden" in call.memory else hidden
    right = call.right()
    return torch.as_tensor(change(scores, hidden, value)).expand(right.shape).to(right.dtype)


def _mask_later(call: Call) -> Any:
    only_if("hidden" in call.memory)
    return call.right().masked_fill(call.memory.pop("hidden"), 0.0)


def _is_mask(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and bool(((x == 0) | (x == 1)).all()) and bool((x == 0).any())


def _not_multiplied(call: Call) -> Any:
    masks = [x for x in call.args if _is_mask(x)]
    only_if(masks)
    right = call.right()
    other = call.args[1] if masks[0] is call.args[0] else call.args[0]
    return torch.as_tensor(other).expand(right.shape).to(right.dtype)


def _count_all(call: Call) -> Any:
    only_if(_is_mask(call.x))
    return call.on(torch.ones_like(call.x))


# Softmax


def _softmax() -> Iterator[Mistake]:
    names = "softmax log_softmax"
    for axis in (-2, -1, 0, 1, -3):
        yield mistake(f"the softmax goes over axis {axis}", names, partial(_other_axis, axis))
    yield mistake("the softmax is missing", names, lambda call: call.x)
    yield mistake("log_softmax is softmax", "log_softmax", lambda call: call.right().exp())
    yield mistake("softmax is log_softmax", "softmax", lambda call: call.right().log())
    yield mistake("softmax is a sigmoid", "softmax", lambda call: call.x.sigmoid())


def _other_axis(axis: int, call: Call) -> Any:
    only_if(-call.x.ndim <= axis < call.x.ndim)
    return getattr(torch, call.name)(call.x.masked_fill(call.x < -1e30, -math.inf), axis)  # the lowest number is a mask


# Losses

LABELLED = "cross_entropy nll_loss"
BINARY = "binary_cross_entropy binary_cross_entropy_with_logits"
LOSSES = f"{LABELLED} {BINARY} mse_loss l1_loss smooth_l1_loss huber_loss kl_div"


def _losses() -> Iterator[Mistake]:
    yield from options("the loss is reduced by the {}", LOSSES, "reduction", ("mean", "sum", "batchmean"))
    by_labels = lambda call: call.but(reduction="sum") / call.args[1].numel()  # noqa: E731
    yield mistake("padding is counted: the loss is divided by the number of all labels", LABELLED, by_labels)
    divided: dict[str, Wrong] = {**dict.fromkeys(LOSSES.split(), _all_mean), "div": _not_divided}
    yield Mistake("the loss is the mean over all entries in JAX", divided)
    by_batch = lambda call: call.but(reduction="sum") / call.x.shape[0]  # noqa: E731
    yield mistake("the loss is the sum divided by the size of the batch", LOSSES, by_batch)
    yield mistake("padding is counted: no label is ignored", LABELLED, partial(_with_labels, ignored=None))
    yield mistake("label 0 is ignored, as padding", LABELLED, partial(_with_labels, ignored=0))
    yield from options("the label smoothing is {:g}", "cross_entropy", "label_smoothing", (0.0, 0.1, 0.05, 0.2))
    yield mistake("the label smoothing goes to the other classes alone", "cross_entropy", _smooth_others)
    yield from options("the weights of the classes are ignored", LOSSES, "weight", (None,))
    yield from options("the weight of the positives is ignored", LOSSES, "pos_weight", (None,))
    for by in (1, -1, 2, -2, 3, -3):
        yield mistake(
            f"the labels are shifted by {by:+d}",
            LABELLED,
            partial(lambda by, call: call.on(call.x, call.args[1].roll(by, -1)), by),
        )
    yield mistake("the loss takes probabilities for logits", "cross_entropy", lambda call: call.on(call.x.softmax(1)))
    yield mistake("the squared error is halved", "mse_loss", lambda call: call.right() / 2)


def _all_mean(call: Call) -> Any:
    call.memory["mean"] = call.but(reduction="mean")
    return call.memory["mean"]


def _not_divided(call: Call) -> Any:
    only_if(call.x is call.memory.get("mean"))
    return call.x


def _with_labels(call: Call, ignored: int | None) -> Any:
    """Ignore another label; without any, the ignored ones count as a class if they are one."""
    labels = call.args[1]
    only_if(ignored is not None or call.named()["ignore_index"] >= 0)
    return call.but(ignore_index=int(labels.max()) + 1 if ignored is None else ignored)


def _smooth_others(call: Call) -> Any:
    only_if(call.named()["label_smoothing"])
    size = call.x.shape[1]
    return call.but(label_smoothing=call.named()["label_smoothing"] * size / (size - 1))


# Scales


def _scales(sizes: tuple[int, ...]) -> Iterator[Mistake]:
    names = "mul div __rmul__"
    yield mistake("the factor {c:.6g} is missing", names, partial(_scaled, lambda c: 1.0))
    words: dict[float, list[str]] = {}
    for size in sizes:
        words.setdefault(size**0.5, []).append(f"√{size}")
        words.setdefault(float(size), []).append(f"{size}")
    for value, texts in words.items():
        other = partial(_scaled, partial(lambda value, c: math.copysign(value if abs(c) > 1 else 1 / value, c), value))
        yield mistake(f"the scale is by {' or '.join(texts)} and not what makes {{c:.6g}}", names, other)
    yield mistake("the factor {c:.6g} is applied twice", names, partial(_scaled, lambda c: c * c))
    inverse = partial(_scaled, lambda c: 1 / c)
    yield mistake("what is divided by {c:.6g} is multiplied, or the other way round,", names, inverse)
    yield mistake("the factor {c:.6g} has the other sign", names, partial(_scaled, lambda c: -c))
    for text, power in (("√d", 0.5), ("d", 1.0)):
        scaled = partial(lambda power, call: call.right() * call.args[1].shape[-1] ** power, power)
        yield mistake(f"an embedding is multiplied by {text}", "embedding", scaled)


def _scaled(change: Callable[[float], float], call: Call) -> Any:
    """Take another factor in the place of a number, or of a constant of one element."""
    only_if(len(call.args) == 2)
    numbers = [x for x in call.args if not isinstance(x, torch.Tensor)]
    numbers = numbers or [x for x in call.args if x.numel() == 1 and not x.requires_grad]
    only_if(len(numbers) == 1 and float(numbers[0]) != 0)
    c = float(numbers[0])
    call.facts["c"] = c
    return call.function(*(change(c) if x is numbers[0] else x for x in call.args))


# Positions


def _positions() -> Iterator[Mistake]:
    later = lambda call: call.right() + 1  # noqa: E731
    yield mistake("positions begin at 1", "arange", later)
    for base in (5e5, 1e6, 1e4, 1e2):
        yield mistake(f"the base of the frequencies is {base:g}", "__rpow__", partial(_other_base, base))
    for by in (-1, 1):
        yield mistake(f"the ids of an embedding are taken as {by:+d}: off by one", "embedding", partial(_other_ids, by))
    none: dict[str, Wrong] = {"cos": lambda call: torch.ones_like(call.x), "sin": lambda call: torch.zeros_like(call.x)}
    yield Mistake("queries or keys are not rotated in JAX", none)
    yield mistake("the rotation goes the other way round", "sin", lambda call: -call.right())
    yield Mistake(
        "sine and cosine are exchanged in JAX", {"sin": lambda call: call.x.cos(), "cos": lambda call: call.x.sin()}
    )
    pairs = "features are rotated in pairs of {} in JAX, not in pairs of {}"
    half, neighbours = "x[i] and x[i + d/2]", "x[2i] and x[2i + 1]"
    yield Mistake(
        pairs.format(neighbours, half),
        {"chunk": _halves_by_turns, "split": _halves_by_turns, "__getitem__": _half_by_turns, "cat": _interleaved},
    )
    yield Mistake(
        pairs.format(half, neighbours),
        {
            "__getitem__": _by_halves,
            "stack": lambda call: torch.stack(call.x, -2) if len(call.x) == 2 else call.right(),
            "repeat_interleave": lambda call: torch.cat((call.x, call.x), -1),
            "view_as_complex": lambda call: call.on(_regrouped(call.x)),
            "view_as_real": lambda call: _regrouped(call.right().transpose(-1, -2)).transpose(-1, -2),
        },
    )
    yield mistake("the sines stand before the cosines, not by turns,", "__setitem__", _set_halves)


def _other_base(base: float, call: Call) -> Any:
    only_if(call.args[1] != base)
    return call.on(call.x, base)


def _other_ids(by: int, call: Call) -> Any:
    """JAX takes the last row for −1, and for an id that is too large."""
    ids, rows = call.x + by, call.args[1].shape[0]
    return call.on(torch.where(ids < 0, ids + rows, ids.clamp(max=rows - 1)))


def _halves_by_turns(call: Call) -> Any:
    right = call.right()
    only_if(len(right) == 2 and right[0].shape == right[1].shape and right[0].shape[-1] * 2 == call.x.shape[-1])
    return call.x[..., ::2], call.x[..., 1::2]


def _half_by_turns(call: Call) -> Any:
    key, half = _last_slice(call), call.x.shape[-1] // 2
    only_if(key in (slice(None, half), slice(half, None)))
    return call.x[..., (0 if key.start is None else 1) :: 2]


def _by_halves(call: Call) -> Any:
    key, half = _last_slice(call), call.x.shape[-1] // 2
    only_if(key.step == 2)
    return call.x[..., half:] if key.start == 1 else call.x[..., :half]


def _last_slice(call: Call) -> slice:
    key = call.args[1]
    last = key[-1] if isinstance(key, tuple) and key and len(call.args) == 2 else None
    only_if(isinstance(last, slice))
    return last  # type: ignore[return-value]


def _interleaved(call: Call) -> Any:
    only_if(len(call.x) == 2 and call.x[0].shape == call.x[1].shape and call.right().shape[-1] != call.x[0].shape[-1])
    return torch.stack(tuple(call.x), -1).flatten(-2)


def _regrouped(x: Any) -> Any:
    """[…, d/2, 2] of neighbours -> the same of halves."""
    return x.flatten(-2).unflatten(-1, (2, -1)).transpose(-1, -2).contiguous()


def _set_halves(call: Call) -> None:
    key, half = call.args[1], (call.x.shape[-1] + 1) // 2
    only_if(isinstance(key, tuple) and isinstance(key[-1], slice) and key[-1].step == 2)
    place = slice(half, None) if key[-1].start == 1 else slice(None, half)
    call.x[(*key[:-1], place)] = call.args[2]


# Convolution and pooling


def _convolutions() -> Iterator[Mistake]:
    names = "conv1d conv2d conv3d"
    yield mistake(
        "the padding is SAME, which adds more at the end than at the beginning where the stride is 2,", names, _same
    )
    yield mistake("the convolution has no padding", names, lambda call: _convolve(call, padding=0))
    for axes, words in (((-1,), "along its last axis"), ((-2, -1), "along its last two axes")):
        flipped = partial(lambda axes, call: call.on(call.x, call.args[1].flip(axes)), axes)
        yield mistake(f"the kernel is flipped {words}", names + " conv_transpose1d conv_transpose2d", flipped)
    yield mistake(
        "height and width of the kernel are exchanged", "conv2d", lambda call: call.on(call.x, call.args[1].mT)
    )
    yield mistake("the dilation is forgotten", "conv1d conv2d", _not_dilated)
    yield mistake("the padding is on both sides", "pad", _pad_both)
    yield mistake("the other end is cut off", "__getitem__", _cut_otherwise)
    pools = "max_pool1d max_pool2d avg_pool1d avg_pool2d"
    yield mistake("the pooling is SAME: it adds more at the end than at the beginning,", pools, _same_pool)
    yield mistake("the pooling has no padding", pools, lambda call: call.but(padding=0))
    yield from options("the mean of a pool counts padding: {}", pools, "count_include_pad", (False, True))
    yield from options("pooling takes the mean: align_corners is {}", "interpolate", "align_corners", (True, False))


CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _convolve(call: Call, **changes: Any) -> Any:
    given = dict(zip(CONVOLUTION, call.args, strict=False)) | call.options
    return call.function(**{**given, **changes})


def _not_dilated(call: Call) -> Any:
    """With the padding that goes with it, where that is a number."""
    given = {"padding": 0} | dict(zip(CONVOLUTION, call.args, strict=False)) | call.options
    paddings, dilations = (x if isinstance(x, tuple) else (x,) for x in (given["padding"], given["dilation"]))
    less = tuple(p // d for p, d in zip(paddings, dilations, strict=True))
    return _convolve(call, dilation=1, padding=less)


def _pad_both(call: Call) -> Any:
    before, after, *rest = call.args[1]
    only_if(abs(before - after) > 1)
    return call.on(call.x, ((before + after) // 2, (before + after + 1) // 2, *rest))


def _cut_otherwise(call: Call) -> Any:
    """x[…, :n] for x[…, -n:]."""
    key = _last_slice(call)
    only_if(key.step is None and (key.start is None) != (key.stop is None))
    size = call.right().shape[-1]
    return call.x[..., -size:] if key.start is None else call.x[..., :size]


def _same(call: Call) -> Any:
    given = {"stride": 1, "dilation": 1} | dict(zip(CONVOLUTION, call.args, strict=False)) | call.options
    x = _pad_same(call.x, given["weight"].shape[2:], given["stride"], given["dilation"], 0.0)
    return _convolve(call, input=x, padding=0)


def _same_pool(call: Call) -> Any:
    given = call.named()
    only_if("kernel_size" in given)
    stride = given["stride"] or given["kernel_size"]
    x = _pad_same(
        call.x, given["kernel_size"], stride, given.get("dilation", 1), -math.inf if "max" in call.name else 0.0
    )
    return call.but(input=x, padding=0)


def _pad_same(x: Any, kernel: Any, stride: Any, dilation: Any, value: float) -> Any:
    pads: list[int] = []
    for axis in range(2, x.ndim):
        k, s, d = (n[axis - 2] if isinstance(n, tuple | list | torch.Size) else n for n in (kernel, stride, dilation))
        total = max((-(-x.shape[axis] // s) - 1) * s + (k - 1) * d + 1 - x.shape[axis], 0)
        pads = [total // 2, total - total // 2, *pads]
    return F.pad(x, pads, value=value)


# Elements: one for all, all for one

PLACES: dict[str, Callable[[Any, int], Any]] = {
    "the first element along an axis is taken": lambda x, axis: x.select(axis, 0),
    "the last element along an axis is taken": lambda x, axis: x.select(axis, -1),
    "the mean along an axis is taken": lambda x, axis: x.mean(axis),
    "the maximum along an axis is taken": lambda x, axis: x.amax(axis),
}


def _elements() -> Iterator[Mistake]:
    for words, take in PLACES.items():
        yield mistake(words, "__getitem__", partial(_other_element, take))
        yield mistake(words, "mean amax max", partial(_other_reduction, take))
    pooled: dict[str, Wrong] = {}
    for rank in "123":
        kinds = [f"{kind}_pool{rank}d" for kind in ("max", "avg")]
        for kind, other in (kinds, kinds[::-1]):
            pooled[kind] = partial(_other_pool, other)
            pooled[f"adaptive_{kind}"] = partial(lambda other, call: getattr(F, other)(*call.args), f"adaptive_{other}")
    yield Mistake("a pool takes the mean for the maximum, or the other way round, in JAX", pooled)
    largest: dict[str, Wrong] = {"sum": _largest, "div": _not_divided}
    yield Mistake("the maximum is taken for a mean in JAX", largest)


def _other_pool(other: str, call: Call) -> Any:
    given = dict(zip(("input", "kernel_size", "stride", "padding"), call.args, strict=False)) | call.options
    return getattr(F, other)(call.x, given["kernel_size"], given.get("stride"), given.get("padding", 0))


def _other_element(take: Callable[[Any, int], Any], call: Call) -> Any:
    key = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    places = [i for i, part in enumerate(key) if isinstance(part, int)]
    only_if(len(places) == 1 and all(isinstance(part, int | slice) for part in key))
    (axis,) = places
    return take(call.x[(*key[:axis], slice(None), *key[axis + 1 :])], axis)


def _other_reduction(take: Callable[[Any, int], Any], call: Call) -> Any:
    axes = (*call.args[1:], call.options.get("dim"))[0]
    axes = sorted((axes if isinstance(axes, tuple | list) else [axes]), reverse=True)
    only_if(isinstance(axes[0], int) and (axes[0] < 0) == (axes[-1] < 0))
    x = call.x
    for axis in axes if axes[0] >= 0 else axes[::-1]:
        x = take(x, axis)
    right = call.right()
    return x.reshape(right.shape) if isinstance(right, torch.Tensor) else type(right)((x, right[1]))


def _largest(call: Call) -> Any:
    only_if(call.x.is_floating_point() and not _is_mask(call.x))
    call.memory["mean"] = call.x.amax(*call.args[1:], **call.options)
    return call.memory["mean"]


# Orders of axes and parts

SHAPING = "view reshape flatten unflatten"


def _orders() -> Iterator[Mistake]:
    for count in (2, 3, 4):
        for order in list(permutations(range(count)))[1:]:
            words = f"the {count} parts are {{how}} in the order {', '.join(map(str, order))}"
            yield mistake(words, "chunk split unbind tensor_split", partial(_parts_in_order, order))
            yield mistake(words, "cat stack concat", partial(_joined_in_order, order))
    yield mistake(
        "heads and their features change places where an axis is split", SHAPING, partial(_split_otherwise, (1, 0))
    )
    for order in ((1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        words = f"an axis that is split in three has its parts in the order {order}"
        yield mistake(words, SHAPING, partial(_split_otherwise, order))
    yield mistake("heads and their features change places where they are merged", SHAPING, _merged_otherwise)
    words = "the parts are split head by head: those of one head stand side by side"
    for heads in (2, 4, 8, 12, 16):
        yield mistake(words, "chunk split", partial(_by_heads, heads))
    for words, order in (("the channels come last", (1, 2, 0)), ("height and width are exchanged", (0, 2, 1))):
        yield mistake(f"{words} when axes are flattened", SHAPING, partial(_flattened, order))
    untransposed = lambda call: call.x.reshape(call.right().shape)  # noqa: E731
    yield mistake("an axis is reshaped, not transposed,", "transpose permute mT t swapaxes", untransposed)
    words = "the heads of keys and values are repeated as a whole, not each in turn,"
    yield mistake(words, "repeat_interleave", _tiled)
    yield mistake("a reversal is missing", "flip", lambda call: call.x)


def _by_heads(heads: int, call: Call) -> Any:
    """[…, heads, 3, size] for [3, heads, size]."""
    parts = call.right()
    size = parts[0].shape[-1]
    only_if(size % heads == 0 and len(parts) * size == call.x.shape[-1])
    return call.x.unflatten(-1, (heads, len(parts), -1)).movedim(-2, 0).flatten(-2)


def _parts_in_order(order: tuple[int, ...], call: Call) -> Any:
    right = call.right()
    only_if(len(right) == len(order))
    call.facts["how"] = "taken"
    return tuple(right[i] for i in order)


def _joined_in_order(order: tuple[int, ...], call: Call) -> Any:
    only_if(len(call.x) == len(order))
    call.facts["how"] = "put together"
    return call.on(tuple(call.x[i] for i in order))


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


def _flattened(order: tuple[int, ...], call: Call) -> Any:
    right = call.right()
    only_if(call.x.ndim == len(order) + 1 and right.ndim < call.x.ndim)
    return call.x.permute(0, *(axis + 1 for axis in order)).reshape(right.shape)


def _tiled(call: Call) -> Any:
    axis = (*call.args[2:], *call.options.values(), 0)[0]
    return torch.cat([call.x] * (call.right().shape[axis] // call.x.shape[axis]), axis)


# Sums


def _sums() -> Iterator[Mistake]:
    terms = ("first", "second")
    for place, words in enumerate(terms):
        alone = partial(_one_term, place)
        yield mistake(f"the {words} term of a sum is missing: a residual, a position or a bias,", "add", alone)
        yield mistake(f"a gate or a scale is missing: the {words} factor of a product", "mul", alone)
    for place, words in enumerate(terms):
        twice = partial(_one_term, 1 - place, times=2)
        yield mistake(f"the {words} term of a sum stands in both places", "add", twice)
    entries = lambda call: call.x.numel() / max(call.right().numel(), 1)  # noqa: E731
    yield mistake("a sum is taken for a mean", "mean", lambda call: call.right() * entries(call))
    yield mistake("a mean is taken for a sum", "sum", lambda call: call.right() / entries(call))


def _one_term(missing: int, call: Call, times: int = 1) -> Any:
    right, other = call.right(), call.args[1 - missing]
    only_if(len(call.args) == 2 and isinstance(other, torch.Tensor) and other.is_floating_point())
    return times * other.expand(right.shape)

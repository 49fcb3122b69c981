"""The wrong functions that are more than an expression; each is computed instead of `call.right()`."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from parity_tests.your_port.cause.planting import Call, NotHereError, only_if

Wrong = Callable[[Call], Any]
OfScores = Callable[[Any, Any, Any], Any]
"""(scores, what is hidden, the value there) -> masked scores."""


# Norms and softmax


def unbiased_norm(call: Call) -> Any:
    given = call.named()
    ratio = 1 - 1 / math.prod(given["normalized_shape"])
    return call.but(weight=given["weight"] * ratio**0.5, eps=given["eps"] * ratio)


def variance_as_deviation(call: Call) -> Any:
    given = call.named()
    only_if(not given["training"])
    return call.but(running_var=(given["running_var"] + given["eps"]) ** 2 - given["eps"])


def running_variance_of_n(momentum: float | None, call: Call) -> Any:
    given = call.named()
    only_if(given["training"] and given["running_var"] is not None and momentum != given["momentum"])
    new, n = given["running_var"], call.x.numel() / call.x.shape[1]
    kept = (1 - (momentum or given["momentum"])) * new
    result = call.right() if momentum is None else call.but(momentum=momentum)
    new.data.copy_(kept + (new - kept) * (n - 1) / n)  # which the backward pass does not mind
    return result


def other_epsilon(eps: float, call: Call) -> Any:
    small = [x for x in call.args[1:2] if isinstance(x, float) and 0 < x <= 0.01 and x != eps]
    only_if(small and isinstance(call.x, Tensor) and call.x.is_floating_point())
    return call.on(call.x, eps)


def one_more(call: Call) -> Any:
    scales = [x for x in call.args if isinstance(x, torch.nn.Parameter) and x.ndim == 1]
    only_if(len(scales) == 1 and len(call.args) == 2)
    return call.function(*(x + 1 if x is scales[0] else x for x in call.args))


def as_layer_norm(call: Call) -> Any:
    given = call.named()
    eps = torch.finfo(call.x.dtype).eps if given["eps"] is None else given["eps"]
    return F.layer_norm(call.x, given["normalized_shape"], given["weight"], None, eps)


def as_rms_norm(call: Call) -> Any:
    given = call.named()
    normed = F.rms_norm(call.x, given["normalized_shape"], given["weight"], given["eps"])
    return normed if given["bias"] is None else normed + given["bias"]


def centred_square(call: Call) -> Any:
    only_if(
        len(call.args) < 2 or call.args[1] is call.x or (not isinstance(call.args[1], Tensor) and call.args[1] == 2)
    )
    return (call.x - call.x.mean(-1, keepdim=True)) ** 2


def centred_if_squared(call: Call) -> Any:
    """Both factors where a square is written as a product, and x · r where x was squared before."""
    if call.x is call.args[1]:
        return centred_square(call)
    square = call.last.x
    only_if(any(x is square for x in call.args))
    return call.function(*(x - x.mean(-1, keepdim=True) if x is square else x for x in call.args))


def epsilon_outside(call: Call) -> Any:
    """(x − mean) / (deviation + ε) for (x − mean) / √(variance + ε)."""
    given = call.named()
    only_if(given["eps"])
    axes = [*range(-len(given["normalized_shape"]), 0)]
    moment = call.x.var(axes, correction=0, keepdim=True) if call.name == "layer_norm" else (call.x**2).mean(axes, True)
    plain = call.function(**{**given, "weight": None, "eps": 0.0} | ({"bias": None} if "bias" in given else {}))
    scaled = plain * moment.sqrt() / (moment.sqrt() + given["eps"])
    scaled = scaled if given["weight"] is None else scaled * given["weight"]
    return scaled if given.get("bias") is None else scaled + given["bias"]


def without_epsilon(call: Call) -> Any:
    only_if(len(call.args) == 2 and isinstance(call.args[1], float) and 0 < call.args[1] <= 0.01)
    return call.x


def root_and_epsilon(call: Call) -> Any:
    only_if(call.x is call.last.result and call.last.name == "add")
    root = call.x.sqrt() + call.last.args[1]
    return 1 / root if call.name == "rsqrt" else root


def activated_before(call: Call) -> Any:
    """norm(activation(x)) for activation(norm(x)), or the other way round."""
    only_if(call.x is call.last.result)
    return call.last.on(call.on(call.last.x))


def one_more_term(call: Call) -> Any:
    only_if(call.option("dim", 1, -1) in (-1, call.x.ndim - 1))
    return F.pad(call.x, (0, 1)).softmax(-1)[..., :-1]


def of_n(call: Call) -> Any:
    function = getattr(torch, call.name)
    return function(call.x, call.option("dim", 1, None), correction=0, keepdim=call.option("keepdim", 3, False))


def epsilon_inside(call: Call) -> Any:
    only_if(call.x is call.last.result)
    return (call.x**2 + call.args[1]).sqrt()


def other_axis(axis: int, lowest: float, call: Call) -> Any:
    only_if(axis < call.x.ndim and call.option("dim", 1, -1) % call.x.ndim != axis)
    return getattr(torch, call.name)(
        call.x.masked_fill(call.x < lowest, -math.inf), axis
    )  # the lowest number is a mask


# Masks and losses


def other_mask(change: OfScores, call: Call) -> Any:
    args = (*call.args, *call.options.values())
    if call.name == "masked_fill":
        scores, hidden, value = args[:3]
    elif call.name == "where":
        only_if(len(args) == 3)
        constant = [i for i in (1, 2) if not isinstance(args[i], Tensor) or args[i].unique().numel() == 1]
        only_if(len(constant) == 1)
        scores, value = args[3 - constant[0]], torch.as_tensor(args[constant[0]]).flatten()[0]
        hidden = args[0] if constant[0] == 1 else ~args[0]
    else:
        only_if(all(isinstance(x, Tensor) and x.is_floating_point() and x.numel() for x in args[:2]))
        masks = [i for i in (0, 1) if args[i].min() <= -100 and ((args[i] == 0) | (args[i] <= -100)).all()]
        only_if(masks)
        mask, scores = args[masks[0]], args[1 - masks[0]]
        hidden, value = mask <= -100, mask.min()
    only_if(scores.any())  # else the mask itself is being made
    right = call.right()
    return torch.as_tensor(change(scores, hidden, value)).expand(right.shape).to(right.dtype)


def after_tanh(call: Call) -> Any:
    """The cap in c · tanh(x / c)."""
    only_if(call.last.name == "tanh" and any(x is call.last.result for x in call.args))
    return call.right()


def mask_before_cap(call: Call) -> Any:
    """What is hidden then becomes −c."""
    only_if(call.last.name == "mul")
    caps = [x for x in call.last.args if not isinstance(x, Tensor)]
    only_if(caps)
    return other_mask(lambda scores, hidden, _: scores.masked_fill(hidden, -caps[0]), call)


def other_limit(by: int, call: Call) -> Any:
    only_if(not call.x.is_floating_point() and len(call.args) == 2)
    return call.on(call.x, call.args[1] + by)


def in_both_directions(call: Call) -> Any:
    only_if((call.x < 0).any())
    return call.on(call.x.abs())


def count_all(call: Call) -> Any:
    x = call.x
    only_if(isinstance(x, Tensor) and x.ndim and ((x == 0) | (x == 1)).all() and (x == 0).any())
    return call.on(torch.ones_like(x))


def no_label_ignored(call: Call) -> Any:
    """The ignored ones count as a class."""
    only_if(call.named()["ignore_index"] >= 0)
    return call.but(ignore_index=int(call.args[1].max()) + 1)


def sentences(call: Call) -> Any:
    """The labels of sentences, before they are flattened."""
    only_if(isinstance(call.x, Tensor) and not call.x.is_floating_point() and call.x.ndim == 2)
    return call.right()


def mean_of_sentences(call: Call) -> Any:
    labels = call.args[1]
    count = len(labels if labels.ndim == 2 else call.last.x)
    only_if(labels.numel() > count)
    losses = call.but(reduction="none").reshape(count, -1)
    seen = (labels != call.named()["ignore_index"]).reshape(count, -1)
    return (losses.sum(1) / seen.sum(1)).mean()


# Factors and terms


def not_squared(call: Call) -> Any:
    """x for x²."""
    only_if(call.name == "square" or call.option("exponent", 1, None) == 2)
    return call.x


def not_divided(call: Call) -> Any:
    """x for x / x.sum()."""
    only_if(call.last.name == "sum" and call.args[1] is call.last.result and call.x is call.last.x)
    return call.x


def softmax_of_all(call: Call) -> Any:
    """The largest of a softmax for the softmax of the largest."""
    only_if(call.last.name == "topk" and call.x is call.last.result[0])
    return (call.x - call.last.x.logsumexp(-1, keepdim=True)).exp()


def kl_reversed(call: Call) -> Any:
    if call.named()["log_target"]:
        return call.on(call.args[1], call.x)
    return call.on(call.args[1].log(), call.x.exp())


def gate_for_rest(call: Call) -> Any:
    """z for 1 − z."""
    only_if(len(call.args) == 2 and call.args[1] == 1)
    return call.x.clone()


def rest_for_gate(call: Call) -> Any:
    gate = call.last.x
    only_if(call.last.name != "mul" and any(x is gate for x in call.args))
    return call.function(*(1 - x if x is gate else x for x in call.args))


def gate_after_product(call: Call) -> Any:
    """z · (W x + b) for W (z · x) + b."""
    only_if(call.x is call.last.result)
    gate, x = call.last.args
    return gate * call.on(x)


def gate_before_product(call: Call) -> Any:
    only_if(len(call.args) == 2 and any(x is call.last.result for x in call.args))
    return call.last.on(call.last.x * next(x for x in call.args if x is not call.last.result))


def zero_order_hold(call: Call) -> Any:
    """B (exp(ΔA) − 1) / A for Δ B, the next tensor of the shape of exp(ΔA)."""
    right, z = call.right(), call.last.x
    only_if(call.last.name == "exp" and right.shape == z.shape and not any(x is call.last.result for x in call.args))
    return right * z.expm1() / z


def first_order(call: Call) -> Any:
    only_if(call.last.name == "exp" and call.x is call.last.result and call.args[1] == 1)
    return call.last.x


def not_rotated(call: Call) -> Any:
    """x for x · cos, and 0 for x · sin: tables that begin with an angle of 0."""
    only_if(len(call.args) == 2 and all(isinstance(x, Tensor) for x in call.args))
    for x, table in (call.args, call.args[::-1]):
        if table.ndim > 1 and not table.requires_grad and table.numel() > 1 and table.abs().max() <= 1 + 1e-9:
            starts = [table.select(axis, 0) for axis in range(table.ndim - 1) if table.shape[axis] > 1]
            for angle in (1, 0):
                if any((start == angle).all() for start in starts) and (table != angle).any():
                    return (angle * x).expand(call.right().shape)
    raise NotHereError


def other_factor(change: Callable[[float], float], call: Call) -> Any:
    only_if(len(call.args) == 2)
    numbers = [x for x in call.args if not isinstance(x, Tensor)]
    numbers = numbers or [x for x in call.args if x.numel() == 1 and not x.requires_grad and x.grad_fn is None]
    only_if(len(numbers) == 1 and float(numbers[0]) != 0)
    c = float(numbers[0])
    new = change(c)
    only_if(abs(new - c) > 1e-12 * abs(c))
    for fact, number in (("c", c), ("new", new)):  # of several calls, all of theirs
        known = call.facts.get(fact, "").split(" and ")
        call.facts[fact] = " and ".join(dict.fromkeys(filter(None, [*known, f"{number:.6g}"])))
    return call.function(*(new if x is numbers[0] else x for x in call.args))


def softplus_throughout(call: Call) -> Any:
    """log(1 + exp(βx)) / β, also where PyTorch returns x itself, since βx is above its threshold."""
    beta = call.option("beta", 1, 1.0)
    return torch.logaddexp(beta * call.x, torch.zeros_like(call.x)) / beta


def largest_renormalised(call: Call) -> Any:
    values, places = call.right()
    return torch.return_types.topk((values / values.sum(call.option("dim", 2, -1), keepdim=True), places))


def largest_alone(call: Call) -> Any:
    """0 for all of the k but the first."""
    values, places = call.right()
    only_if(call.option("dim", 2, -1) in (-1, values.ndim - 1))
    return torch.return_types.topk((values * (torch.arange(values.shape[-1]) == 0), places))


def rolled_back(call: Call) -> Any:
    shifts, dims = call.option("shifts", 1, None), call.option("dims", 2, ())
    only_if(isinstance(shifts, int | Sequence))
    return call.x.roll(-shifts if isinstance(shifts, int) else [-by for by in shifts], dims)


def operand(place: int, call: Call) -> Any:
    """One of the two operands alone."""
    only_if(len(call.args) == 2 and all(isinstance(x, Tensor) for x in call.args))
    x = call.args[place]
    only_if(x.is_floating_point())
    return x.expand(call.right().shape)


def extreme(other: str, call: Call) -> Any:
    """The maximum for the minimum, or the other way round."""
    name = call.name.replace("max" if other == "min" else "min", other)
    return getattr(torch, name)(*call.args, **call.options)


def without_number(call: Call) -> Any:
    """x for x + 1, and for 1 + x, which is the same call."""
    only_if(len(call.args) == 2 and isinstance(call.x, Tensor) and isinstance(call.args[1], int | float))
    call.facts |= {"c": f"{call.args[1]:.6g}"}
    return call.x.clone()


def to_each_term(call: Call) -> Any:
    only_if(call.x is call.last.result)
    only_if(all(isinstance(x, Tensor) and x.is_floating_point() for x in call.last.args))
    return call.on(call.last.args[0]) + call.on(call.last.args[1])


def residual_of_normed(call: Call) -> Any:
    """norm(x) + f(norm(x)) for x + f(norm(x))."""
    only_if(call.x is call.last.x)
    return call.on(call.last.result)


def normed_sum(call: Call) -> Any:
    """norm(x + f(x)) for x + f(norm(x))."""
    only_if(call.x is call.last.x)
    return call.last.on(call.right())


# Parts, axes and convolutions


def in_order(order: tuple[int, ...], parts: Sequence[Any]) -> Any:
    only_if(len(parts) == len(order))
    return tuple(parts[i] for i in order)


def halves_exchanged(call: Call) -> Any:
    axis = call.option("dim", 1, -1)
    return call.x.roll(call.x.shape[axis] // 2, axis)


def _cut(call: Call) -> tuple[int, int, bool]:
    """Return the axis of x[:, :n] or x[:, -n:], how many entries are cut off, and whether these are the last."""
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    only_if(all(isinstance(part, slice) or part is ... for part in index))
    cut = [place for place, part in enumerate(index) if part is not ... and part != slice(None)]
    only_if(len(cut) == 1)
    part, axis = index[cut[0]], cut[0] - len(index) if ... in index[: cut[0]] else cut[0]
    only_if(part.step is None and (part.start is None) != (part.stop is None))
    off = call.x.shape[axis] - call.right().shape[axis]
    only_if(0 < off < call.x.shape[axis])
    return axis, off, part.start is None


def cut_otherwise(call: Call) -> Any:
    """x[:, :n] for x[:, -n:], on the axis where the slice stands."""
    axis, off, at_end = _cut(call)
    return call.x.narrow(axis, off if at_end else 0, call.x.shape[axis] - off)


def cut_on_both_sides(call: Call) -> Any:
    """The middle for x[:, :n], as where a causal convolution becomes one that is SAME, which pads less in front."""
    axis, off, _ = _cut(call)
    only_if(off > 1)
    return call.x.narrow(axis, off - off // 2, call.x.shape[axis] - off)


def padded_on_both_sides(call: Call) -> Any:
    pads = call.option("pad", 1, ())
    both = [*zip(pads[::2], pads[1::2], strict=True)]
    only_if(any(min(pair) == 0 and max(pair) > 1 for pair in both))
    even = [n for pair in both for n in (sum(pair) // 2, sum(pair) - sum(pair) // 2)]
    return call.on(call.x, even)


def pixels_before_channels(call: Call) -> Any:
    """Channels of [r, r, c] for [c, r, r], as in TensorFlow's depth to space."""
    r = call.option("upscale_factor", 1, 1)
    return call.on(call.x.unflatten(-3, (r, r, -1)).movedim(-3, -5).flatten(-5, -3))


def pixels_behind_channels(call: Call) -> Any:
    """The same of space to depth."""
    r = call.option("downscale_factor", 1, 1)
    return call.right().unflatten(-3, (-1, r, r)).movedim(-5, -3).flatten(-5, -3)


def other_end(call: Call) -> Any:
    """x[:, 0] for x[:, -1], or the other way round."""
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    only_if(call.x.is_floating_point() and sum(isinstance(part, int) and part in (0, -1) for part in index) == 1)
    return call.on(call.x, tuple(-1 - part if isinstance(part, int) and part in (0, -1) else part for part in index))


def directions_exchanged(call: Call) -> Any:
    """The results of the way back before those of the way there, of the last layer."""
    is_packed = not isinstance(call.args[2], list)
    only_if(call.args[-1 if is_packed else -2])  # bidirectional; before batch_first, which a packed one has not
    result, *states = call.right()
    return (result.roll(result.shape[-1] // 2, -1), *states)


def split_otherwise(call: Call) -> Any:
    """[…, size, heads] for […, heads, size]."""
    shape = call.right().shape
    only_if(len(shape) > call.x.ndim and math.prod(shape[-2:]) == call.x.shape[-1])
    call.facts |= {"sizes": f"{shape[-2]} and {shape[-1]}"}
    return call.x.reshape(*shape[:-2], shape[-1], shape[-2]).mT


def merged_otherwise(call: Call) -> Any:
    shape, sizes = call.right().shape, call.x.shape[-2:]
    only_if(call.x.ndim > len(shape) and len(sizes) == 2 and shape[-1] % math.prod(sizes) == 0)
    call.facts |= {"sizes": f"{sizes[0]} and {sizes[1]}"}
    return call.x.mT.reshape(shape)


def channels_last(call: Call) -> Any:
    right = call.right()
    only_if(call.x.ndim == 4 and right.ndim < 4)
    return call.x.permute(0, 2, 3, 1).reshape(right.shape)


def tiled(call: Call) -> Any:
    axis = call.option("dim", 2, 0)
    return torch.cat([call.x] * (call.right().shape[axis] // call.x.shape[axis]), axis)


CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
POOL = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")


def _convolved(call: Call, *options: str) -> tuple[dict[str, Any], Iterator[tuple[int, ...]]]:
    """Return the arguments of a convolution by name, and these options, one number for each axis of the kernel."""
    given = {"stride": 1, "padding": 0, "dilation": 1} | dict(zip(CONVOLUTION, call.args, strict=False)) | call.options
    axes, kernel = call.x.ndim - 2, given["weight"].shape[2:]
    if isinstance(given["padding"], str):
        only_if(given["padding"] == "same" and all(size % 2 for size in kernel))
        reach = given["dilation"] if isinstance(given["dilation"], tuple) else (given["dilation"],) * axes
        given["padding"] = tuple(by * (size // 2) for by, size in zip(reach, kernel, strict=True))
    return given, (n if isinstance(n := given[name], tuple) else (n,) * axes for name in options)


def _pads(padding: tuple[int, ...], less: int = 0) -> list[int]:
    """What `F.pad` takes: the last axis first, so much less at the beginning of each."""
    return [pad for n in padding[::-1] for pad in (n - less, n)]


def padding_same(call: Call) -> Any:
    """At stride 2, one less than PyTorch pads at the beginning."""
    given, (stride, padding) = _convolved(call, "stride", "padding")
    only_if(set(stride) == {2} and all(padding))
    return call.function(**{**given, "input": F.pad(call.x, _pads(padding, less=1)), "padding": 0})


def other_padding(mode: str, call: Call) -> Any:
    given, (padding,) = _convolved(call, "padding")
    only_if(any(padding))
    return call.function(**{**given, "input": F.pad(call.x, _pads(padding), mode=mode), "padding": 0})


def not_dilated(call: Call) -> Any:
    """With as much less padding, so that the size is the same."""
    given, (padding, dilation) = _convolved(call, "padding", "dilation")
    kernel = given["weight"].shape[2:]
    less = tuple(n - (by - 1) * (size - 1) // 2 for n, by, size in zip(padding, dilation, kernel, strict=True))
    only_if(less != padding and min(less) >= 0)
    return call.function(**{**given, "padding": less, "dilation": 1})


def pooled(kind: str, call: Call) -> Any:
    """The maximum for the mean, or the other way round."""
    if "pool" not in call.name:
        return getattr(call.x, "amax" if kind == "max" else "mean")(*call.args[1:], **call.options)
    function = getattr(F, call.name.replace("max" if kind == "avg" else "avg", kind))
    if "adaptive" in call.name:
        return function(*call.args, **call.options)
    given = dict(zip(POOL, call.args, strict=False)) | call.options
    return function(**{name: given[name] for name in POOL[:4] if name in given})


def padding_in_mean(call: Call) -> Any:
    given = dict(zip(POOL, call.args, strict=False)) | call.options
    return call.function(**{**given, "count_include_pad": not given.get("count_include_pad", True)})


def maximum_padded(value: float, less: int, call: Call) -> Any:
    """With so much less at the beginning; at stride 2, one less is SAME."""
    given = dict(zip(POOL[:4], call.args, strict=False)) | call.options
    axes = call.x.ndim - 2
    stride, padding = (n if isinstance(n := given[name], tuple) else (n,) * axes for name in ("stride", "padding"))
    only_if(all(padding) and (not less or set(stride) == {2}))
    return call.function(F.pad(call.x, _pads(padding, less), value=value), given["kernel_size"], stride)


def resized(options: dict[str, Any], call: Call) -> Any:
    given = call.named()
    only_if(any(given[name] != value for name, value in options.items()))
    result = call.function(**{**given, "align_corners": None, **options})
    only_if(result.numel() < call.x.numel() or options.get("mode") != "bilinear" or not options["antialias"])
    return result

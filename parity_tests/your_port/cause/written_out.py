"""The wrong functions that are more than an expression; each is computed in the place of `call.right()`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from parity_tests.your_port.cause.planting import Call, only_if

Wrong = Callable[[Call], Any]
OfScores = Callable[[Any, Any, Any], Any]
"""(scores, what is hidden, the value there) -> masked scores."""


def other_option(name: str, value: Any, call: Call) -> Any:
    return call.but(**{name: value})


def other_second(value: Any, call: Call) -> Any:
    return call.on(call.x, value)


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
    only_if(small and isinstance(call.x, torch.Tensor) and call.x.is_floating_point())
    return call.on(call.x, eps)


def one_more(call: Call) -> Any:
    scales = [x for x in call.args if isinstance(x, torch.nn.Parameter) and x.ndim == 1]
    only_if(len(scales) == 1 and len(call.args) == 2)
    return call.function(*(x + 1 if x is scales[0] else x for x in call.args))


def deviation_of_n(call: Call) -> Any:
    return call.x.std(call.option("dim", 1, None), correction=0, keepdim=call.option("keepdim", 3, False))


def epsilon_inside(call: Call) -> Any:
    only_if(call.x is call.last.result)
    return (call.x**2 + call.args[1]).sqrt()


def other_axis(axis: int, call: Call) -> Any:
    only_if(axis < call.x.ndim and call.option("dim", 1, -1) % call.x.ndim != axis)
    return getattr(torch, call.name)(call.x.masked_fill(call.x < -1e30, -math.inf), axis)  # the lowest number is a mask


# Masks and losses


def other_mask(change: OfScores, call: Call) -> Any:
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
        masks = [i for i in (0, 1) if args[i].min() <= -100 and ((args[i] == 0) | (args[i] <= -100)).all()]
        only_if(masks)
        mask, scores = args[masks[0]], args[1 - masks[0]]
        hidden, value = mask <= -100, mask.min()
    only_if(scores.any())  # else the mask itself is being made
    right = call.right()
    return torch.as_tensor(change(scores, hidden, value)).expand(right.shape).to(right.dtype)


def count_all(call: Call) -> Any:
    x = call.x
    only_if(isinstance(x, torch.Tensor) and x.ndim and ((x == 0) | (x == 1)).all() and (x == 0).any())
    return call.on(torch.ones_like(x))


def no_label_ignored(call: Call) -> Any:
    """The ignored ones count as a class."""
    only_if(call.named()["ignore_index"] >= 0)
    return call.but(ignore_index=int(call.args[1].max()) + 1)


def sentences(call: Call) -> Any:
    """The labels of sentences, before they are flattened."""
    only_if(isinstance(call.x, torch.Tensor) and not call.x.is_floating_point() and call.x.ndim == 2)
    return call.right()


def mean_of_sentences(call: Call) -> Any:
    labels = call.args[1]
    count = len(labels if labels.ndim == 2 else call.last.x)
    only_if(labels.numel() > count)
    losses = call.but(reduction="none").reshape(count, -1)
    seen = (labels != call.named()["ignore_index"]).reshape(count, -1)
    return (losses.sum(1) / seen.sum(1)).mean()


# Factors and terms


def other_factor(change: Callable[[float], float], call: Call) -> Any:
    only_if(len(call.args) == 2)
    numbers = [x for x in call.args if not isinstance(x, torch.Tensor)]
    numbers = numbers or [x for x in call.args if x.numel() == 1 and not x.requires_grad and x.grad_fn is None]
    only_if(len(numbers) == 1 and float(numbers[0]) != 0)
    c = float(numbers[0])
    new = change(c)
    only_if(abs(new - c) > 1e-12 * abs(c))
    call.facts |= {"c": f"{c:.6g}", "new": f"{new:.6g}"}
    return call.function(*(new if x is numbers[0] else x for x in call.args))


def operand(place: int, call: Call) -> Any:
    """One of the two operands alone."""
    x = call.args[place]
    only_if(len(call.args) == 2 and isinstance(x, torch.Tensor) and x.is_floating_point())
    return x.expand(call.right().shape)


def to_each_term(call: Call) -> Any:
    only_if(call.x is call.last.result)
    only_if(all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in call.last.args))
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


def cut_otherwise(call: Call) -> Any:
    """x[…, :n] for x[…, -n:]."""
    last = call.args[1][-1] if isinstance(call.args[1], tuple) and call.args[1] else None
    start, stop = (last.start, last.stop) if isinstance(last, slice) and last.step is None else (None, None)
    only_if((start is None) != (stop is None))
    size = call.right().shape[-1]
    return call.x[..., -size:] if start is None else call.x[..., :size]


def split_by_heads(heads: int, call: Call) -> Any:
    """[…, heads, 3, size] for [3, heads, size]."""
    parts = call.right()
    size = parts[0].shape[-1]
    only_if(size % heads == 0 and size > heads and len(parts) * size == call.x.shape[-1])
    return call.x.unflatten(-1, (heads, len(parts), -1)).movedim(-2, 0).flatten(-2)


def split_otherwise(call: Call) -> Any:
    """[…, size, heads] for […, heads, size]."""
    shape = call.right().shape
    only_if(len(shape) > call.x.ndim and math.prod(shape[-2:]) == call.x.shape[-1])
    return call.x.reshape(*shape[:-2], shape[-1], shape[-2]).mT


def merged_otherwise(call: Call) -> Any:
    shape = call.right().shape
    only_if(call.x.ndim > len(shape) and math.prod(call.x.shape[-2:]) == shape[-1])
    return call.x.mT.reshape(shape)


def channels_last(call: Call) -> Any:
    right = call.right()
    only_if(call.x.ndim == 4 and right.ndim < 4)
    return call.x.permute(0, 2, 3, 1).reshape(right.shape)


def tiled(call: Call) -> Any:
    axis = call.option("dim", 2, 0)
    return torch.cat([call.x] * (call.right().shape[axis] // call.x.shape[axis]), axis)


CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def padding_same(call: Call) -> Any:
    """At stride 2, one less than PyTorch pads at the beginning."""
    given = dict(zip(CONVOLUTION, call.args, strict=False)) | call.options
    axes = call.x.ndim - 2
    stride, padding = (n if isinstance(n := given.get(name, 1), tuple) else (n,) * axes for name in CONVOLUTION[3:5])
    only_if(set(stride) == {2} and all(padding))
    pads = [pad for n in padding[::-1] for pad in (n - 1, n)]
    return call.function(**{**given, "input": F.pad(call.x, pads), "padding": 0})

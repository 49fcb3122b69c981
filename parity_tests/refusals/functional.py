"""Arguments that both sides must refuse: wrong shapes, ranks, dtypes and choices."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.case import RUN_DTYPE, Refusal
from parity_tests.cases import CASES


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ints(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int32)


def bools(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def masks() -> Iterator[Refusal]:
    yield Refusal("length_mask", "boolean lengths", {"valid_lens": bools(2)}, {"size": 3})
    yield Refusal("length_mask", "a negative size", {"valid_lens": ints(2)}, {"size": -1})
    for name in ("masked_softmax", "masked_log_softmax"):
        scores = {"scores": floats(2, 3, 4)}
        yield Refusal(name, "integer scores", {"scores": ints(2, 3, 4)})
        yield Refusal(name, "scores of one axis", {"scores": floats(4)})
        yield Refusal(name, "lengths of another batch", {**scores, "valid_lens": ints(3)})
        yield Refusal(name, "lengths of other queries", {**scores, "valid_lens": ints(2, 4)})
        yield Refusal(name, "lengths of every key", {**scores, "valid_lens": ints(2, 3, 4)})
        yield Refusal(name, "boolean lengths", {**scores, "valid_lens": bools(2)})
        yield Refusal(name, "an integer mask", {**scores, "mask": ints(2, 3, 4)})
        yield Refusal(name, "a mask of other keys", {**scores, "mask": bools(2, 3, 5)})
        yield Refusal(name, "a mask of more axes", {**scores, "mask": bools(1, 2, 3, 4)})
        yield Refusal(name, "an unknown empty_row", scores, {"empty_row": "nan"})
    yield Refusal("attention_mask", "scores of one axis", {"valid_lens": ints()}, {"shape": (4,)})
    yield Refusal("attention_mask", "lengths of another batch", {"valid_lens": ints(3)}, {"shape": (2, 3, 4)})
    yield Refusal("sequence_mask", "lengths of another batch", {"X": floats(2, 3), "valid_lens": ints(3)})
    yield Refusal("sequence_mask", "lengths of every position", {"X": floats(2, 3), "valid_lens": ints(2, 3)})
    yield Refusal("sequence_mask", "boolean lengths", {"X": floats(2, 3), "valid_lens": bools(2)})
    yield Refusal("causal_mask", "fewer than no queries", {}, {"num_queries": -1})
    yield Refusal("causal_mask", "fewer than no keys", {}, {"num_queries": 2, "num_keys": -1})


def scores() -> Iterator[Refusal]:
    more = {"bilinear_score": {"weight": floats(4, 4)}, "additive_score": {"w_v": floats(4)}}
    for name in ("dot_score", "scaled_dot_score", "gaussian_score", "bilinear_score", "additive_score"):
        fitting = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), **more.get(name, {})}
        yield Refusal(name, "other features", {**fitting, "keys": floats(2, 5, 6)})
        yield Refusal(name, "another batch", {**fitting, "keys": floats(3, 5, 4)})
        yield Refusal(name, "a batch to be broadcast", {**fitting, "keys": floats(1, 5, 4)})
        yield Refusal(name, "other ranks", {**fitting, "keys": floats(5, 4)})
        yield Refusal(name, "one axis", {**fitting, "queries": floats(4), "keys": floats(4)})
        yield Refusal(name, "integer queries", {**fitting, "queries": ints(2, 3, 4)})
        yield Refusal(name, "integer keys", {**fitting, "keys": ints(2, 5, 4)})
    yield Refusal(
        "bilinear_score", "a weight transposed", {"queries": floats(2, 3), "keys": floats(5, 4), "weight": floats(4, 3)}
    )
    yield Refusal(
        "additive_score", "w_v of two axes", {"queries": floats(2, 3), "keys": floats(5, 3), "w_v": floats(1, 3)}
    )
    yield Refusal("gaussian_score", "sigma of 0", {"queries": floats(2, 3), "keys": floats(5, 3)}, {"sigma": 0.0})


def attentions() -> Iterator[Refusal]:
    fitting = {"scores": floats(2, 3, 5), "values": floats(2, 5, 4)}
    yield Refusal("attend", "values of other keys", {**fitting, "values": floats(2, 4, 4)})
    yield Refusal("attend", "values of another batch", {**fitting, "values": floats(1, 5, 4)})
    yield Refusal("attend", "values of another rank", {**fitting, "values": floats(5, 4)})
    yield Refusal("attend", "integer values", {**fitting, "values": ints(2, 5, 4)})
    yield Refusal("attend", "a keep-mask of floats", {**fitting, "keep_mask": floats(2, 3, 5)})
    yield Refusal("attend", "a keep-mask of another shape", {**fitting, "keep_mask": bools(2, 3, 4)})
    fitting = {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 6)}
    yield Refusal("attention", "other features", {**fitting, "key": floats(2, 5, 3)})
    yield Refusal("attention", "values of other keys", {**fitting, "value": floats(2, 4, 6)})
    yield Refusal("attention", "another batch", {**fitting, "query": floats(1, 3, 4)})
    yield Refusal("attention", "integers", {**fitting, "query": ints(2, 3, 4)})
    yield Refusal("attention", "an integer mask", {**fitting, "mask": ints(2, 3, 5)})
    fitting = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), "values": floats(2, 5, 6)}
    dot = {"score": "dot_score"}
    yield Refusal("blockwise_attention", "values of other keys", {**fitting, "values": floats(2, 4, 6)}, dot)
    yield Refusal("blockwise_attention", "another batch", {**fitting, "queries": floats(1, 3, 4)}, dot)
    yield Refusal("blockwise_attention", "integers", {**fitting, "queries": ints(2, 3, 4)}, dot)
    yield Refusal("blockwise_attention", "an integer mask", {**fitting, "mask": ints(2, 3, 5)}, dot)
    yield Refusal("blockwise_attention", "lengths of other queries", {**fitting, "valid_lens": ints(2, 4)}, dot)
    yield Refusal("blockwise_attention", "an unknown empty_row", fitting, {**dot, "empty_row": "nan"})
    fitting = {"x": floats(2, 3), "keep_mask": bools(2, 3)}
    yield Refusal("dropout", "a rate of 1", fitting, {"rate": 1.0})
    yield Refusal("dropout", "a mask to be broadcast", {**fitting, "keep_mask": bools(3)}, {"rate": 0.5})
    yield Refusal("dropout", "a mask of integers", {**fitting, "keep_mask": ints(2, 3)}, {"rate": 0.5})
    yield Refusal("dropout", "integers", {**fitting, "x": ints(2, 3)}, {"rate": 0.5})


def recurrences() -> Iterator[Refusal]:
    for name, gates in (("lstm_step", 4), ("gru_step", 3)):
        carry = (floats(2, 3), floats(2, 3)) if gates == 4 else floats(2, 3)
        kernel, bias = floats(3, gates * 3), floats(gates * 3)
        fitting: dict[str, Any] = {"carry": carry, "projected": floats(2, gates * 3), "kernel": kernel, "bias": bias}
        yield Refusal(name, "gates of another width", {**fitting, "projected": floats(2, gates * 4)})
        yield Refusal(name, "another batch", {**fitting, "projected": floats(1, gates * 3)})
        yield Refusal(name, "another kernel", {**fitting, "kernel": floats(4, gates * 3)})
        yield Refusal(name, "another bias", {**fitting, "bias": floats(1)})
        yield Refusal(name, "an integer bias", {**fitting, "bias": ints(gates * 3)})
        yield Refusal(name, "integer gates", {**fitting, "projected": ints(2, gates * 3)})
    other = {"carry": (floats(2, 3), floats(1, 3)), "projected": floats(2, 12), "kernel": floats(3, 12), "bias": None}
    yield Refusal("lstm_step", "a cell to be broadcast", other)


def sequences() -> Iterator[Refusal]:
    name, inputs = "reverse_sequence", floats(2, 3, 4)
    yield Refusal(name, "lengths of another batch", {"inputs": inputs, "valid_lens": ints(3)})
    yield Refusal(name, "lengths of every position", {"inputs": inputs, "valid_lens": ints(2, 3)})
    yield Refusal(name, "boolean lengths", {"inputs": inputs, "valid_lens": bools(2)})
    yield Refusal(name, "one axis", {"inputs": floats(3)})
    for cell, gates in (("lstm", 4), ("gru", 3)):
        carry, other = ((part, part) if cell == "lstm" else part for part in (floats(2, 3), floats(3, 3)))
        inputs, kernel = floats(2, 5, gates * 3), floats(3, gates * 3)
        fitting = {"carry": carry, "inputs": inputs, "valid_lens": None, "kernel": kernel}
        for why, wrong in (
            ("inputs of one axis", {"inputs": floats(gates * 3)}),
            ("inputs of another width", {"inputs": floats(2, 5, gates * 4)}),
            ("lengths of another batch", {"valid_lens": ints(3)}),
            ("lengths of every position", {"valid_lens": ints(2, 5)}),
            ("boolean lengths", {"valid_lens": bools(2)}),
            ("a carry of another batch", {"carry": other}),
        ):
            yield Refusal("unroll", f"{cell}, {why}", {**fitting, **wrong}, {"cell": cell})


def losses() -> Iterator[Refusal]:
    fitting = {"logits": floats(2, 3, 4), "labels": ints(2, 3)}
    name = "masked_cross_entropy"
    yield Refusal(name, "labels of another shape", {**fitting, "labels": ints(2, 4)})
    yield Refusal(name, "floating labels", {**fitting, "labels": floats(2, 3)})
    yield Refusal(name, "integer logits", {**fitting, "logits": ints(2, 3, 4)})
    yield Refusal(name, "lengths of another batch", {**fitting, "valid_lens": ints(3)})
    yield Refusal(name, "an integer mask", {**fitting, "mask": ints(2, 3)})
    yield Refusal(name, "a mask of another shape", {**fitting, "mask": bools(2, 4)})
    yield Refusal(name, "an unknown reduction", fitting, {"reduction": "mean"})
    yield Refusal(name, "smoothing beyond 1", fitting, {"label_smoothing": 1.5})
    yield Refusal(name, "lengths of every position", {**fitting, "valid_lens": ints(2, 3)})
    yield Refusal(name, "boolean lengths", {**fitting, "valid_lens": bools(2)})
    yield Refusal(name, "logits of one axis", {"logits": floats(4), "labels": ints()})


def projected_losses() -> Iterator[Refusal]:
    fitting = {"features": floats(2, 3, 5), "kernel": floats(5, 4), "bias": floats(4)}
    fitting |= {"labels": ints(2, 3), "weights": floats(2, 3)}
    name = "projected_cross_entropy"
    yield Refusal(name, "labels of another shape", {**fitting, "labels": ints(2, 4)})
    yield Refusal(name, "floating labels", {**fitting, "labels": floats(2, 3)})
    yield Refusal(name, "integer features", {**fitting, "features": ints(2, 3, 5)})
    yield Refusal(name, "a kernel the other way round", {**fitting, "kernel": floats(4, 5)})
    yield Refusal(name, "a bias of another vocabulary", {**fitting, "bias": floats(5)})
    yield Refusal(name, "weights of another shape", {**fitting, "weights": floats(2, 4)})
    yield Refusal(name, "integer weights", {**fitting, "weights": ints(2, 3)})
    yield Refusal(name, "smoothing beyond 1", fitting, {"label_smoothing": 1.5})


def searches() -> Iterator[Refusal]:
    """Over the tables of the cases: 3 sentences of at most 5 tokens of a vocabulary of 6."""
    fitting = {"table": floats(3, 5, 6, 6), "attention": floats(3, 6, 4)}
    noise = {"sample_search": {"noise": floats(3, 1, 5, 6)}}
    for name in ("greedy_search", "beam_search", "sample_search"):
        table = {**fitting, **noise.get(name, {})}
        yield Refusal(name, "a least length beyond the greatest", table, {"min_len": 6})
        yield Refusal(name, "n-grams of nothing", table, {"no_repeat_ngram": 0})
        yield Refusal(name, "a prefix beyond the greatest length", {**table, "prefix": ints(3, 6)})
        yield Refusal(name, "a prefix of another batch", {**table, "prefix": ints(2, 4)})
        yield Refusal(name, "one prefix without its batch", {**table, "prefix": ints(3)})
        yield Refusal(name, "a prefix of floats", {**table, "prefix": floats(3, 4)})
        yield Refusal(name, "lengths without a prefix", {**table, "prefix_lens": ints(3)})
        yield Refusal(name, "lengths of other prefixes", {**table, "prefix": ints(3, 4), "prefix_lens": ints(2)})
    name = "beam_search"
    yield Refusal(name, "an empty beam", fitting, {"beam_size": 0})
    yield Refusal(name, "a negative penalty", fitting, {"length_penalty": -1.0})
    yield Refusal(name, "an infinite penalty", fitting, {"coverage_penalty": float("inf")})
    yield Refusal(name, "an unknown norm", fitting, {"length_norm": "mean"})
    yield Refusal(name, "coverage of nothing", {**fitting, "attention": None}, {"coverage_penalty": 0.1})
    yield Refusal(name, "sources of another batch", {**fitting, "source_lens": ints(2)}, {"coverage_penalty": 0.1})
    name, fitting = "sample_search", {**fitting, **noise["sample_search"]}
    yield Refusal(name, "no samples", fitting, {"num_samples": 0})
    yield Refusal(name, "a temperature of 0", fitting, {"temperature": 0.0})
    yield Refusal(name, "the likeliest none", fitting, {"top_k": 0})
    yield Refusal(name, "a nucleus of nothing", fitting, {"top_p": 0.0})
    yield Refusal(name, "more than everything", fitting, {"top_p": 1.1})
    yield Refusal(name, "noise for other samples", fitting, {"num_samples": 2})
    yield Refusal(name, "noise of integers", {**fitting, "noise": ints(3, 1, 5, 6)})
    yield Refusal("ensemble", "no models", {"models": ()}, {"average": "probability"})
    yield Refusal("ensemble", "an unknown average", {"models": (fitting,)}, {"average": "mean"})


def positions() -> Iterator[Refusal]:
    sizes = {"length": 3, "num_features": 4, "dtype": RUN_DTYPE}
    yield Refusal("sinusoidal_positions", "a negative length", {}, {**sizes, "length": -1})
    yield Refusal("sinusoidal_positions", "no features", {}, {**sizes, "num_features": 0})


FUNCTIONAL_REFUSALS = (
    *masks(),
    *scores(),
    *attentions(),
    *recurrences(),
    *sequences(),
    *losses(),
    *projected_losses(),
    *positions(),
    *searches(),
)


ATTENTIONS: dict[str, dict[str, Any]] = {
    "AdditiveAttention": {"num_hiddens": 4},
    "DotProductAttention": {},
    "BilinearAttention": {},
    "GaussianAttention": {},
    "MultiHeadAttention": {"num_hiddens": 4, "num_heads": 2},
}


def modules() -> Iterator[Refusal]:
    """For every attention module: queries, keys and values that do not fit each other or are no floats."""
    for name, options in ATTENTIONS.items():
        fitting = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), "values": floats(2, 5, 4)}
        for why, wrong in (
            ("keys of another batch", {"keys": floats(1, 5, 4)}),
            ("queries of another batch", {"queries": floats(1, 3, 4)}),
            ("queries of another rank", {"queries": floats(3, 4)}),
            ("values of other keys", {"values": floats(2, 4, 4)}),
            ("queries of one axis", {"queries": floats(4)}),
            ("integer queries", {"queries": ints(2, 3, 4)}),
            ("integer keys", {"keys": ints(2, 5, 4)}),
            ("integer values", {"values": ints(2, 5, 4)}),
            ("lengths of another batch", {"valid_lens": ints(3)}),
            ("boolean lengths", {"valid_lens": bools(2)}),
            ("an integer mask", {"mask": ints(2, 3, 5)}),
            ("a mask of another shape", {"mask": bools(2, 3, 4)}),
            ("a keep-mask of another shape", {"keep_mask": bools(2, 3, 4)}),
        ):
            yield Refusal(name, why, {**fitting, **wrong}, options)
        yield Refusal(name, "a rate of 1", fitting, {**options, "dropout": 1.0})
        yield Refusal(name, "a negative rate", fitting, {**options, "dropout": -0.1})
        yield Refusal(name, "an unknown empty_row", fitting, {**options, "empty_row": "nan"})
    yield Refusal("GaussianAttention", "sigma of 0", fitting, {"sigma": 0.0})
    yield Refusal("MultiHeadAttention", "no heads", fitting, {"num_hiddens": 4, "num_heads": 0})
    heads = {"num_hiddens": 5, "num_heads": 2}
    yield Refusal("MultiHeadAttention", "heads that do not divide", fitting, heads)


MODULE_REFUSALS = tuple(modules())


def values() -> Iterator[Refusal]:
    """Lengths that are none, which a trace cannot see."""
    wrong_lens = {
        "a length beyond the positions": np.array([6, 1], np.int32),
        "a negative length": np.array([-1, 1], np.int32),
        "a length of NaN": np.array([np.nan, 1], np.float32),
    }
    for why, lens in wrong_lens.items():
        yield Refusal("length_mask", why, {"valid_lens": lens}, {"size": 5})
        yield Refusal("attention_mask", why, {"valid_lens": lens}, {"shape": (2, 3, 5)})
        yield Refusal("sequence_mask", why, {"X": floats(2, 5), "valid_lens": lens})
        yield Refusal("reverse_sequence", why, {"inputs": floats(2, 5, 4), "valid_lens": lens})
        for name in ("masked_softmax", "masked_log_softmax"):
            yield Refusal(name, why, {"scores": floats(2, 3, 5), "valid_lens": lens})
        yield Refusal("attend", why, {"scores": floats(2, 3, 5), "values": floats(2, 5, 4), "valid_lens": lens})
        fitting = {"query": floats(2, 3, 4), "key": floats(2, 5, 4), "value": floats(2, 5, 4)}
        yield Refusal("attention", why, {**fitting, "valid_lens": lens})
        fitting = {"logits": floats(2, 5, 4), "labels": ints(2, 5), "valid_lens": lens}
        yield Refusal("masked_cross_entropy", why, fitting)
        for name, options in ATTENTIONS.items():
            fitting = {"queries": floats(2, 3, 4), "keys": floats(2, 5, 4), "values": floats(2, 5, 4)}
            yield Refusal(name, why, {**fitting, "valid_lens": lens}, options)


VALUE_REFUSALS = tuple(values())


def ask_jax(refusal: Refusal, traced: bool = True) -> Callable[[], Any]:
    """What should raise: under a trace, where a user of jit would want to know; outside it where it is a value."""
    calls = {case.name: case.jax.call for case in CASES}

    def call(inputs: Any) -> Any:
        if refusal.name not in jax_attn.modules.__all__:
            options = {name: jnp.float32 if value == RUN_DTYPE else value for name, value in refusal.options.items()}
            return calls[refusal.name]({}, {**_absent(refusal), **inputs}, options)
        module = getattr(jax_attn, refusal.name)(**refusal.options)
        return module.init(jax.random.key(0), **inputs)

    arrays = jax.tree.map(jnp.asarray, dict(refusal.inputs))
    return lambda: jax.eval_shape(call, arrays) if traced else call(arrays)


def ask_torch(refusal: Refusal) -> Callable[[], Any]:
    """What should raise, in PyTorch."""
    calls = {case.name: case.torch.call for case in CASES}

    def call() -> Any:
        inputs = jax.tree.map(torch.tensor, dict(refusal.inputs))
        if refusal.name not in jax_attn.modules.__all__:
            options = {name: torch.float32 if value == RUN_DTYPE else value for name, value in refusal.options.items()}
            return calls[refusal.name](None, {**_absent(refusal), **inputs}, options)
        sizes = {"query_size": 4, "key_size": 4} if refusal.name == "BilinearAttention" else {}
        return getattr(torch_ref, refusal.name)(**refusal.options, **sizes)(**inputs)

    return call


def _absent(refusal: Refusal) -> dict[str, None]:
    """Arguments that a case's call reads by name, left out of the refusal."""
    return {"mask": None} if refusal.name == "attention_mask" else {}

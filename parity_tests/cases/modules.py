"""The modules: the same weights on both sides, the gradient of each compared under PyTorch's name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.case import Case, Variant, random_for
from parity_tests.cases.functional import SOFTMAX, TANH, extreme_pair, hide_arrays, hide_time, ints
from parity_tests.cases.masking import COMMON, EXTREME, MORE, Masking
from parity_tests.jax_side import linen_module
from parity_tests.torch_side import torch_module

QUERY_SIZE, KEY_SIZE, VALUE_SIZE = 4, 6, 3
Features = tuple[int, int]


def size(inputs: Any, name: str) -> int:
    """The number of features of an input."""
    return inputs[name].shape[-1]


# Attention


def attention_inputs(masking: Masking, features: Features, *seed: str) -> dict[str, Any]:
    rng = random_for(*seed, masking.name)
    *batch, num_queries, num_keys = masking.shape
    queries = rng.normal(size=(*batch, num_queries, features[0]))
    keys = rng.normal(size=(*batch, num_keys, features[1]))
    if masking is EXTREME and features[0] == features[1]:
        queries, keys = extreme_pair(queries, keys)
    arrays = {"queries": queries, "keys": keys, "values": rng.normal(size=(*batch, num_keys, VALUE_SIZE))}
    return {**hide_arrays(arrays, masking), **masking.arguments(), "keep_mask": None}


def attention_variants(
    name: str, features: Features, heads: int | None = None, vanishing: dict[str, str] | None = None, **options: Any
) -> Iterator[Variant]:
    """All maskings, and dropout by a keep-mask. `features` are those of queries and keys."""
    for masking in (*COMMON, MORE[5]):
        inputs = attention_inputs(masking, features, name)
        chosen = {**options, **masking.options}
        slow = masking.name in SLOW_MASKINGS and name != "AdditiveAttention"
        yield Variant(masking.name, inputs, chosen, vanishing=vanishing or {}, dtypes=masking.dtypes, slow=slow)
    lengths = COMMON[1]
    inputs = attention_inputs(lengths, features, name, "dropout")
    shape = lengths.shape if heads is None else (lengths.shape[0], heads, *lengths.shape[1:])
    keep_mask = random_for(name, "keep").random(shape) < 0.6
    options = {**options, "dropout": 0.4}
    yield Variant("dropout", {**inputs, "keep_mask": keep_mask}, options, vanishing=vanishing or {})


SLOW_MASKINGS = ("nothing masked", "lengths of each query", "more leading axes")
"""All modules share the code of masks, so one module is enough in the quick run."""


def attention_call(module: Any, inputs: Any) -> Any:
    """The call, and the same in two steps over a prepared memory, unless the lengths depend on the query."""
    direct = module(**inputs)
    lens, mask, keep_mask = inputs["valid_lens"], inputs["mask"], inputs["keep_mask"]
    if mask is not None or (lens is not None and lens.ndim == inputs["keys"].ndim - 1):
        return direct
    if isinstance(module, torch.nn.Module):
        memory = module.prepare(inputs["keys"], inputs["values"], lens)
    else:  # in Flax, bilinear attention must know the size of the queries to come
        memory = module.prepare(inputs["keys"], inputs["values"], lens, query_size=inputs["queries"].shape[-1])
    return *direct, *module.attend(inputs["queries"], memory, keep_mask=keep_mask)


ATTENTION_OUTPUTS = ("context", "weights", "context over a memory", "weights over a memory")


PROJECTED = (
    "scores of size S, projected and summed in another order, differ by S u, and so do the weights; then "
    f"{SOFTMAX}; and {TANH}"
)


def attention_case(name: str, variants: Iterator[Variant], *sizes: str) -> Case:
    """`sizes` are the inputs whose number of features PyTorch's module must know, such as `query_size`."""

    def build_torch(options: Any, inputs: Any) -> Any:
        known = {f"{part}_size": size(inputs, SIZED[part]) for part in sizes}
        return getattr(torch_ref, name)(**options, **known)

    def build_jax(options: Any, dtype: Any) -> Any:
        return getattr(jax_attn, name)(**options, param_dtype=dtype)

    torch_side, jax_side = torch_module(build_torch, attention_call), linen_module(build_jax, attention_call)
    return Case(name, tuple(variants), torch_side, jax_side, ATTENTION_OUTPUTS, factor=32, reason=PROJECTED)


SIZED = {"query": "queries", "key": "keys", "value": "values"}


def additive_variants() -> Iterator[Variant]:
    yield from attention_variants("AdditiveAttention", (QUERY_SIZE, KEY_SIZE), num_hiddens=5)
    inputs = attention_inputs(EXTREME, (QUERY_SIZE, KEY_SIZE), "AdditiveAttention")
    inputs["keys"] = inputs["keys"][:, :1] + 1e-5 * inputs["keys"]
    # Not in bfloat16, in which the sums that are projected are off by more than the keys' differences. The factor is
    # that of float64: 16 max|score|.
    scales, dtypes = {"w_v.weight": 1e4}, ("float64", "float32")
    yield Variant(EXTREME.name, inputs, {"num_hiddens": 5}, scales, dtypes=dtypes, factor=16e4)
    inputs = attention_inputs(COMMON[1], (QUERY_SIZE, KEY_SIZE), "no tanh")
    cancels = "without the tanh the query adds the same to every score of its row, which the softmax takes away"
    vanishing = {"gradient of queries": cancels, "gradient of W_q.weight": cancels}
    yield Variant("without the tanh", inputs, {"num_hiddens": 5, "use_tanh": False}, vanishing=vanishing)


def dot_variants() -> Iterator[Variant]:
    yield from attention_variants("DotProductAttention", (QUERY_SIZE, QUERY_SIZE))
    for scaled in (True, False):
        inputs = attention_inputs(EXTREME, (QUERY_SIZE, QUERY_SIZE), "DotProductAttention")
        yield Variant(f"{EXTREME.name}, scaled={scaled}", inputs, {"scaled": scaled})


def bilinear_variants() -> Iterator[Variant]:
    yield from attention_variants("BilinearAttention", (QUERY_SIZE, KEY_SIZE))
    inputs = attention_inputs(EXTREME, (QUERY_SIZE, KEY_SIZE), "BilinearAttention")
    inputs["keys"] = inputs["keys"][:, :1] + 1e-3 * inputs["keys"]
    yield Variant(EXTREME.name, {**inputs, "queries": inputs["queries"] * 2e3})
    yield Variant("scaled", attention_inputs(COMMON[1], (QUERY_SIZE, KEY_SIZE), "scaled"), {"scaled": True})


def gaussian_variants() -> Iterator[Variant]:
    yield from attention_variants("GaussianAttention", (QUERY_SIZE, QUERY_SIZE))
    inputs = attention_inputs(EXTREME, (QUERY_SIZE, QUERY_SIZE), "GaussianAttention")
    near = inputs["keys"][:, :1] + 1e-2 * random_for("near keys").normal(size=inputs["keys"].shape)
    far = {**inputs, "queries": inputs["queries"] / np.abs(inputs["queries"]).max() * 70, "keys": near}
    yield Variant("scores of −1e4", far)
    yield Variant("narrow", attention_inputs(COMMON[1], (QUERY_SIZE, QUERY_SIZE), "narrow"), {"sigma": 0.5})


KEY_BIAS = "it adds the same to every score of a row, which the softmax takes away"


def multi_head_variants() -> Iterator[Variant]:
    options = {"num_hiddens": 8, "num_heads": 2}
    vanishing = {"gradient of W_k.bias": KEY_BIAS}
    biased = {**options, "use_bias": True}
    yield from attention_variants("MultiHeadAttention", (QUERY_SIZE, KEY_SIZE), 2, vanishing, **biased)
    inputs = attention_inputs(COMMON[1], (QUERY_SIZE, KEY_SIZE), "without biases")
    yield Variant("without biases", inputs, {**options, "num_heads": 4})


# Embeddings


def embedding_variants() -> Iterator[Variant]:
    tokens = random_for("Embeddings").integers(0, 9, (3, 5)).astype(np.int32)
    yield Variant("two axes", {"tokens": tokens}, {"d_model": 4, "vocab_size": 9})
    yield Variant("one axis, 64-bit ids", {"tokens": tokens[0].astype(np.int64)}, {"d_model": 4, "vocab_size": 9})


def position_variants() -> Iterator[Variant]:
    rng = random_for("PositionalEncoding")
    inputs = {"x": rng.normal(size=(3, 7, 6)), "keep_mask": None}
    yield Variant("plain", inputs, {"d_model": 6})
    yield Variant("dropout", {**inputs, "keep_mask": rng.random((3, 7, 6)) < 0.5}, {"d_model": 6, "dropout": 0.5})
    yield Variant("no leading axis", {**inputs, "x": rng.normal(size=(50, 6))}, {"d_model": 6})


def position_call(module: Any, inputs: Any) -> Any:
    return module(inputs["x"], keep_mask=inputs["keep_mask"])


# Recurrent networks


def recurrent_variants(name: str, parts: int) -> Iterator[Variant]:
    def options(layers: int, bidirectional: bool, **more: Any) -> dict[str, Any]:
        return {"num_hiddens": 4, "num_layers": layers, "bidirectional": bidirectional, **more}

    def state(layers: int, directions: int, batch: tuple[int, ...] = (3,)) -> Any:
        drawn = tuple(rng.normal(size=(layers * directions, *batch, 4)) for _ in range(parts))
        return drawn if parts == 2 else drawn[0]

    rng = random_for(name)
    inputs, lens, again = rng.normal(size=(3, 5, 3)), ints(2, 5, 0), ("float64",)  # no arithmetic that others lack
    plain = {"inputs": inputs, "valid_lens": None, "initial_state": None, "keep_masks": None}
    ragged = {**plain, "valid_lens": lens}
    yield Variant("one layer, all of it", plain, options(1, False))
    yield Variant("two layers, ragged", ragged, options(2, False), dtypes=again)
    yield Variant("two layers, NaN past the length", {**ragged, "inputs": hide_time(inputs, lens)}, options(2, False))
    both = {**ragged, "initial_state": state(2, 2)}
    yield Variant("two layers, both directions, ragged, initial state", both, options(2, True), dtypes=again)
    dropped = {**both, "keep_masks": rng.random((1, 3, 5, 8)) < 0.6}
    yield Variant("two layers, both directions, ragged, dropout", dropped, options(2, True, dropout=0.4))
    deep = {**plain, "initial_state": state(3, 1), "keep_masks": rng.random((2, 3, 5, 4)) < 0.6}
    yield Variant("three layers, dropout, no biases", deep, options(3, False, dropout=0.3, use_bias=False))
    yield Variant("both directions, no biases", ragged, options(1, True, use_bias=False), dtypes=again, slow=True)
    leading = {**plain, "inputs": rng.normal(size=(2, 3, 4, 3)), "valid_lens": ints([4, 1, 0], [3, 4, 2])}
    leading["initial_state"] = state(1, 1, (2, 3))
    yield Variant("more leading axes", leading, options(1, False), dtypes=again)


def recurrent_call(module: Any, inputs: Any) -> Any:
    positional = (inputs["inputs"], inputs["valid_lens"], inputs["initial_state"])
    return module(*positional, keep_masks=inputs["keep_masks"])


def recurrent_case(name: str, parts: int) -> Case:
    return Case(
        name,
        tuple(recurrent_variants(name, parts)),
        torch_module(
            lambda options, inputs: getattr(torch_ref, name)(size(inputs, "inputs"), **options), recurrent_call
        ),
        linen_module(lambda options, dtype: getattr(jax_attn, name)(**options, param_dtype=dtype), recurrent_call),
        ("outputs", "state"),
        factor=16,
        reason=TANH,
        slow_dtypes=("bfloat16",),
    )


MODULE_CASES = (
    attention_case("AdditiveAttention", additive_variants(), "query", "key"),
    attention_case("DotProductAttention", dot_variants()),
    attention_case("BilinearAttention", bilinear_variants(), "query", "key"),
    attention_case("GaussianAttention", gaussian_variants()),
    attention_case("MultiHeadAttention", multi_head_variants(), "query", "key", "value"),
    Case(
        "Embeddings",
        tuple(embedding_variants()),
        torch_module(lambda options, _: torch_ref.Embeddings(**options)),
        linen_module(lambda options, dtype: jax_attn.Embeddings(**options, param_dtype=dtype)),
    ),
    Case(
        "PositionalEncoding",
        tuple(position_variants()),
        torch_module(lambda options, _: torch_ref.PositionalEncoding(**options), position_call),
        linen_module(lambda options, _: jax_attn.PositionalEncoding(**options), position_call),
    ),
    recurrent_case("LSTM", parts=2),
    recurrent_case("GRU", parts=1),
)

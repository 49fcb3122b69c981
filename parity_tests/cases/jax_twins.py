"""The JAX code of others against torch_ref, under the bounds of our own modules.

The JAX side is `jax.nn`, Flax Linen or Optax; the PyTorch side is torch_ref, to which our modules are held too. They
compute the same as ours once the arguments are translated:

    jax.nn.dot_product_attention        `[B, T, heads, D]`; True = may attend; an empty row is empty_row="uniform"
    nn.dot_product_attention (Linen)    the same layout with any leading axes; an empty row is empty_row="uniform"
    nn.MultiHeadDotProductAttention     kernels have an axis of heads: `[D, heads, H / heads]` is W_qᵀ reshaped
    nn.LSTMCell, nn.OptimizedLSTMCell   one bias b = b_ih + b_hh, a Dense layer for each gate, a carry (c, h)
    nn.GRUCell                          reset after the product, as PyTorch; b_r and b_z are sums too, b_in and b_hn are
                                        themselves
    nn.RNN                              `seq_lengths` of at least 1; `reverse` with `keep_order`; outputs past a length
                                        are zeroed here
    optax                               has neither lengths nor mask: what does not count is removed afterwards

`parity_tests.cases.twin_differences` lists where they differ.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

import torch_ref
from parity_tests.case import DTYPES, Case, JaxSide, Variant, random_for
from parity_tests.cases.functional import ints
from parity_tests.cases.modules import KEY_BIAS, SIZED, size
from parity_tests.jax_side import jax_function
from parity_tests.torch_side import torch_function, torch_module

WIDE, NARROW = ("float64", "float32"), ("float32", "bfloat16")

# Dot-product attention: `[B, heads, T, D]` in torch_ref, `[B, T, heads, D]` in both of theirs.


def dot_product_variants(name: str, dtypes: tuple[str, ...]) -> Iterator[Variant]:
    """Rounding does not depend on the mask: only the first of the dtypes gets every kind of mask."""
    rng = random_for(name)
    inputs: dict[str, Any] = {name: rng.normal(size=(3, 2, 5, 4)) for name in ("queries", "keys", "values")}
    inputs |= {"valid_lens": None, "mask": None}
    mask = rng.random((3, 2, 5, 5)) < 0.6
    mask[0, :, 1] = False
    plain, lens, once = {"causal": False, "scaled": True}, ints(2, 0, 5), dtypes[:1]
    yield Variant("nothing masked", inputs, plain, dtypes=once)
    yield Variant("lengths, an empty row", {**inputs, "valid_lens": lens}, plain, dtypes=dtypes)
    yield Variant("a mask of each head, an empty row", {**inputs, "mask": mask}, plain, dtypes=once)
    yield Variant("mask and lengths", {**inputs, "mask": mask, "valid_lens": lens}, plain, dtypes=once)
    causal = {**plain, "causal": True}
    yield Variant("causal, more queries", {**inputs, "queries": rng.normal(size=(3, 2, 7, 4))}, causal, dtypes=once)
    yield Variant("causal and lengths", {**inputs, "valid_lens": lens}, causal, dtypes=once)
    if name.startswith("jax.nn"):
        yield Variant("not scaled", inputs, {**plain, "scaled": False}, dtypes=once)


def torch_dot_product(inputs: Any, options: Any) -> Any:
    queries, keys, mask, lens = (inputs[name] for name in ("queries", "keys", "mask", "valid_lens"))
    module = torch_ref.DotProductAttention(scaled=options["scaled"], empty_row="uniform")
    if options["causal"]:
        mask = torch_ref.causal_mask(queries.shape[-2], keys.shape[-2])
    lens = None if lens is None else lens[:, None].expand(queries.shape[:2])  # one for each head
    return module(queries, keys, inputs["values"], lens, mask)[0]


def heads_third(inputs: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values, `[B, T, heads, D]`."""
    return inputs["queries"].swapaxes(1, 2), inputs["keys"].swapaxes(1, 2), inputs["values"].swapaxes(1, 2)


def jax_nn_dot_product(inputs: Any, options: Any) -> Any:
    lens = inputs["valid_lens"]
    masks = {
        "mask": inputs["mask"],
        "is_causal": options["causal"],
        "key_value_seq_lengths": None if lens is None else lens.astype(jnp.int32),
    }
    scale = None if options["scaled"] else 1.0
    return jax.nn.dot_product_attention(*heads_third(inputs), **masks, scale=scale).swapaxes(1, 2)


def linen_dot_product(inputs: Any, options: Any) -> Any:
    mask, lens, num_keys = inputs["mask"], inputs["valid_lens"], inputs["keys"].shape[-2]
    if lens is not None:
        short = jnp.arange(num_keys) < lens[:, None, None, None]
        mask = short if mask is None else mask & short
    if options["causal"]:
        past = jnp.tri(inputs["queries"].shape[-2], num_keys, dtype=bool)
        mask = past if mask is None else mask & past
    context = nn.dot_product_attention(*heads_third(inputs), mask=mask)
    return context.swapaxes(1, 2)


# Multi-head attention


def multi_head_variants() -> Iterator[Variant]:
    rng = random_for("nn.MultiHeadDotProductAttention")
    inputs = {
        "queries": rng.normal(size=(3, 2, 4)),
        "keys": rng.normal(size=(3, 5, 6)),
        "values": rng.normal(size=(3, 5, 3)),
        "mask": None,
    }
    mask = rng.random((3, 2, 5)) < 0.6
    mask[0, 1] = False
    vanishing = {"gradient of W_k.bias": KEY_BIAS}
    for biased in (True, False):
        options = {"num_hiddens": 8, "num_heads": 2, "use_bias": biased}
        words = "biases" if biased else "no biases"
        dtypes = WIDE if biased else ("float64",)
        yield Variant(f"{words}, nothing masked", inputs, options, vanishing=vanishing, dtypes=dtypes)
        masked = {**inputs, "mask": mask}
        yield Variant(f"{words}, a mask, an empty row", masked, options, vanishing=vanishing, dtypes=dtypes)


def torch_multi_head(options: Any, inputs: Any) -> torch.nn.Module:
    sizes: Any = {f"{part}_size": size(inputs, name) for part, name in SIZED.items()}
    return torch_ref.MultiHeadAttention(**options, empty_row="uniform", **sizes)


def linen_multi_head(weights: Mapping[str, Any], inputs: Any, options: Any) -> Any:
    num_hiddens, num_heads = options["num_hiddens"], options["num_heads"]
    module = nn.MultiHeadDotProductAttention(
        num_heads, qkv_features=num_hiddens, out_features=num_hiddens, use_bias=options["use_bias"]
    )
    mask = None if inputs["mask"] is None else inputs["mask"][:, None]
    context, kept = module.apply(
        {"params": split_heads(weights, num_heads)},
        *(inputs[name] for name in ("queries", "keys", "values")),
        mask=mask,
        sow_weights=True,
        mutable=["intermediates"],
    )
    return context, kept["intermediates"]["attention_weights"][0]


def split_heads(weights: Mapping[str, Any], num_heads: int) -> dict[str, dict[str, Any]]:
    """Convert our weights to Linen's names, with its axis of heads."""
    params = {}
    for ours, linens in {"W_q": "query", "W_k": "key", "W_v": "value"}.items():
        kernel = weights[f"{ours}.weight"].T
        params[linens] = {"kernel": kernel.reshape(kernel.shape[0], num_heads, -1)}
        if f"{ours}.bias" in weights:
            params[linens]["bias"] = weights[f"{ours}.bias"].reshape(num_heads, -1)
    kernel = weights["W_o.weight"].T
    params["out"] = {"kernel": kernel.reshape(num_heads, -1, kernel.shape[-1])}
    if "W_o.bias" in weights:
        params["out"]["bias"] = weights["W_o.bias"]
    return params


# Recurrent networks

HIDDEN = 4


def recurrent_variants(name: str, parts: int, *, again: bool = False) -> Iterator[Variant]:
    """`again`: a cell that differs from another only in its products has one variant, in float64."""
    rng = random_for(name)
    inputs, lens = rng.normal(size=(3, 5, 3)), ints(2, 5, 1)
    states = tuple(rng.normal(size=(4, 3, HIDDEN)) for _ in range(parts))
    both = {"inputs": inputs, "valid_lens": lens, "initial_state": states if parts == 2 else states[0]}
    options, once = {"num_layers": 2, "bidirectional": True}, ("float64",)
    yield Variant("two layers, both directions, ragged", both, options, dtypes=once if again else DTYPES, slow=again)
    if not again:
        single = {"num_layers": 1, "bidirectional": False}
        first = tuple(part[:1] for part in states)
        forward = {**both, "valid_lens": None, "initial_state": first if parts == 2 else first[0]}
        yield Variant("one layer, no lengths", forward, single, dtypes=once)


def linen_recurrent(cell: Callable[..., Any], convert: Callable[..., Any], parts: int) -> JaxSide:
    """Layers and directions around nn.RNN, which has one of each."""

    def run(weights: Mapping[str, Any], suffix: str, x: Any, carry: Any, lens: Any) -> Any:
        """One layer in one direction; a carry is (h, c) or (h,) here, and Linen's is (c, h) or h."""
        reverse = suffix.endswith("_reverse")
        rnn = nn.RNN(cell(HIDDEN), return_carry=True, reverse=reverse, keep_order=True)
        params = {"params": {"cell": convert(weights, suffix)}}
        linens = carry[::-1] if parts == 2 else carry[0]
        final, outputs = rnn.apply(params, x, initial_carry=linens, seq_lengths=lens)
        return outputs, final[::-1] if parts == 2 else (final,)

    def call(weights: Mapping[str, Any], inputs: Any, options: Any) -> Any:
        x, lens, states = inputs["inputs"], inputs["valid_lens"], inputs["initial_state"]
        states = states if parts == 2 else (states,)
        directions = ("", "_reverse")[: 2 if options["bidirectional"] else 1]
        finals: list[Any] = []
        for layer in range(options["num_layers"]):
            outputs = []
            for direction in directions:
                carry = tuple(part[len(finals)] for part in states)
                output, final = run(weights, f"l{layer}{direction}", x, carry, lens)
                outputs.append(output)
                finals.append(final)
            x = jnp.concatenate(outputs, axis=-1)
        if lens is not None:  # Linen leaves the outputs of the padding
            x = jnp.where((jnp.arange(x.shape[1]) < lens[:, None])[..., None], x, 0)
        stacked = tuple(jnp.stack(part) for part in zip(*finals, strict=True))
        return x, stacked if parts == 2 else stacked[0]

    return JaxSide(call)


def lstm_params(weights: Mapping[str, Any], suffix: str) -> dict[str, dict[str, Any]]:
    """Convert a layer's weights to those of Linen's LSTM cells, whose one bias is the sum of ours."""
    kernels_i, kernels_h = (jnp.split(weights[f"weight_{kind}_{suffix}"].T, 4, axis=-1) for kind in ("ih", "hh"))
    biases = jnp.split(weights[f"bias_ih_{suffix}"] + weights[f"bias_hh_{suffix}"], 4)
    params = {}
    for gate, kernel_i, kernel_h, bias in zip("ifgo", kernels_i, kernels_h, biases, strict=True):
        params[f"i{gate}"] = {"kernel": kernel_i}
        params[f"h{gate}"] = {"kernel": kernel_h, "bias": bias}
    return params


def gru_params(weights: Mapping[str, Any], suffix: str) -> dict[str, dict[str, Any]]:
    """Convert a layer's weights to those of Linen's GRU cell: the biases of r and z are sums, n has two."""
    kernels_i, kernels_h = (jnp.split(weights[f"weight_{kind}_{suffix}"].T, 3, axis=-1) for kind in ("ih", "hh"))
    biases_i, biases_h = (jnp.split(weights[f"bias_{kind}_{suffix}"], 3) for kind in ("ih", "hh"))
    params = {}
    for i, gate in enumerate("rzn"):
        merged = gate != "n"
        params[f"i{gate}"] = {"kernel": kernels_i[i], "bias": biases_i[i] + biases_h[i] if merged else biases_i[i]}
        params[f"h{gate}"] = {"kernel": kernels_h[i]} if merged else {"kernel": kernels_h[i], "bias": biases_h[i]}
    return params


def recurrent_case(name: str, cell: Any, convert: Callable[..., Any], **more: Any) -> Case:
    parts = 2 if name == "LSTM" else 1
    return Case(
        f"{name} (nn.RNN of nn.{cell.__name__})",
        tuple(recurrent_variants(cell.__name__, parts, **more)),
        torch_module(lambda options, inputs: getattr(torch_ref, name)(size(inputs, "inputs"), HIDDEN, **options)),
        linen_recurrent(cell, convert, parts),
        ("outputs", "state"),
        slow_dtypes=("float32", "bfloat16"),
    )


# Cross entropy


def loss_variants() -> Iterator[Variant]:
    rng = random_for("optax")
    inputs = {
        "logits": rng.normal(size=(3, 4, 6)) * 2,
        "labels": rng.integers(0, 6, (3, 4)).astype(np.int32),
        "mask": np.arange(4) < ints(1, 4, 2)[:, None],
    }
    for smoothing in (0.0, 0.1):
        for reduction in ("tokens", "none"):
            options = {"label_smoothing": smoothing, "reduction": reduction}
            yield Variant(f"{reduction}, smoothed by {smoothing}", inputs, options, dtypes=WIDE)


def optax_cross_entropy(inputs: Any, options: Any) -> Any:
    logits, labels, mask, smoothing = inputs["logits"], inputs["labels"], inputs["mask"], options["label_smoothing"]
    if smoothing:
        targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), smoothing)
        losses = optax.softmax_cross_entropy(logits, targets)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    losses = jnp.where(mask, losses, 0)
    return losses if options["reduction"] == "none" else losses.sum() / mask.sum()


JAX_TWIN_CASES = (
    Case(
        "DotProductAttention (jax.nn.dot_product_attention)",
        tuple(dot_product_variants("jax.nn.dot_product_attention", NARROW)),
        torch_function(torch_dot_product),
        jax_function(jax_nn_dot_product),
    ),
    Case(
        "DotProductAttention (nn.dot_product_attention)",
        tuple(dot_product_variants("nn.dot_product_attention", WIDE)),
        torch_function(torch_dot_product),
        jax_function(linen_dot_product),
    ),
    Case(
        "MultiHeadAttention (nn.MultiHeadDotProductAttention)",
        tuple(multi_head_variants()),
        torch_module(torch_multi_head),
        JaxSide(linen_multi_head),
        ("context", "weights"),
    ),
    recurrent_case("LSTM", nn.OptimizedLSTMCell, lstm_params),
    recurrent_case("LSTM", nn.LSTMCell, lstm_params, again=True),
    recurrent_case("GRU", nn.GRUCell, gru_params),
    Case(
        "masked_cross_entropy (optax)",
        tuple(loss_variants()),
        torch_function(lambda inputs, options: torch_ref.masked_cross_entropy(**inputs, **options)),
        jax_function(optax_cross_entropy),
    ),
)

"""The JAX code of others against torch_ref, under the bounds of our own modules.

The JAX side is `jax.nn`, Flax Linen or Optax; the PyTorch side is torch_ref, with which our modules are compared too.
They compute the same as ours once the arguments are translated:

    jax.nn.dot_product_attention        `[B, T, heads, D]`; True = may attend; an empty row is empty_row="uniform"
    nn.dot_product_attention (Linen)    the same layout with any leading axes; an empty row is empty_row="uniform"
    nn.MultiHeadDotProductAttention     kernels have an axis of heads: `[D, heads, H / heads]` is W_qᵀ reshaped
    nn.LSTMCell, nn.OptimizedLSTMCell   one bias b = b_ih + b_hh, a Dense layer for each gate, a carry (c, h)
    nn.GRUCell                          reset after the product, as PyTorch; b_r and b_z are sums too, b_in and b_hn are
                                        themselves
    nn.RNN                              `seq_lengths` of at least 1; `reverse` with `keep_order`; outputs past a length
                                        are zeroed here
    optax                               has neither lengths nor mask: what does not count is removed afterwards

`parity_tests.this_library.cases.twin_differences` lists where they differ.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import torch

import torch_ref
from parity_tests.this_library.cases.modules import size
from parity_tests.this_library.cases.torch_twins import (
    HIDDEN,
    ONCE,
    WIDE,
    dot_product_variants,
    loss_variants,
    our_cross_entropy,
    our_dot_product,
    recurrent_inputs,
)
from parity_tests.your_port.measure.case import DTYPES, Case, JaxSide, Variant, random_for
from parity_tests.your_port.measure.jax_side import jax_function
from parity_tests.your_port.measure.torch_side import torch_function, torch_module

# Dot-product attention: `[B, heads, T, D]` in torch_ref, `[B, T, heads, D]` in both of theirs.


def torch_dot_product(inputs: Any, options: Any) -> Any:
    module = torch_ref.DotProductAttention(scaled=options["scaled"], empty_row="uniform")
    return our_dot_product(torch_ref, module, inputs, options)


def heads_third(inputs: Any) -> tuple[Any, Any, Any]:
    """Return queries, keys and values as `[B, T, heads, D]`."""
    return inputs["queries"].swapaxes(1, 2), inputs["keys"].swapaxes(1, 2), inputs["values"].swapaxes(1, 2)


def jax_nn_dot_product(inputs: Any, options: Any) -> Any:
    lens, scale = inputs["valid_lens"], None if options["scaled"] else 1.0
    lens = None if lens is None else lens.astype(jnp.int32)
    masks = {"mask": inputs["mask"], "is_causal": options["causal"], "key_value_seq_lengths": lens}
    return jax.nn.dot_product_attention(*heads_third(inputs), **masks, scale=scale).swapaxes(1, 2)


def linen_dot_product(inputs: Any, options: Any) -> Any:
    """Multiply the queries by √D where the scores are not scaled: it always divides by that."""
    queries, keys, values = heads_third(inputs)
    lens, num_keys = inputs["valid_lens"], keys.shape[1]
    masks = [
        inputs["mask"],
        None if lens is None else jnp.arange(num_keys) < lens[:, None, None, None],
        jnp.tri(queries.shape[1], num_keys, dtype=bool) if options["causal"] else None,
    ]
    queries = queries * (1.0 if options["scaled"] else queries.shape[-1] ** 0.5)
    return nn.dot_product_attention(queries, keys, values, mask=nn.combine_masks(*masks, dtype=bool)).swapaxes(1, 2)


# Multi-head attention


def multi_head_variants() -> Iterator[Variant]:
    rng = random_for("nn.MultiHeadDotProductAttention")
    shapes = {"queries": (3, 2, 4), "keys": (3, 5, 6), "values": (3, 5, 3)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    mask = rng.random((3, 2, 5)) < 0.6
    mask[0, 1] = False
    for words, biased, given in (("biases", True, mask), ("no biases", False, mask), ("nothing masked", True, None)):
        options = {"num_hiddens": 8, "num_heads": 2, "use_bias": biased}
        dtypes = WIDE if biased else ONCE
        yield Variant(words, {**arrays, "mask": given}, options, dtypes=dtypes)


def torch_multi_head(options: Any, inputs: Any) -> torch.nn.Module:
    names = {"query_size": "queries", "key_size": "keys", "value_size": "values"}
    sizes: Any = {argument: size(inputs, name) for argument, name in names.items()}
    return torch_ref.MultiHeadAttention(**options, empty_row="uniform", **sizes)


def linen_multi_head(weights: Mapping[str, Any], inputs: Any, options: Any) -> Any:
    size, heads, biased = options["num_hiddens"], options["num_heads"], options["use_bias"]
    module = nn.MultiHeadDotProductAttention(heads, qkv_features=size, out_features=size, use_bias=biased)
    arrays = (inputs[name] for name in ("queries", "keys", "values"))
    mask = None if inputs["mask"] is None else inputs["mask"][:, None]
    params = {"params": split_heads(weights, heads)}
    context, kept = module.apply(params, *arrays, mask=mask, sow_weights=True, mutable=["intermediates"])
    return context, kept["intermediates"]["attention_weights"][0]


def split_heads(weights: Mapping[str, Any], heads: int) -> dict[str, dict[str, Any]]:
    """Convert our weights to Linen's names, with its axis of heads."""
    params: dict[str, dict[str, Any]] = {}
    for ours, linens in {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "out"}.items():
        kernel, bias = weights[f"{ours}.weight"].T, weights.get(f"{ours}.bias")
        shape = (heads, -1, kernel.shape[-1]) if linens == "out" else (kernel.shape[0], heads, -1)
        params[linens] = {"kernel": kernel.reshape(shape)}
        if bias is not None:
            params[linens]["bias"] = bias if linens == "out" else bias.reshape(heads, -1)
    return params


# Recurrent networks


def recurrent_variants(name: str, cell: str, *, again: bool = False) -> Iterator[Variant]:
    """Make two variants; one, in float64, if the cell differs from another only in its products (`again`)."""
    options, dtypes = {"num_layers": 2, "bidirectional": True}, ONCE if again else DTYPES
    words = "two layers, both directions, ragged"
    yield Variant(words, recurrent_inputs(cell, name, 2, True), options, dtypes=dtypes, slow=again)
    if not again:
        inputs = {**recurrent_inputs(cell, name, 1, False), "valid_lens": None}
        yield Variant("one layer, no lengths", inputs, {"num_layers": 1, "bidirectional": False}, dtypes=ONCE)


def linen_recurrent(cell: Callable[..., Any], convert: Callable[..., Any], parts: int) -> JaxSide:
    """Put layers and directions around nn.RNN, which has one of each."""

    def run(weights: Mapping[str, Any], suffix: str, x: Any, carry: Any, lens: Any) -> Any:
        """Run one layer in one direction; a carry is (h, c) or (h,) here, and Linen's is (c, h) or h."""
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


def split_gates(weights: Mapping[str, Any], suffix: str, gates: str) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Yield each gate's letter and its kernels and biases, of the input and of the state."""
    kernels = (jnp.split(weights[f"weight_{kind}_{suffix}"].T, len(gates), axis=-1) for kind in ("ih", "hh"))
    biases = (jnp.split(weights[f"bias_{kind}_{suffix}"], len(gates)) for kind in ("ih", "hh"))
    return zip(gates, *kernels, *biases, strict=True)


def lstm_params(weights: Mapping[str, Any], suffix: str) -> dict[str, dict[str, Any]]:
    """Convert a layer's weights to those of Linen's LSTM cells, whose one bias is the sum of ours."""
    params = {}
    for gate, kernel_i, kernel_h, bias_i, bias_h in split_gates(weights, suffix, "ifgo"):
        params[f"i{gate}"] = {"kernel": kernel_i}
        params[f"h{gate}"] = {"kernel": kernel_h, "bias": bias_i + bias_h}
    return params


def gru_params(weights: Mapping[str, Any], suffix: str) -> dict[str, dict[str, Any]]:
    """Convert a layer's weights to those of Linen's GRU cell: the biases of r and z are sums, n has two."""
    params = {}
    for gate, kernel_i, kernel_h, bias_i, bias_h in split_gates(weights, suffix, "rzn"):
        merged = gate != "n"
        params[f"i{gate}"] = {"kernel": kernel_i, "bias": bias_i + bias_h if merged else bias_i}
        params[f"h{gate}"] = {"kernel": kernel_h} if merged else {"kernel": kernel_h, "bias": bias_h}
    return params


def recurrent_case(name: str, cell: Any, convert: Callable[..., Any], **more: Any) -> Case:
    parts = 2 if name == "LSTM" else 1
    return Case(
        f"{name} (nn.RNN of nn.{cell.__name__})",
        tuple(recurrent_variants(name, cell.__name__, **more)),
        torch_module(lambda options, inputs: getattr(torch_ref, name)(size(inputs, "inputs"), HIDDEN, **options)),
        linen_recurrent(cell, convert, parts),
        ("outputs", "state"),
        slow_dtypes=("float32", "bfloat16"),
    )


# Cross entropy


def optax_cross_entropy(inputs: Any, options: Any) -> Any:
    logits, counts, smoothing = inputs["logits"], inputs["labels"] != -100, options["label_smoothing"]
    labels = jnp.where(counts, inputs["labels"], 0)
    if smoothing:
        targets = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), smoothing)
        losses = optax.softmax_cross_entropy(logits, targets)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    losses = jnp.where(counts, losses, 0)
    means = {"tokens": lambda: losses.sum() / counts.sum(), "sentences": lambda: losses.mean(-1)}
    return means.get(options["reduction"], lambda: losses)()


JAX_TWIN_CASES = (
    Case(
        "DotProductAttention (jax.nn.dot_product_attention)",
        tuple(dot_product_variants("jax.nn.dot_product_attention", ("float32", "bfloat16"))),
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
        torch_function(partial(our_cross_entropy, torch_ref)),
        jax_function(optax_cross_entropy),
    ),
)

"""PyTorch's own functions and modules, which compute the same as ours once the arguments are translated.

They were written by others, so that a mistake which torch_ref and jax_attn shared would be seen. (nn.LSTM and nn.GRU
are what torch_ref's LSTM and GRU are made of.)

    F.scaled_dot_product_attention      `attn_mask` has our polarity (True = may attend); an empty row gives 0, as ours
    nn.MultiheadAttention               both its masks have the other polarity (True = hidden), the rows of
                                        `in_proj_weight` are those of W_q, W_k and W_v, and the weights of the heads are
                                        returned one by one with `average_attn_weights=False`
    F.cross_entropy                     the label −100 is what `mask` hides; "mean" is over the others, our "tokens";
                                        `label_smoothing` is ours

`twin_differences_test` shows where they differ. Inputs are finite: only our modules allow NaN where nothing attends.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import jax_attn
from parity_tests.this_library.cases.functional import ints
from parity_tests.this_library.cases.modules import size
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import DTYPES, Case, JaxSide, Variant, random_for
from parity_tests.your_port.measure.jax_side import jax_function
from parity_tests.your_port.measure.torch_side import torch_function, torch_module

WIDE, ONCE = ("float64", "float32"), ("float64",)

# F.scaled_dot_product_attention


def dot_product_variants() -> Iterator[Variant]:
    """Draw queries, keys and values `[B, heads, T, D]`."""
    rng = random_for("F.scaled_dot_product_attention")
    inputs: dict[str, Any] = {name: rng.normal(size=(3, 2, 5, 4)) for name in ("queries", "keys", "values")}
    inputs |= {"valid_lens": None, "mask": None}
    mask = rng.random((3, 2, 5, 5)) < 0.6
    mask[0, :, 1] = False
    plain, lens = {"causal": False, "scaled": True}, ints(2, 0, 5)
    yield Variant("nothing masked", inputs, plain, dtypes=ONCE)
    yield Variant("lengths, an empty row", {**inputs, "valid_lens": lens}, plain)
    yield Variant("mask and lengths", {**inputs, "mask": mask, "valid_lens": lens}, plain, dtypes=ONCE)
    for words, length in (("more queries", 7), ("more keys", 3)):
        queries = rng.normal(size=(3, 2, length, 4))
        yield Variant(f"causal, {words}", {**inputs, "queries": queries}, {**plain, "causal": True}, dtypes=ONCE)
    yield Variant("not scaled", inputs, {**plain, "scaled": False}, dtypes=ONCE)


def torch_dot_product(inputs: Any, options: Any) -> Any:
    mask, lens, keys = inputs["mask"], inputs["valid_lens"], inputs["keys"]
    if lens is not None:
        short = torch.arange(keys.shape[-2]) < lens[:, None, None, None]
        mask = short if mask is None else mask & short
    scale = None if options["scaled"] else 1.0
    arrays = (inputs["queries"], keys, inputs["values"], mask)
    return F.scaled_dot_product_attention(*arrays, is_causal=options["causal"], scale=scale)


def our_dot_product(inputs: Any, options: Any) -> Any:
    queries, keys, lens, mask = (inputs[name] for name in ("queries", "keys", "valid_lens", "mask"))
    if options["causal"]:
        mask = jax_attn.causal_mask(queries.shape[-2], keys.shape[-2])
    lens = None if lens is None else lens[:, None][:, np.zeros(queries.shape[1], int)]  # one for each head
    module = jax_attn.DotProductAttention(scaled=options["scaled"])
    return module.apply({}, queries, keys, inputs["values"], lens, mask, return_weights=False)[0]


# nn.MultiheadAttention


def multi_head_variants() -> Iterator[Variant]:
    rng = random_for("nn.MultiheadAttention")
    mask = rng.random((2, 5)) < 0.6
    mask[:, 0] = True
    for (key_size, value_size), biased in product(((8, 8), (6, 3)), (True, False)):
        shapes = {"queries": (3, 2, 8), "keys": (3, 5, key_size), "values": (3, 5, value_size)}
        arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        inputs = {**arrays, "valid_lens": ints(2, 5, 3), "mask": None}
        options = {"num_hiddens": 8, "num_heads": 2, "use_bias": biased}
        kind = f"{'one weight for all' if key_size == 8 else 'a weight each'}, {'biases' if biased else 'no biases'}"
        yield Variant(f"{kind}, lengths", inputs, options, dtypes=DTYPES if biased else ONCE)
        if key_size == 8 and biased:
            yield Variant(f"{kind}, nothing masked", {**inputs, "valid_lens": None}, options, dtypes=ONCE)
            yield Variant(f"{kind}, mask and lengths", {**inputs, "mask": mask}, options, dtypes=ONCE)


def torch_multi_head(options: Any, inputs: Any) -> torch.nn.Module:
    sizes = {"kdim": size(inputs, "keys"), "vdim": size(inputs, "values")}
    heads = (options["num_hiddens"], options["num_heads"])
    return torch.nn.MultiheadAttention(*heads, bias=options["use_bias"], batch_first=True, **sizes)


def run_multi_head(module: Any, inputs: Any) -> Any:
    """Call it with masks that say what is hidden; it returns the weights of each head."""
    lens, mask, keys = inputs["valid_lens"], inputs["mask"], inputs["keys"]
    padding = None if lens is None else torch.arange(keys.shape[1]) >= lens[:, None]
    hidden = None if mask is None else ~mask
    arrays = (inputs["queries"], keys, inputs["values"], padding)
    return module(*arrays, attn_mask=hidden, average_attn_weights=False)


def jax_multi_head() -> JaxSide:
    ours = linen_module(lambda options, dtype: jax_attn.MultiHeadAttention(**options, param_dtype=dtype))
    return JaxSide(lambda weights, inputs, options: ours.call(split_projections(weights), inputs, options))


def split_projections(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Name the weights of nn.MultiheadAttention as ours."""
    ours = {name.replace("out_proj", "W_o"): x for name, x in weights.items() if name.startswith("out_proj")}
    packed = {kind: weights[f"in_proj_{kind}"] for kind in ("weight", "bias") if f"in_proj_{kind}" in weights}
    for kind, x in packed.items():
        ours |= zip((f"W_{letter}.{kind}" for letter in "qkv"), jnp.split(x, 3), strict=True)
    return ours | {f"W_{x}.weight": weights[f"{x}_proj_weight"] for x in "qkv" if f"{x}_proj_weight" in weights}


# F.cross_entropy


def loss_variants() -> Iterator[Variant]:
    rng = random_for("cross entropy")
    logits, labels = rng.normal(size=(3, 4, 6)) * 2, rng.integers(0, 6, (3, 4)).astype(np.int32)
    ignored = np.where(np.arange(4) >= ints(1, 4, 2)[:, None], -100, labels)
    for smoothing, reduction in product((0.0, 0.1), ("tokens", "sentences", "none")):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        inputs = {"logits": logits, "labels": ignored}
        yield Variant(f"{reduction}, smoothed by {smoothing}", inputs, options, dtypes=WIDE)
    yield Variant("every label counts", {"logits": logits, "labels": labels}, options, dtypes=ONCE)
    yield Variant("smoothed by 1", inputs, {**options, "label_smoothing": 1.0}, dtypes=ONCE)


def torch_cross_entropy(inputs: Any, options: Any) -> Any:
    """Call it over `[B · T, N]`: with more axes it expects the classes second."""
    logits, labels, how = inputs["logits"], inputs["labels"].long(), options["reduction"]
    reduction, smoothing = "mean" if how == "tokens" else "none", options["label_smoothing"]
    arrays = logits.flatten(0, -2), labels.flatten()
    loss = F.cross_entropy(*arrays, reduction=reduction, label_smoothing=smoothing)
    if reduction == "mean":
        return loss
    return loss.reshape(labels.shape) if how == "none" else loss.reshape(labels.shape).mean(-1)


def our_cross_entropy(inputs: Any, options: Any) -> Any:
    """Take −100 as what the mask hides."""
    labels = inputs["labels"]
    return jax_attn.masked_cross_entropy(inputs["logits"], labels, mask=labels != -100, **options)


TWIN_CASES = (
    Case(
        "DotProductAttention (F.scaled_dot_product_attention)",
        tuple(dot_product_variants()),
        torch_function(torch_dot_product),
        jax_function(our_dot_product),
    ),
    Case(
        "MultiHeadAttention (nn.MultiheadAttention)",
        tuple(multi_head_variants()),
        torch_module(torch_multi_head, run_multi_head),
        jax_multi_head(),
        ("context", "weights"),
    ),
    Case(
        "masked_cross_entropy (F.cross_entropy)",
        tuple(loss_variants()),
        torch_function(torch_cross_entropy),
        jax_function(our_cross_entropy),
    ),
)

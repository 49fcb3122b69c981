"""Our modules against PyTorch's own: `nn.LSTM`, `nn.GRU`, its attention and its cross entropy.

They compute the same as ours once the arguments are translated:

    nn.LSTM, nn.GRU                     lengths are a packed sequence; weights and state are ours, name by name
    F.scaled_dot_product_attention      `attn_mask` has our polarity (True = may attend); an empty row gives 0, as ours
    nn.MultiheadAttention               both its masks have the other polarity (True = hidden), the rows of
                                        `in_proj_weight` are those of W_q, W_k and W_v, and the weights of the heads are
                                        returned one by one with `average_attn_weights=False`
    F.cross_entropy                     the label −100 is what `mask` hides; "mean" is over the others, our "tokens";
                                        `label_smoothing` is ours

`parity_tests.cases.twin_differences` lists where they differ. Their inputs are finite: only our modules allow NaN where
nothing attends.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import jax_attn
from parity_tests.case import DTYPES, Case, JaxSide, Variant, random_for
from parity_tests.cases.functional import ints
from parity_tests.cases.modules import size
from parity_tests.jax_side import jax_function, linen_module
from parity_tests.torch_side import torch_function, torch_module

WIDE = ("float64", "float32")

# nn.LSTM and nn.GRU

TIME, FEATURES, HIDDEN = 5, 3, 4


def recurrent_variants(name: str, parts: int) -> Iterator[Variant]:
    """Every pair of layers, directions and biases, packed and at full length, from a given state."""
    for layers, both in product((1, 2, 3), (False, True)):
        biased = both == (layers != 1)
        rng = random_for(name, str(layers), str(both))
        shape = (layers * (2 if both else 1), 3, HIDDEN)
        states = tuple(rng.normal(size=shape) for _ in range(parts))
        inputs = {
            "inputs": rng.normal(size=(3, TIME, FEATURES)),
            "valid_lens": ints(2, TIME, 1),
            "initial_state": states if parts == 2 else states[0],
        }
        options = {"num_layers": layers, "bidirectional": both, "use_bias": biased}
        words = f"{layers} layers, {'both directions' if both else 'forward'}, {'biases' if biased else 'no biases'}"
        dtypes = DTYPES if layers == 2 and both and biased else ("float64",)
        deep = layers == 3 or (layers == 2 and not both)
        yield Variant(f"{words}, packed", inputs, options, dtypes=dtypes, slow=deep)
        full = {**inputs, "valid_lens": ints(*[TIME] * 3)}
        yield Variant(f"{words}, full length", full, options, dtypes=dtypes, slow=layers > 1)
        if layers == 2:
            nothing = {**inputs, "valid_lens": None, "initial_state": None}
            yield Variant(f"{words}, no lengths, no state", nothing, options, dtypes=("float64",), slow=both)


def torch_recurrent(name: str, options: Any, inputs: Any) -> torch.nn.Module:
    sizes, both = (size(inputs, "inputs"), HIDDEN, options["num_layers"]), options["bidirectional"]
    module: torch.nn.Module = getattr(torch.nn, name)(
        *sizes, bias=options["use_bias"], batch_first=True, bidirectional=both
    )
    return module


def run_library(module: Any, inputs: Any) -> Any:
    """Call nn.LSTM or nn.GRU, over a packed sequence wherever there is padding."""
    x, lens, state = inputs["inputs"], inputs["valid_lens"], inputs["initial_state"]
    if lens is None or bool((lens == x.shape[1]).all()):
        return module(x, state)
    packed, state = module(pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False), state)
    return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0], state


def recurrent_case(name: str, parts: int) -> Case:
    return Case(
        f"{name} (nn.{name})",
        tuple(recurrent_variants(name, parts)),
        torch_module(lambda options, inputs: torch_recurrent(name, options, inputs), run_library),
        linen_module(lambda options, dtype: getattr(jax_attn, name)(HIDDEN, **options, param_dtype=dtype)),
        ("outputs", "state"),
        slow_dtypes=("float32", "bfloat16"),
    )


# F.scaled_dot_product_attention


def dot_product_variants() -> Iterator[Variant]:
    def drawn(name: str, batch: tuple[int, ...], num_queries: int, num_keys: int) -> dict[str, Any]:
        rng = random_for("scaled_dot_product_attention", name)
        shapes = {"queries": (num_queries, 4), "keys": (num_keys, 4), "values": (num_keys, 3)}
        arrays = {name: rng.normal(size=(*batch, *shape)) for name, shape in shapes.items()}
        return {**arrays, "valid_lens": None, "mask": None}

    mask = random_for("scaled_dot_product_attention", "mask").random((3, 2, 5)) < 0.6
    mask[..., 0] = True
    once: dict[str, Any] = {"dtypes": ("float64",)}
    plain, causal = {"causal": False, "scaled": True}, {"causal": True, "scaled": True}
    yield Variant("nothing masked", drawn("plain", (3,), 2, 5), plain, **once)
    yield Variant("not scaled", drawn("plain", (3,), 2, 5), {**plain, "scaled": False}, **once)
    yield Variant("a mask", {**drawn("mask", (3,), 2, 5), "mask": mask}, plain, **once)
    yield Variant("an empty row", {**drawn("lengths", (3,), 2, 5), "valid_lens": ints(2, 0, 5)}, plain)
    yield Variant("causal", drawn("causal", (3,), 4, 4), causal, **once)
    yield Variant("causal, more keys", drawn("causal", (3,), 2, 5), causal, **once)
    yield Variant("causal, more queries", drawn("causal", (3,), 5, 2), causal, **once)
    yield Variant("causal, more leading axes", drawn("axes", (2, 3), 4, 4), causal, **once)
    leading = {**drawn("axes", (2, 2, 3), 2, 5), "mask": np.broadcast_to(mask, (2, 2, 3, 2, 5))}
    yield Variant("a mask, three leading axes", leading, plain, **once)
    yield Variant("no leading axis", drawn("none", (), 2, 5), plain, **once)


def torch_dot_product(inputs: Any, options: Any) -> Any:
    mask, lens, keys = inputs["mask"], inputs["valid_lens"], inputs["keys"]
    if lens is not None:
        mask = torch.arange(keys.shape[-2]) < lens[..., None, None]
    scale = None if options["scaled"] else 1.0
    arrays = (inputs["queries"], keys, inputs["values"], mask)
    return F.scaled_dot_product_attention(*arrays, is_causal=options["causal"], scale=scale)


def jax_dot_product(inputs: Any, options: Any) -> Any:
    module = jax_attn.DotProductAttention(scaled=options["scaled"])
    if options["causal"]:
        inputs = {**inputs, "mask": jax_attn.causal_mask(inputs["queries"].shape[-2], inputs["keys"].shape[-2])}
    return module.apply({}, **inputs, return_weights=False)[0]


# nn.MultiheadAttention


def multi_head_variants() -> Iterator[Variant]:
    rng = random_for("nn.MultiheadAttention")
    mask = rng.random((2, 5)) < 0.6
    mask[:, 0] = True
    for (key_size, value_size), biased in product(((8, 8), (6, 3)), (True, False)):
        inputs = {
            "queries": rng.normal(size=(3, 2, 8)),
            "keys": rng.normal(size=(3, 5, key_size)),
            "values": rng.normal(size=(3, 5, value_size)),
            "valid_lens": None,
            "mask": None,
        }
        options = {"num_hiddens": 8, "num_heads": 2, "use_bias": biased}
        kinds = f"{'one weight for all' if key_size == 8 else 'a weight each'}, {'biases' if biased else 'no biases'}"
        ragged = {**inputs, "valid_lens": ints(2, 5, 3)}
        yield Variant(f"{kinds}, lengths", ragged, options, dtypes=DTYPES if biased else ("float64",))
        if key_size == 8:
            yield Variant(f"{kinds}, nothing masked", inputs, options, dtypes=("float64",))
            yield Variant(f"{kinds}, mask and lengths", {**ragged, "mask": mask}, options, dtypes=("float64",))


def torch_multi_head(options: Any, inputs: Any) -> torch.nn.Module:
    sizes = {"kdim": size(inputs, "keys"), "vdim": size(inputs, "values")}
    heads = (options["num_hiddens"], options["num_heads"])
    return torch.nn.MultiheadAttention(*heads, bias=options["use_bias"], batch_first=True, **sizes)


def run_multi_head(module: Any, inputs: Any) -> Any:
    """Its masks say what is hidden; it returns the weights of each head."""
    lens, mask, keys = inputs["valid_lens"], inputs["mask"], inputs["keys"]
    padding = None if lens is None else torch.arange(keys.shape[1]) >= lens[:, None]
    hidden = None if mask is None else ~mask
    arrays = (inputs["queries"], keys, inputs["values"], padding)
    return module(*arrays, attn_mask=hidden, average_attn_weights=False)


def split_projections(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of nn.MultiheadAttention by our names."""
    if "in_proj_weight" in weights:
        projections = jnp.split(weights["in_proj_weight"], 3)
    else:
        projections = [weights[f"{name}_proj_weight"] for name in "qkv"]
    ours = dict(zip(("W_q.weight", "W_k.weight", "W_v.weight"), projections, strict=True))
    if "in_proj_bias" in weights:
        ours |= zip(("W_q.bias", "W_k.bias", "W_v.bias"), jnp.split(weights["in_proj_bias"], 3), strict=True)
    outer = {name: value for name, value in weights.items() if name.startswith("out_proj.")}
    return ours | {name.replace("out_proj", "W_o"): value for name, value in outer.items()}


def jax_multi_head() -> JaxSide:
    ours = linen_module(lambda options, dtype: jax_attn.MultiHeadAttention(**options, param_dtype=dtype))
    return JaxSide(lambda weights, inputs, options: ours.call(split_projections(weights), inputs, options))


# F.cross_entropy


def loss_variants() -> Iterator[Variant]:
    rng = random_for("F.cross_entropy")
    logits, labels = rng.normal(size=(3, 4, 6)) * 2, rng.integers(0, 6, (3, 4)).astype(np.int32)
    hidden = np.arange(4) >= ints(1, 4, 2)[:, None]
    plain, ragged = {"logits": logits, "labels": labels}, {"logits": logits, "labels": np.where(hidden, -100, labels)}
    for smoothing, reduction in product((0.0, 0.1, 1.0), ("tokens", "sentences", "none")):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        yield Variant(f"{reduction}, smoothed by {smoothing}", plain, options, dtypes=WIDE)
        yield Variant(f"{reduction}, smoothed by {smoothing}, −100", ragged, options, dtypes=WIDE)


def torch_cross_entropy(inputs: Any, options: Any) -> Any:
    """Over `[B · T, N]`: with more axes it expects the classes second."""
    logits, labels = inputs["logits"], inputs["labels"].long()
    reduction = "mean" if options["reduction"] == "tokens" else "none"
    loss = F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction=reduction, label_smoothing=options["label_smoothing"]
    )
    if reduction == "mean":
        return loss
    return loss.reshape(labels.shape) if options["reduction"] == "none" else loss.reshape(labels.shape).mean(-1)


def jax_cross_entropy(inputs: Any, options: Any) -> Any:
    labels = inputs["labels"]
    return jax_attn.masked_cross_entropy(inputs["logits"], labels, mask=labels != -100, **options)


TORCH_TWIN_CASES = (
    recurrent_case("LSTM", parts=2),
    recurrent_case("GRU", parts=1),
    Case(
        "DotProductAttention (F.scaled_dot_product_attention)",
        tuple(dot_product_variants()),
        torch_function(torch_dot_product),
        jax_function(jax_dot_product),
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
        jax_function(jax_cross_entropy),
    ),
)

"""The recurrent encoder, the attention decoder, and the two as one model."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jax_attn
import torch_ref
from jax_attn.modules.attention import ATTENTIONS
from parity_tests.this_library.cases.functional import TANH, ints
from parity_tests.this_library.cases.modules import module_case
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import Case, Variant, random_for
from parity_tests.your_port.measure.torch_side import torch_module

SOURCE_VOCAB, TARGET_VOCAB, EMBED, HIDDEN = 9, 7, 4, 4


def tokens(seed: str, vocab_size: int, *shape: int) -> np.ndarray:
    return random_for("tokens", seed).integers(0, vocab_size, shape).astype(np.int32)


# Encoder


def encoder_options(**more: Any) -> dict[str, Any]:
    return {"vocab_size": SOURCE_VOCAB, "embed_size": EMBED, "num_hiddens": HIDDEN, **more}


def encoder_variants() -> Iterator[Variant]:
    none = dict.fromkeys(("keep_layers", "keep_words", "keep_embedding"))
    inputs = {"tokens": tokens("encoder", SOURCE_VOCAB, 3, 5), "valid_lens": ints(3, 5, 0), **none}
    yield Variant("gru, both directions", inputs, encoder_options(num_layers=2, bidirectional=True))
    yield Variant("lstm", inputs, encoder_options(cell="lstm"))
    yield Variant("lstm through the padding", inputs, encoder_options(cell="lstm", stop_at_length=False), slow=True)
    for name, steps in (("dropout", 5), ("variational dropout", 1)):
        masks = {"layers": (3, 1, steps, 2 * HIDDEN), "words": (3, 5, 1), "embedding": (3, steps, EMBED)}
        rates = {"dropout": 0.4, "dropout_words": 0.3, "dropout_embedding": 0.2, "variational": steps == 1}
        options = encoder_options(num_layers=2, bidirectional=True, **rates)
        yield Variant(name, {**inputs, **keep_masks("encoder", masks)}, options, dtypes=("float64",))
    yield Variant("no lengths", {**inputs, "valid_lens": None}, encoder_options(), slow=True)


def keep_masks(seed: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Draw masks by the names of their records' fields."""
    return {f"keep_{name}": random_for("keep", seed, name).random(shape) < 0.6 for name, shape in shapes.items()}


def encoder_call(module: Any, inputs: Any) -> Any:
    masks = (inputs["keep_layers"], inputs["keep_words"], inputs["keep_embedding"])
    return module(inputs["tokens"], inputs["valid_lens"], keep_masks=jax_attn.EncoderKeepMasks(*masks))


# Decoder: a set that covers every attention, query, cell, initial state and dropout, not their product.

BOOK, LUONG = "the book: gru, additive, previous", "Luong: lstm, dot, new, fed"
BRIDGED = "lstm, additive, new, fed, bridged, dropout"
FED: dict[str, Any] = {"query": "new", "input_feeding": True}
SETTINGS: dict[str, dict[str, Any]] = {
    BOOK: {"num_layers": 2},
    LUONG: {"cell": "lstm", "attention": "dot", **FED},
    BRIDGED: {
        **{"cell": "lstm", "bridge": True, "num_layers": 2, "dropout": 0.4},
        **FED,
    },
}
RATES: dict[str, Any] = {"dropout": 0.4, "dropout_words": 0.3, "dropout_embedding": 0.2, "dropout_output": 0.1}
DROPPED, VARIATIONAL, TIED = "all dropouts", "all dropouts, variational, between, tied", "tied, other sizes, fed"
AGAIN: dict[str, dict[str, Any]] = {
    "lstm, between, fed": {"cell": "lstm", "query": "between", "input_feeding": True},
    DROPPED: {"num_layers": 2, "cell": "lstm", "query": "new", **RATES},
    VARIATIONAL: {
        **{"num_layers": 2, "query": "between", "variational": True, "tie_embeddings": True, "embed_size": 3},
        **RATES,
    },
    "lstm, no attention, no biases": {"cell": "lstm", "attention": "none", "num_layers": 2, "use_bias": False},
}
SLOW: dict[str, dict[str, Any]] = {
    TIED: {"cell": "lstm", "tie_embeddings": True, "embed_size": 3, **FED},
    "lstm, two heads, new, fed": {"cell": "lstm", "num_heads": 2, **FED},
    "gru, scaled dot, new, tied": {"attention": "scaled_dot", "query": "new", "tie_embeddings": True},
    "gru, no attention, new, fed, bridged": {"attention": "none", "bridge": True, **FED},
    **{f"gru, {name}": {"attention": name} for name in ATTENTIONS if name not in ("additive", "dot", "scaled_dot")},
}
"""Settings without arithmetic that the others lack: only in float64 and without a beam, as each costs a compilation.
The quick run leaves the slow ones out, of which every part stands in a quicker one or in a module's own case."""


def decoder_variants() -> Iterator[Variant]:
    for name, chosen in {**SETTINGS, **AGAIN, **SLOW}.items():
        inputs, options = decoder_inputs(name, chosen), decoder_options(**chosen)
        if name in SETTINGS:
            yield Variant(name, inputs, options, slow=name == BRIDGED)
        else:
            inputs |= {"beam_tokens": None, "beam_rows": None}
            yield Variant(name, inputs, options, dtypes=("float64",), slow=name in SLOW)
    inputs, options = decoder_inputs(BOOK, SETTINGS[BOOK]), decoder_options(**SETTINGS[BOOK])
    mask = random_for("decoder", "mask").random((3, 1, 5)) < 0.6
    yield Variant(f"{BOOK}, mask and lengths", {**inputs, "mask": mask}, options, dtypes=("float64",), slow=True)
    hidden = np.arange(5)[:, None] >= inputs["valid_lens"][:, None, None]
    inputs["outputs"] = np.where(hidden, np.nan, inputs["outputs"])
    yield Variant(f"{BOOK}, NaN where nothing attends", inputs, options)


def decoder_options(**more: Any) -> dict[str, Any]:
    return {"vocab_size": TARGET_VOCAB, "embed_size": EMBED, "num_hiddens": HIDDEN} | more


def decoder_inputs(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Draw outputs and state of an encoder (in two directions under a bridge), and targets; one source is empty."""
    rng = random_for("decoder", name)
    layers, directions = options.get("num_layers", 1), 2 if options.get("bridge") else 1
    parts = tuple(rng.normal(size=(layers * directions, 3, HIDDEN)) for _ in range(2))
    shapes = {"layers": (3, layers - 1, 4, HIDDEN), "attention": (3, 4, 5), "words": (3, 4, 1)}
    width = options.get("embed_size", EMBED)
    shapes |= {"embedding": (3, 4, width), "output": (3, 4, width if options.get("tie_embeddings") else HIDDEN)}
    if options.get("variational"):
        shapes = {key: (*shape[:-2], 1, shape[-1]) if key in REPEATED else shape for key, shape in shapes.items()}
    kinds = {"layers": "dropout", "attention": "dropout"}
    shapes = {key: shape for key, shape in shapes.items() if kinds.get(key, f"dropout_{key}") in options}
    return {
        **dict.fromkeys(f"keep_{key}" for key in jax_attn.DecoderKeepMasks._fields),
        **keep_masks(name, shapes),
        "outputs": rng.normal(size=(3, 5, directions * HIDDEN)),
        "state": parts if options.get("cell") == "lstm" else parts[0],
        "valid_lens": ints(3, 0, 5),
        "mask": None,
        "targets": tokens(name, TARGET_VOCAB, 3, 4),
        "beam_tokens": tokens(f"beam, {name}", TARGET_VOCAB, 6),
        "beam_rows": ints(0, 0, 1, 1, 2, 2),
    }


REPEATED = ("layers", "embedding", "output")
"""The masks that variational dropout has once for all steps."""


def decoder_call(module: Any, inputs: Any) -> Any:
    """Run teacher forcing, a step from the initial state, and a step of a beam of 2.

    Both sides read records by field, so PyTorch takes JAX's.
    """
    encoded = jax_attn.EncoderOutput(inputs["outputs"], inputs["state"])
    memory = module.prepare(encoded, inputs["valid_lens"], inputs["mask"])
    masks = jax_attn.DecoderKeepMasks(*(inputs[f"keep_{key}"] for key in jax_attn.DecoderKeepMasks._fields))
    logits, weights = module(inputs["targets"], memory, keep_masks=masks)
    log_probs, state, step_weights = module.step(inputs["targets"][:, 0], module.initial_state(memory), memory)
    beam = None, None
    if inputs["beam_tokens"] is not None:
        beam_state = jax.tree.map(lambda leaf: leaf[inputs["beam_rows"]], state)
        beam = module.step(inputs["beam_tokens"], beam_state, memory)[::2]
    return logits, weights, memory.initial, log_probs, state, step_weights, *beam


DECODER_OUTPUTS = (
    "logits",
    "weights",
    "initial state",
    "log_probs of a step",
    "state after a step",
    "weights of a step",
    "log_probs of a beam",
    "weights of a beam",
)


def build_decoder(library: Any, options: Any, sizes: dict[str, int], **more: Any) -> Any:
    """Build a decoder; `num_heads` stands for an attention module with that many heads and with biases."""
    options = dict(options)
    if "num_heads" in options:
        heads, dropout = options.pop("num_heads"), options.get("dropout", 0.0)
        known = {**sizes, **{name: value for name, value in more.items() if name == "param_dtype"}}
        options["attention"] = library.MultiHeadAttention(6, heads, dropout, use_bias=True, **known)
    return library.Seq2SeqAttentionDecoder(**options, **more)


def jax_decoder(options: Any, dtype: Any) -> jax_attn.Seq2SeqAttentionDecoder:
    return build_decoder(jax_attn, options, {}, param_dtype=dtype)


def torch_decoder(options: Any, inputs: Any) -> torch_ref.Seq2SeqAttentionDecoder:
    encoder_size = inputs["outputs"].shape[-1]
    sizes = {"query_size": HIDDEN, "key_size": encoder_size, "value_size": encoder_size}
    return build_decoder(torch_ref, options, sizes, encoder_size=encoder_size)


# Both as one model


def translator_variants() -> Iterator[Variant]:
    sources, targets = tokens("sources", SOURCE_VOCAB, 3, 5), tokens("targets", TARGET_VOCAB, 3, 4)
    inputs = {"sources": sources, "targets": targets, "source_lens": ints(5, 2, 3)}
    yield Variant("gru, both directions, bridged", inputs, translator_options(bidirectional=True, bridge=True))
    lstm = translator_options(cell="lstm", num_layers=2, attention="dot", query="new", input_feeding=True)
    yield Variant("lstm, two layers, Luong", inputs, lstm, slow=True)
    yield Variant("no lengths", {**inputs, "source_lens": None}, translator_options(), slow=True)
    tied = translator_options(query="new", input_feeding=True, tie_embeddings=True, vocab_size=SOURCE_VOCAB)
    yield Variant("three-way tied", inputs, {**tied, "share_embedding": True}, dtypes=("float64",), slow=True)


def translator_options(bidirectional: bool = False, **decoder: Any) -> dict[str, Any]:
    shared = {name: decoder[name] for name in ("cell", "num_layers") if name in decoder}
    return {"encoder": encoder_options(bidirectional=bidirectional, **shared), "decoder": decoder_options(**decoder)}


def sharing(options: Any) -> dict[str, Any]:
    return {"share_embedding": options.get("share_embedding", False)}


def translator_call(module: Any, inputs: Any) -> Any:
    """Run teacher forcing, and again for the weights of every layer and head, as far as the model has them."""
    given = inputs["sources"], inputs["targets"], inputs["source_lens"]
    cross, source, target, _ = module.attention_maps(*given)
    return *module(*given), *(found for found in (cross, source, target) if found is not None)


def jax_translator(options: Any, dtype: Any) -> jax_attn.EncoderDecoder:
    return jax_attn.EncoderDecoder(
        jax_attn.Seq2SeqEncoder(**options["encoder"], param_dtype=dtype),
        jax_attn.Seq2SeqAttentionDecoder(**options["decoder"], param_dtype=dtype),
        **sharing(options),
    )


def torch_translator(options: Any, _: Any) -> torch_ref.EncoderDecoder:
    encoder_size = options["encoder"]["num_hiddens"] * (2 if options["encoder"]["bidirectional"] else 1)
    return torch_ref.EncoderDecoder(
        torch_ref.Seq2SeqEncoder(**options["encoder"]),
        torch_ref.Seq2SeqAttentionDecoder(**options["decoder"], encoder_size=encoder_size),
        **sharing(options),
    )


# Whole models in float32 are what the drift of trainings measures.
ROUNDED: dict[str, Any] = {"factor": 16, "reason": TANH, "slow_dtypes": ("float32", "bfloat16")}

MODEL_CASES = (
    module_case("Seq2SeqEncoder", encoder_variants(), encoder_call, slow_dtypes=("bfloat16",)),
    Case(
        "Seq2SeqAttentionDecoder",
        tuple(decoder_variants()),
        torch_module(torch_decoder, decoder_call),
        linen_module(jax_decoder, decoder_call),
        DECODER_OUTPUTS,
        **ROUNDED,
    ),
    Case(
        "EncoderDecoder",
        tuple(translator_variants()),
        torch_module(torch_translator, translator_call),
        linen_module(jax_translator, translator_call),
        ("logits", "weights", "cross-attention"),
        **ROUNDED,
    ),
)

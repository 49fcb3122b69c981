"""What both sides must refuse of the networks, the models and the searches: arguments, settings, and values.

A module is built from a refusal's options and run once on its inputs; shapes, ranks and dtypes are refused under a
trace, values (an id outside the vocabulary, a length beyond the padding) where they can be seen.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.case import Refusal
from parity_tests.refusals.functional import bools, floats, ints

BATCH, TIME, FEATURES, HIDDEN, VOCAB = 2, 5, 3, 4, 7

# Recurrent networks


def recurrent_networks() -> Iterator[Refusal]:
    for name in ("LSTM", "GRU"):
        options: dict[str, Any] = {"num_hiddens": HIDDEN, "num_layers": 2}
        fitting = {"inputs": floats(BATCH, TIME, FEATURES)}

        def state(*shape: int, name: str = name, make: Callable[..., np.ndarray] = floats) -> Any:
            return (make(*shape), make(*shape)) if name == "LSTM" else make(*shape)

        for why, wrong in (
            ("inputs of one axis", {"inputs": floats(FEATURES)}),
            ("integer inputs", {"inputs": ints(BATCH, TIME, FEATURES)}),
            ("inputs of other features than the weights'", {"inputs": floats(BATCH, TIME, FEATURES + 1)}),
            ("lengths of another batch", {"valid_lens": ints(3)}),
            ("lengths of every position", {"valid_lens": ints(BATCH, TIME)}),
            ("boolean lengths", {"valid_lens": bools(BATCH)}),
            ("a state of another batch", {"initial_state": state(2, 3, HIDDEN)}),
            ("a state to be broadcast", {"initial_state": state(2, 1, HIDDEN)}),
            ("a state of another width", {"initial_state": state(2, BATCH, HIDDEN + 1)}),
            ("a state of other layers", {"initial_state": state(1, BATCH, HIDDEN)}),
            ("an integer state", {"initial_state": state(2, BATCH, HIDDEN, make=ints)}),
            (
                "the other cell's state",
                {"initial_state": state(2, BATCH, HIDDEN, name={"LSTM": "GRU"}.get(name, "LSTM"))},
            ),
            ("keep-masks of another time", {"keep_masks": bools(1, BATCH, 4, HIDDEN)}),
            ("keep-masks of other layers", {"keep_masks": bools(2, BATCH, TIME, HIDDEN)}),
            ("keep-masks of floats", {"keep_masks": floats(1, BATCH, TIME, HIDDEN)}),
        ):
            yield Refusal(name, why, {**fitting, **wrong}, options)
        keep_masks = {"keep_masks": bools(1, BATCH, TIME, HIDDEN)}
        yield Refusal(
            name, "keep-masks where there is one layer", {**fitting, **keep_masks}, {**options, "num_layers": 1}
        )
        both = {**options, "bidirectional": True}
        yield Refusal(name, "a state of one direction", {**fitting, "initial_state": state(2, BATCH, HIDDEN)}, both)
        for why, wrong_options in (
            ("no hidden units", {"num_hiddens": 0}),
            ("no layers", {"num_layers": 0}),
            ("a rate of 1", {"dropout": 1.0}),
            ("a negative rate", {"dropout": -0.1}),
        ):
            yield Refusal(name, why, fitting, {**options, **wrong_options})


def jax_recurrent(name: str) -> Callable[..., Any]:
    def run(options: Any, inputs: Any) -> Any:
        module = getattr(jax_attn, name)(**options)
        return module.apply(module.init(jax.random.key(0), jnp.zeros((BATCH, TIME, FEATURES))), **inputs)

    return run


def torch_recurrent(name: str) -> Callable[..., Any]:
    return lambda options, inputs: getattr(torch_ref, name)(FEATURES, **options)(**inputs)


# Embeddings


def embeddings() -> Iterator[Refusal]:
    options = {"d_model": 4, "vocab_size": VOCAB}
    yield Refusal("Embeddings", "floating tokens", {"tokens": floats(2, 3)}, options)
    yield Refusal("Embeddings", "boolean tokens", {"tokens": bools(2, 3)}, options)
    name, fitting, options = "PositionalEncoding", {"x": floats(2, 3, 4)}, {"d_model": 4}
    yield Refusal(name, "other features", {"x": floats(2, 3, 5)}, options)
    yield Refusal(name, "one axis", {"x": floats(4)}, options)
    yield Refusal(name, "integers", {"x": ints(2, 3, 4)}, options)
    yield Refusal(name, "more positions than max_len", fitting, {**options, "max_len": 2})
    yield Refusal(name, "a keep-mask of another shape", {**fitting, "keep_mask": bools(3, 4)}, options)
    yield Refusal(name, "a keep-mask of integers", {**fitting, "keep_mask": ints(2, 3, 4)}, options)
    yield Refusal(name, "a rate of 1", fitting, {**options, "dropout": 1.0})


def jax_module(name: str) -> Callable[..., Any]:
    return lambda options, inputs: getattr(jax_attn, name)(**options).init(jax.random.key(0), *inputs.values())


def jax_positions(options: Any, inputs: Any) -> Any:
    module = jax_attn.PositionalEncoding(**options)
    return module.init(jax.random.key(0), inputs["x"], keep_mask=inputs.get("keep_mask"))


def torch_module(name: str) -> Callable[..., Any]:
    return lambda options, inputs: getattr(torch_ref, name)(**options)(*inputs.values())


def torch_positions(options: Any, inputs: Any) -> Any:
    return torch_ref.PositionalEncoding(**options)(inputs["x"], keep_mask=inputs.get("keep_mask"))


# The encoder

ENCODER = {"vocab_size": VOCAB, "embed_size": 3, "num_hiddens": HIDDEN, "num_layers": 2}
TOKENS = {"tokens": ints(BATCH, TIME)}


def encoders() -> Iterator[Refusal]:
    name = "Seq2SeqEncoder"
    for why, wrong in (
        ("a single token", {"tokens": ints()}),
        ("floating tokens", {"tokens": floats(BATCH, TIME)}),
        ("boolean tokens", {"tokens": bools(BATCH, TIME)}),
        ("lengths of another batch", {"valid_lens": ints(3)}),
        ("lengths of every position", {"valid_lens": ints(BATCH, TIME)}),
        ("boolean lengths", {"valid_lens": bools(BATCH)}),
        ("keep-masks of other layers", {"keep_masks": bools(2, BATCH, TIME, HIDDEN)}),
        ("keep-masks of floats", {"keep_masks": floats(1, BATCH, TIME, HIDDEN)}),
    ):
        yield Refusal(name, why, {**TOKENS, **wrong}, ENCODER)
    through = {**ENCODER, "stop_at_length": False}
    yield Refusal(name, "lengths of another batch, though unused", {**TOKENS, "valid_lens": ints(3)}, through)
    yield Refusal(name, "boolean lengths, though unused", {**TOKENS, "valid_lens": bools(BATCH)}, through)
    yield from settings(name, TOKENS, ENCODER)


def settings(name: str, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[Refusal]:
    """What the recurrent models refuse in their constructors."""
    for why, wrong in (
        ("an unknown cell", {"cell": "rnn"}),
        ("no layers", {"num_layers": 0}),
        ("no hidden units", {"num_hiddens": 0}),
        ("a rate of 1", {"dropout": 1.0}),
        ("a negative rate", {"dropout": -0.5}),
    ):
        yield Refusal(name, why, inputs, {**options, **wrong})


def run_encoder(module: Any, inputs: Any) -> Any:
    return module(inputs["tokens"], inputs.get("valid_lens"), keep_masks=inputs.get("keep_masks"))


# The decoder

DECODER = {"vocab_size": VOCAB, "embed_size": 3, "num_hiddens": HIDDEN, "num_layers": 2}


def encoded(layers: int = 2, features: int = HIDDEN, parts: int = 1, batch: int = BATCH) -> dict[str, Any]:
    """What an encoder of one direction hands over."""
    state = tuple(floats(layers, batch, features) for _ in range(parts))
    return {"outputs": floats(BATCH, TIME, features), "state": state if parts == 2 else state[0]}


def decoders() -> Iterator[Refusal]:
    name = "Seq2SeqAttentionDecoder"
    fitting = {**encoded(), "targets": ints(BATCH, 3)}
    for why, wrong in (
        ("outputs of two axes", {"outputs": floats(TIME, HIDDEN)}),
        ("integer outputs", {"outputs": ints(BATCH, TIME, HIDDEN)}),
        ("outputs of other features than the state's", {"outputs": floats(BATCH, TIME, HIDDEN + 1)}),
        ("outputs of fewer features than the state's", {"outputs": floats(BATCH, TIME, HIDDEN - 1)}),
        ("a state of another batch", encoded(batch=3)),
        ("a state of two axes", {"state": floats(BATCH, HIDDEN)}),
        ("an encoder of fewer layers", encoded(layers=1)),
        ("an encoder of more layers", encoded(layers=3)),
        ("an encoder of the other cell", encoded(parts=2)),
        ("an encoder of another width", encoded(features=HIDDEN + 1)),
        ("lengths of another batch", {"valid_lens": ints(3)}),
        ("lengths of every query", {"valid_lens": ints(BATCH, 1)}),
        ("boolean lengths", {"valid_lens": bools(BATCH)}),
        ("an integer mask", {"mask": ints(BATCH, 1, TIME)}),
        ("a mask of other keys", {"mask": bools(BATCH, 1, TIME + 1)}),
        ("a mask of several queries", {"mask": bools(BATCH, 3, TIME)}),
        ("targets of one axis", {"targets": ints(BATCH)}),
        ("targets of three axes", {"targets": ints(BATCH, 3, 1)}),
        ("targets of another batch", {"targets": ints(3, 3)}),
        ("floating targets", {"targets": floats(BATCH, 3)}),
        ("layers' keep-masks of another time", {"keep_layers": bools(4, 1, BATCH, HIDDEN)}),
        ("layers' keep-masks of other layers", {"keep_layers": bools(3, 2, BATCH, HIDDEN)}),
        ("layers' keep-masks of floats", {"keep_layers": floats(3, 1, BATCH, HIDDEN)}),
        ("attention's keep-masks of other keys", {"keep_attention": bools(3, BATCH, TIME + 1)}),
        ("attention's keep-masks of integers", {"keep_attention": ints(3, BATCH, TIME)}),
        ("a step's tokens of a part of a beam", {"tokens": ints(3)}),
        ("a step's tokens of two axes", {"tokens": ints(BATCH, 1)}),
        ("a step's tokens floating", {"tokens": floats(BATCH)}),
        ("a step from the state of fewer rows", {"tokens": ints(2 * BATCH)}),
    ):
        yield Refusal(name, why, {**fitting, **wrong}, DECODER)
    lstm = {**DECODER, "cell": "lstm"}
    yield Refusal(name, "a GRU's state for an LSTM", fitting, lstm)
    bridge = {**DECODER, "bridge": True}
    yield Refusal(name, "an encoder of fewer layers, bridged", {**fitting, **encoded(layers=1)}, bridge)
    for why, wrong_options in (
        ("input feeding with the previous query", {"input_feeding": True}),
        ("ties of another size", {"tie_embeddings": True}),
        ("an unknown attention", {"attention": "concat"}),
        ("an unknown query", {"query": "next"}),
    ):
        yield Refusal(name, why, fitting, {**DECODER, **wrong_options})
    yield from settings(name, fitting, DECODER)
    without = {**DECODER, "attention": "none"}
    yield from (Refusal(name, f"{r.why}, no attention", r.inputs, r.options) for r in settings(name, fitting, without))


def run_decoder(module: Any, inputs: Any) -> Any:
    """The memory, teacher forcing, and a step where there are tokens for it. (Both sides read records by field.)"""
    output = jax_attn.EncoderOutput(inputs["outputs"], inputs["state"])
    memory = module.prepare(output, inputs.get("valid_lens"), inputs.get("mask"))
    if "tokens" in inputs:
        return module.step(inputs["tokens"], module.initial_state(memory), memory)
    keep_masks = jax_attn.DecoderKeepMasks(inputs.get("keep_layers"), inputs.get("keep_attention"))
    return module(inputs["targets"], memory, keep_masks=keep_masks)


# Both as one model


def translators() -> Iterator[Refusal]:
    name = "EncoderDecoder"
    fitting = {"sources": ints(BATCH, TIME), "targets": ints(BATCH, 3)}
    alike = {"encoder": ENCODER, "decoder": DECODER}
    for why, wrong in (
        ("sources of one axis", {"sources": ints(TIME)}),
        ("floating sources", {"sources": floats(BATCH, TIME)}),
        ("lengths of another batch", {"source_lens": ints(3)}),
        ("boolean lengths", {"source_lens": bools(BATCH)}),
        ("targets of another batch", {"targets": ints(3, 3)}),
        ("floating targets", {"targets": floats(BATCH, 3)}),
    ):
        yield Refusal(name, why, {**fitting, **wrong}, alike)
    for why, encoder in (
        ("an encoder of other layers", {"num_layers": 1}),
        ("an encoder of the other cell", {"cell": "lstm"}),
        ("an encoder of another width", {"num_hiddens": HIDDEN + 1}),
        ("an encoder of both directions without a bridge", {"bidirectional": True}),
    ):
        yield Refusal(name, why, fitting, {**alike, "encoder": {**ENCODER, **encoder}})


def jax_translator(options: Any) -> Any:
    encoder = jax_attn.Seq2SeqEncoder(**options["encoder"])
    return jax_attn.EncoderDecoder(encoder, jax_attn.Seq2SeqAttentionDecoder(**options["decoder"]))


def torch_translator(options: Any) -> Any:
    encoder = options["encoder"]
    size = encoder["num_hiddens"] * (2 if encoder.get("bidirectional") else 1)
    attention = {"encoder_size": size}
    return torch_ref.EncoderDecoder(
        torch_ref.Seq2SeqEncoder(**encoder), torch_ref.Seq2SeqAttentionDecoder(**options["decoder"], **attention)
    )


def run_translator(module: Any, inputs: Any) -> Any:
    return module(inputs["sources"], inputs["targets"], inputs.get("source_lens"))


# Searches


def searches() -> Iterator[Refusal]:
    for name in ("greedy_search", "beam_search"):
        fitting = {"state": floats(BATCH, 3), "table": floats(VOCAB)}
        options = {"bos": 1, "eos": 2, "max_len": 4, "batch_size": BATCH}
        yield Refusal(name, "no sentences", fitting, {**options, "batch_size": 0})
        yield Refusal(name, "no tokens", fitting, {**options, "max_len": 0})
        yield Refusal(name, "a state of another batch", {**fitting, "state": floats(3, 3)}, options)
        yield Refusal(name, "a state without axes", {**fitting, "state": floats()}, options)
        yield Refusal(name, "scores of one axis", fitting, {**options, "axes": 1})
        yield Refusal(name, "scores of three axes", fitting, {**options, "axes": 3})
        yield Refusal(name, "integer scores", {**fitting, "table": ints(VOCAB)}, options)
        for token in ("bos", "eos"):
            yield Refusal(name, f"{token} beyond the vocabulary", fitting, {**options, token: VOCAB})
            yield Refusal(name, f"a negative {token}", fitting, {**options, token: -1})
    yield Refusal("beam_search", "no places", fitting, {**options, "beam_size": 0})


def search_call(library: Any, name: str) -> Callable[..., Any]:
    """A language in which the next token never depends on anything; `axes` are those of its scores."""

    def run(options: Any, inputs: Any) -> Any:
        axes = options.get("axes", 2)

        def step(tokens: Any, state: Any, memory: Any) -> Any:
            rows = tokens[:, None] * 0 + inputs["table"]
            return {1: rows[0], 2: rows, 3: rows[None]}[axes], state, None

        known = {key: value for key, value in options.items() if key != "axes"}
        return getattr(library, name)(step, inputs["state"], None, **known)

    return run


# Values, which a trace cannot see


def values() -> Iterator[Refusal]:
    far, negative = np.array([6, 1], np.int32), np.array([1, -1], np.int32)
    for why, lens in (("a length beyond the padding", far), ("a negative length", negative)):
        for name in ("LSTM", "GRU"):
            inputs = {"inputs": floats(BATCH, TIME, FEATURES), "valid_lens": lens}
            yield Refusal(name, why, inputs, {"num_hiddens": HIDDEN})
        yield Refusal("Seq2SeqEncoder", why, {**TOKENS, "valid_lens": lens}, ENCODER)
        through = {**ENCODER, "stop_at_length": False}
        yield Refusal("Seq2SeqEncoder", f"{why}, though unused", {**TOKENS, "valid_lens": lens}, through)
        decoder_inputs = {**encoded(), "targets": ints(BATCH, 3), "valid_lens": lens}
        yield Refusal("Seq2SeqAttentionDecoder", why, decoder_inputs, DECODER)
    for why, wrong in (("an id outside the vocabulary", VOCAB), ("a negative id", -1)):
        ids = np.full((BATCH, TIME), wrong, np.int32)
        yield Refusal("Embeddings", why, {"tokens": ids}, {"d_model": 4, "vocab_size": VOCAB})
        yield Refusal("Seq2SeqEncoder", why, {"tokens": ids}, ENCODER)
        yield Refusal("Seq2SeqAttentionDecoder", why, {**encoded(), "targets": ids}, DECODER)
        tokens = {"targets": ints(BATCH, 3), "tokens": ids[:, 0]}
        yield Refusal("Seq2SeqAttentionDecoder", f"{why} in a step", {**encoded(), **tokens}, DECODER)
        pair = {"sources": ids, "targets": ints(BATCH, 3)}
        yield Refusal("EncoderDecoder", why, pair, {"encoder": ENCODER, "decoder": DECODER})


MODEL_REFUSALS = (
    *recurrent_networks(),
    *embeddings(),
    *encoders(),
    *decoders(),
    *translators(),
    *searches(),
)
"""Shapes, ranks, dtypes and settings."""
MODEL_VALUE_REFUSALS = tuple(values())


WITHOUT_REFUSAL: dict[str, str] = {
    "SearchResult": "a record, which computes nothing",
    "Memory": "a record: the attention modules refuse what does not fit it",
    "MLPAttention": "the older name of AdditiveAttention, which it is",
    "EncoderOutput": "a record: Seq2SeqAttentionDecoder refuses one whose parts do not fit",
    "DecoderMemory": "a record, made by Seq2SeqAttentionDecoder",
    "DecoderState": "a record: Seq2SeqAttentionDecoder refuses one of other rows",
    "DecoderKeepMasks": "a record: Seq2SeqAttentionDecoder refuses masks that do not fit",
    "show_heatmaps": "has no twin: its own test says what it refuses",
    "show_alignments": "has no twin: its own test says what it refuses",
}


@dataclass(frozen=True)
class Asked:
    """How each side is asked: (options, inputs) -> what should not come back."""

    jax: Callable[[Any, Any], Any]
    torch: Callable[[Any, Any], Any]


def asked_of_model(build_jax: Callable[..., Any], build_torch: Callable[..., Any], run: Callable[..., Any]) -> Asked:
    return Asked(
        lambda options, inputs: build_jax(options).init(jax.random.key(0), inputs, method=run),
        lambda options, inputs: run(build_torch(options), inputs),
    )


def by_name(library: Any, name: str) -> Callable[..., Any]:
    return lambda options: getattr(library, name)(**options)


ASKED = {
    **{name: Asked(jax_recurrent(name), torch_recurrent(name)) for name in ("LSTM", "GRU")},
    **{
        name: asked_of_model(by_name(jax_attn, name), by_name(torch_ref, name), run)
        for name, run in (("Seq2SeqEncoder", run_encoder), ("Seq2SeqAttentionDecoder", run_decoder))
    },
    **{
        name: Asked(search_call(jax_attn, name), search_call(torch_ref, name))
        for name in ("greedy_search", "beam_search")
    },
    "Embeddings": Asked(jax_module("Embeddings"), torch_module("Embeddings")),
    "PositionalEncoding": Asked(jax_positions, torch_positions),
    "EncoderDecoder": asked_of_model(jax_translator, torch_translator, run_translator),
}


def ask_jax(refusal: Refusal, traced: bool = True) -> Callable[[], Any]:
    """What should raise: under a trace, unless it is a value."""
    arrays = jax.tree.map(jnp.asarray, dict(refusal.inputs))
    ask = ASKED[refusal.name].jax
    if traced:
        return lambda: jax.eval_shape(lambda inputs: ask(refusal.options, inputs), arrays)
    return lambda: ask(refusal.options, arrays)


def ask_torch(refusal: Refusal) -> Callable[[], Any]:
    """What should raise, in PyTorch."""
    tensors = jax.tree.map(torch.tensor, dict(refusal.inputs))
    return lambda: ASKED[refusal.name].torch(refusal.options, tensors)

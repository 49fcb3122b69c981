"""The Transformer: ours against torch_ref's, and against nn.TransformerEncoder and nn.TransformerDecoder."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import jax_attn
import torch_ref
from jax_attn.search import step as search_step
from parity_tests.this_library.cases.functional import SOFTMAX, ints
from parity_tests.this_library.cases.models import keep_masks, sharing, tokens, translator_call
from parity_tests.this_library.cases.modules import module_case
from parity_tests.this_library.cases.twins import split_projections
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import Case, JaxSide, Variant, random_for
from parity_tests.your_port.measure.torch_side import torch_module

SIZES: dict[str, Any] = {"vocab_size": 9, "embed_size": 8, "num_hiddens": 6, "num_layers": 2, "num_heads": 2}
OTHER: dict[str, Any] = {
    **{"norm": "pre", "activation": "gelu", "positions": "learnt", "max_len": 7, "use_bias": False},
    **{"num_layers": 1, "scale_embedding": False},
}
RATES: dict[str, Any] = {"dropout": 0.2, "dropout_attention": 0.3, "dropout_hidden": 0.4}
KEEP = jax_attn.TransformerKeepMasks._fields
FLOAT64 = ("float64",)
LENS = ints(2, 5, 3)


def keep_shapes(time: int, sublayers: int, **cross: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the masks of three sentences."""
    return {
        "embedding": (3, time, 8),
        "residual": (3, 2, sublayers, time, 8),
        "hidden": (3, 2, time, 6),
        "self_attention": (3, 2, 2, time, time),
        **cross,
    }


def encoder_variants() -> Iterator[Variant]:
    inputs = {"tokens": tokens("transformer", 9, 3, 5), "valid_lens": LENS, **dict.fromkeys(f"keep_{x}" for x in KEEP)}
    yield Variant("the paper", inputs, SIZES)
    yield Variant("no lengths", {**inputs, "valid_lens": None}, SIZES, dtypes=FLOAT64, slow=True)
    yield Variant("before each sublayer, learnt positions, GELU, no biases", inputs, SIZES | OTHER)
    halves = SIZES | {"positions": "halves", "activation": "silu"}
    yield Variant("sines, then cosines, SiLU", inputs, halves, dtypes=FLOAT64, slow=True)
    masks = keep_masks("transformer encoder", keep_shapes(5, 2))
    yield Variant("all dropouts", {**inputs, **masks}, SIZES | RATES, dtypes=FLOAT64)


def encoder_call(module: Any, inputs: Any) -> Any:
    return module(inputs["tokens"], inputs["valid_lens"], keep_masks=masks_of(inputs))


def masks_of(inputs: Any) -> Any:
    """Return the record of masks; both sides read it by field, so PyTorch takes JAX's."""
    return jax_attn.TransformerKeepMasks(*(inputs[f"keep_{name}"] for name in KEEP))


def decoder_variants() -> Iterator[Variant]:
    inputs = {
        **{"encoded": random_for("transformer").normal(size=(3, 4, 8)), "valid_lens": ints(4, 0, 2)},
        **{"targets": tokens("transformer targets", 9, 3, 5), "beam_tokens": tokens("transformer beam", 9, 2, 6)},
        **dict.fromkeys(f"keep_{x}" for x in KEEP),
    }
    yield Variant("the paper, a source of length 0", inputs, SIZES | {"num_layers": 1})
    yield Variant("two layers", inputs, SIZES, dtypes=FLOAT64, slow=True)
    tied = SIZES | OTHER | {"tie_embeddings": True, "alignment_head": 1}
    yield Variant("before each sublayer, learnt positions, GELU, no biases, tied, one head", inputs, tied, slow=True)
    other = SIZES | {"tie_embeddings": True, "output_bias": False, "activation": "silu", "alignment_layer": 0}
    other |= {"positions": "halves"}
    yield Variant("tied without a bias, SiLU, first layer", inputs, other, dtypes=FLOAT64, slow=True)
    imported = SIZES | {"positions": "halves", "num_layers": 1, "never": (1, 4)}
    fixed = imported | {"fixed_start": True}
    yield Variant("a fixed start, tokens that are never produced", inputs, fixed, dtypes=FLOAT64, slow=True)
    yield Variant("and count", inputs, fixed | {"renormalize": False}, dtypes=FLOAT64, slow=True)
    masks = keep_masks("transformer decoder", keep_shapes(5, 3, cross_attention=(3, 2, 2, 5, 4)))
    yield Variant("all dropouts", {**inputs, **masks}, SIZES | RATES, dtypes=FLOAT64, slow=True)


def decoder_call(module: Any, inputs: Any) -> Any:
    """Run teacher forcing, a step from the initial state, and two of a beam of 2 whose rows change places between them.

    JAX's steps read a cache, PyTorch's compute all earlier positions again.
    """
    memory, targets = module.prepare(inputs["encoded"], inputs["valid_lens"]), inputs["targets"]
    logits, weights = module(targets, memory, keep_masks=masks_of(inputs))
    state = module.initial_state(memory, 3)
    first, state, step_weights = module.step(targets[:, 0], state, memory)
    second, state, _ = module.step(inputs["beam_tokens"][0], reorder(state, (0, 0, 1, 1, 2, 2), widen=True), memory)
    third, _, beam_weights = module.step(inputs["beam_tokens"][1], reorder(state, (1, 0, 2, 2, 5, 4)), memory)
    return logits, weights, first, step_weights, second, third, beam_weights


def reorder(state: Any, rows: tuple[int, ...], widen: bool = False) -> Any:
    """Take rows of a state, as search does; PyTorch's is one tensor."""
    if isinstance(state, torch.Tensor):
        return state[list(rows)]

    def stay(leaf: Any) -> Any:
        return leaf.repeat(2, axis=-2) if widen else leaf

    return search_step.map_state(lambda leaf: leaf[np.array(rows)], state, stay)


DECODER_OUTPUTS = (
    "logits",
    "weights",
    "log_probs of a step",
    "weights of a step",
    "log_probs of a beam",
    "log_probs of a beam in another order",
    "weights of a beam",
)


def translator_variants() -> Iterator[Variant]:
    sources, targets = tokens("transformer sources", 9, 3, 5), tokens("transformer targets", 9, 3, 4)
    inputs = {"sources": sources, "targets": targets, "source_lens": ints(5, 2, 3)}
    halves = {"encoder": SIZES, "decoder": SIZES | {"num_layers": 1}}
    yield Variant("deeper encoder", inputs, halves)
    one = SIZES | {"num_layers": 1, "positions": "opennmt"}
    fairseq = SIZES | {"num_layers": 1, "positions": "fairseq", "norm": "pre"}
    decoder = fairseq | {"tie_embeddings": True, "output_bias": False, "start_token": 2}
    tied = {"encoder": fairseq, "decoder": decoder, "share_embedding": True}
    yield Variant("three-way tied, pre-norm, a start token", inputs, tied, dtypes=FLOAT64, slow=True)
    decoder = one | {"tie_embeddings": True, "fixed_start": True}
    tied = {"encoder": one, "decoder": decoder, "share_embedding": True}
    yield Variant("three-way tied", inputs, tied, dtypes=FLOAT64)


def jax_translator(options: Any, dtype: Any) -> jax_attn.EncoderDecoder:
    return jax_attn.EncoderDecoder(
        jax_attn.TransformerEncoder(**options["encoder"], param_dtype=dtype),
        jax_attn.TransformerDecoder(**options["decoder"], param_dtype=dtype),
        **sharing(options),
    )


def torch_translator(options: Any, _: Any) -> torch_ref.EncoderDecoder:
    return torch_ref.EncoderDecoder(
        torch_ref.TransformerEncoder(**options["encoder"]),
        torch_ref.TransformerDecoder(**options["decoder"]),
        **sharing(options),
    )


def feed_forward_variants() -> Iterator[Variant]:
    rng = random_for("feed forward")
    inputs, options = {"x": rng.normal(size=(3, 4, 5)), "keep_mask": None}, {"num_hiddens": 6, "num_outputs": 5}
    for activation in ("relu", "gelu", "silu"):
        yield Variant(activation, inputs, {**options, "activation": activation})
    dropped = {**inputs, "keep_mask": rng.random((3, 4, 6)) < 0.6}
    yield Variant("dropout, no biases", dropped, {**options, "dropout": 0.4, "use_bias": False}, dtypes=FLOAT64)


def feed_forward_call(module: Any, inputs: Any) -> Any:
    return module(inputs["x"], keep_mask=inputs["keep_mask"])


# PyTorch's own layers


class TorchStack(torch.nn.Module):
    """nn.TransformerEncoder or nn.TransformerDecoder over embeddings and sinusoidal positions."""

    def __init__(self, decodes: bool, norm: str, activation: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 8)
        settings: dict[str, Any] = {"dropout": 0.0, "activation": activation, "batch_first": True}
        last = torch.nn.LayerNorm(8) if norm == "pre" else None
        kind = torch.nn.TransformerDecoderLayer if decodes else torch.nn.TransformerEncoderLayer
        layer = kind(8, 2, 6, norm_first=norm == "pre", **settings)
        if decodes:
            self.dense = torch.nn.Linear(8, 9)
            self.stack: Any = torch.nn.TransformerDecoder(layer, 2, last)
        else:
            self.stack = torch.nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids.long()) * 8**0.5
        return x + torch_ref.sinusoidal_positions(ids.shape[1], 8, x.dtype)


def torch_stack(options: Any, inputs: Any) -> TorchStack:
    return TorchStack("encoded" in inputs, options["norm"], options["activation"])


def run_torch_encoder(module: TorchStack, inputs: Any) -> Any:
    padding = torch.arange(5) >= inputs["valid_lens"][:, None]
    outputs = module.stack(module.embed(inputs["tokens"]), src_key_padding_mask=padding)
    return outputs * ~padding[..., None]


def run_torch_decoder(module: TorchStack, inputs: Any) -> Any:
    padding = torch.arange(4) >= inputs["valid_lens"][:, None]
    x, later = module.embed(inputs["targets"]), torch.ones(5, 5, dtype=torch.bool).triu(1)
    masks = {"tgt_mask": later, "memory_key_padding_mask": padding}
    return module.dense(module.stack(x, inputs["encoded"], **masks))


def our_encoder(module: Any, inputs: Any) -> Any:
    counts = np.arange(5) < inputs["valid_lens"][:, None]
    return module(inputs["tokens"], inputs["valid_lens"]) * counts[..., None]


def our_decoder(module: Any, inputs: Any) -> Any:
    return module(inputs["targets"], module.prepare(inputs["encoded"], inputs["valid_lens"]))[0]


OF_TORCH = {
    "self_attn.": "self_attention.",
    "multihead_attn.": "cross_attention.",
    "linear1": "feed_forward.dense1",
    "linear2": "feed_forward.dense2",
    "norm1": "self_attention_norm",
    "norm3": "feed_forward_norm",
}
"""PyTorch's names of a layer's parts -> ours; "norm2" is another norm in the encoder than in the decoder."""


def our_names(weights: Mapping[str, Any], norm2: str) -> dict[str, Any]:
    """Give the weights of nn.TransformerEncoder or nn.TransformerDecoder our names."""
    ours: dict[str, Any] = {}
    for name, x in weights.items():
        name = re.sub(r"^norm\.", "last_norm.", name.removeprefix("stack."))
        for theirs, our in {**OF_TORCH, "norm2": norm2}.items():
            name = name.replace(theirs, our)
        scope, attention, part = name.partition("_attention.")
        parts = split_projections({part: x}) if attention else {part: x}
        ours |= {f"{scope}{attention}{key}" if attention else name: value for key, value in parts.items()}
    return ours


def our_stack(kind: str, norm2: str, call: Any) -> JaxSide:
    ours = linen_module(lambda options, dtype: getattr(jax_attn, kind)(**SIZES, **options, param_dtype=dtype), call)
    return JaxSide(lambda weights, inputs, options: ours.call(our_names(weights, norm2), inputs, options))


def torch_variants(**inputs: np.ndarray) -> Iterator[Variant]:
    for norm, activation in (("post", "relu"), ("pre", "gelu")):
        yield Variant(f"{norm}-norm, {activation}", inputs, {"norm": norm, "activation": activation}, dtypes=FLOAT64)


ROUNDED: dict[str, Any] = {"factor": 16, "reason": SOFTMAX, "slow_dtypes": ("float32", "bfloat16")}

TRANSFORMER_CASES = (
    module_case("FeedForward", feed_forward_variants(), feed_forward_call, (), "x", slow_dtypes=("bfloat16",)),
    module_case("TransformerEncoder", encoder_variants(), encoder_call, **ROUNDED),
    module_case("TransformerDecoder", decoder_variants(), decoder_call, DECODER_OUTPUTS, **ROUNDED),
    Case(
        "EncoderDecoder (Transformer)",
        tuple(translator_variants()),
        torch_module(torch_translator, translator_call),
        linen_module(jax_translator, translator_call),
        ("logits", "weights", "cross-attention", "the source's attention", "the targets' attention"),
        **ROUNDED,
    ),
    Case(
        "TransformerEncoder (nn.TransformerEncoder)",
        tuple(torch_variants(tokens=tokens("nn.TransformerEncoder", 9, 3, 5), valid_lens=LENS)),
        torch_module(torch_stack, run_torch_encoder),
        our_stack("TransformerEncoder", "feed_forward_norm", our_encoder),
    ),
    Case(
        "TransformerDecoder (nn.TransformerDecoder)",
        tuple(
            torch_variants(
                encoded=random_for("nn.TransformerDecoder").normal(size=(3, 4, 8)),
                valid_lens=ints(4, 1, 2),
                targets=tokens("nn.TransformerDecoder", 9, 3, 5),
            )
        ),
        torch_module(torch_stack, run_torch_decoder),
        our_stack("TransformerDecoder", "cross_attention_norm", our_decoder),
    ),
)

"""What the properties are asked of: functions and modules of both libraries, each behind one form.

Every axis of an array has its letter (those of `jax_attn`'s glossary), so that a property may say "delete these keys"
and mean every array that has a K, gradients and the directions of the differentiation included.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import jax_attn
import torch_ref

SIZES = {"B": 3, "Q": 2, "D": 4, "E": 6, "V": 3, "H": 4, "N": 6, "h": 2}
VOCAB = 9
"""Ids of tokens; the last of them stands in padding alone."""

Call = Callable[[Any, Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Subject:
    """A function or a module, and the letters of its arrays' axes."""

    name: str
    inputs: Mapping[str, str]
    """Argument -> letters of its axes. `valid_lens` and `mask` say what counts; without them everything does."""
    results: Mapping[str, str]
    """Result -> letters of its axes, in the order in which `call` returns them."""
    call: Call
    """(library, module or None, inputs) -> results."""
    positions: str = "K"
    """The letter of the axis that has padding."""
    jax_module: Callable[[Any], Any] | None = None
    """Parameter dtype -> Flax module."""
    torch_module: Callable[[], Any] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of letters that are not in SIZES, or differ."""
    masked: float = 0.0
    """What a result that has an axis of positions holds where nothing counts."""
    uniform: bool = False
    """Whether an empty row weighs every value."""
    wants_batch: tuple[str, ...] = ()
    """The sides that cannot do without the batch axis."""

    @property
    def hides(self) -> bool:
        """Whether some positions may not count."""
        return "valid_lens" in self.inputs

    def letters_of(self, name: str) -> str:
        return self.inputs[name] if name in self.inputs else self.results[name]

    def shape(self, letters: str, length: int) -> tuple[int, ...]:
        sizes = {**SIZES, **self.sizes, self.positions: length}
        return tuple(sizes[letter] for letter in letters)


@dataclass(frozen=True)
class Question:
    """The numbers of one case: floating ones in float64, to be rounded to `dtype` by either side."""

    subject: Subject
    inputs: Mapping[str, np.ndarray]
    directions: Mapping[str, np.ndarray]
    """For each result, the fixed direction along which it is differentiated."""
    weights: Mapping[str, np.ndarray]
    """Parameters by PyTorch name."""
    dtype: str = "float64"

    def change(self, letter: str, edit: Callable[[str, np.ndarray, int], np.ndarray]) -> "Question":
        """Every array that has the axis `letter` replaced by edit(name, array, position of that axis)."""

        def changed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            letters = {name: self.subject.letters_of(name) for name in arrays}
            return {
                name: edit(name, array, letters[name].index(letter)) if letter in letters[name] else array
                for name, array in arrays.items()
            }

        return replace(self, inputs=changed(self.inputs), directions=changed(self.directions))

    def with_inputs(self, **inputs: np.ndarray) -> "Question":
        return replace(self, inputs={**self.inputs, **inputs})

    @property
    def length(self) -> int:
        """How many positions there are."""
        name = next(name for name, letters in self.subject.inputs.items() if self.subject.positions in letters)
        return self.inputs[name].shape[self.subject.inputs[name].index(self.subject.positions)]

    @property
    def counts(self) -> np.ndarray:
        """What lengths and mask allow, `[B, Q, K]` or `[B, T]`: written independently of both libraries."""
        lens = self.inputs["valid_lens"]
        allowed = np.arange(self.length) < lens[:, None]
        mask = self.inputs.get("mask")
        if mask is None:
            return allowed
        return mask & (allowed[:, None] if mask.ndim == 3 else allowed)

    def hidden(self, name: str) -> np.ndarray | None:
        """Where an input can be seen by nothing, in its shape; None if it has no such places."""
        letters, counts = self.subject.inputs[name], self.counts
        if self.subject.positions not in letters or name in ("valid_lens", "mask"):
            return None
        if "Q" in letters:  # scores
            return ~counts
        if self.subject.uniform and name in ("values", "value"):
            counts = counts | ~counts.any(-1, keepdims=True)
        unseen = ~(counts.any(1) if counts.ndim == 3 else counts)  # [B, positions]
        return np.broadcast_to(unseen.reshape(unseen.shape + (1,) * (len(letters) - 2)), self.inputs[name].shape)


@dataclass(frozen=True)
class Answer:
    """What one side made of a question, in float64 (which holds every number of the other dtypes)."""

    outputs: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    """Of the floating inputs."""
    weight_gradients: dict[str, np.ndarray]


# The subjects


def _function(name: str, *results: str, **options: Any) -> Call:
    def call(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
        return getattr(library, name)(**inputs, **options)

    return call


def _softmaxes() -> list[Subject]:
    inputs = {"scores": "BQK", "valid_lens": "B", "mask": "BQK"}
    weights = {"weights": "BQK"}
    attend = {**inputs, "values": "BKV"}, {"context": "BQV", "weights": "BQK"}
    attention = {"query": "BQD", "key": "BKD", "value": "BKV", "valid_lens": "B", "mask": "BQK"}
    uniform: dict[str, Any] = {"empty_row": "uniform"}
    return [
        Subject("masked_softmax", inputs, weights, _function("masked_softmax")),
        Subject("masked_log_softmax", inputs, weights, _function("masked_log_softmax"), masked=-np.inf),
        Subject("masked_softmax, uniform", inputs, weights, _function("masked_softmax", **uniform), uniform=True),
        Subject("attend", *attend, _function("attend")),
        Subject("attend, uniform", *attend, _function("attend", **uniform), uniform=True),
        Subject("attention", attention, attend[1], _function("attention")),
    ]


def _scores() -> list[Subject]:
    pair, scores = {"queries": "BQD", "keys": "BKD"}, {"scores": "BQK"}
    return [
        Subject("dot_score", pair, scores, _function("dot_score")),
        Subject("scaled_dot_score", pair, scores, _function("scaled_dot_score")),
        Subject("gaussian_score", pair, scores, _function("gaussian_score")),
        Subject("additive_score", {**pair, "w_v": "D"}, scores, _function("additive_score")),
        Subject(
            "bilinear_score", {"queries": "BQD", "keys": "BKE", "weight": "DE"}, scores, _function("bilinear_score")
        ),
    ]


def _call_module(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
    return module(**inputs)


def _attentions() -> list[Subject]:
    queries, keys = SIZES["D"], SIZES["E"]
    sizes = {"query_size": queries, "key_size": keys}
    heads: dict[str, Any] = {"num_hiddens": 4, "num_heads": SIZES["h"]}

    def subject(name: str, title: str = "", key: str = "D", weights: str = "BQK", **options: Any) -> Subject:
        known = sizes if name in ("BilinearAttention", "AdditiveAttention") else {}
        if name == "MultiHeadAttention":
            known = {**sizes, "value_size": SIZES["V"]}
        return Subject(
            title or name,
            {"queries": "BQD", "keys": f"BK{key}", "values": "BKV", "valid_lens": "B", "mask": "BQK"},
            {"context": "BQH" if name == "MultiHeadAttention" else "BQV", "weights": weights},
            _call_module,
            jax_module=lambda dtype: getattr(jax_attn, name)(**options, param_dtype=dtype),
            torch_module=lambda: getattr(torch_ref, name)(**options, **known),
            uniform=options.get("empty_row") == "uniform",
        )

    return [
        subject("DotProductAttention"),
        subject("GaussianAttention"),
        subject("BilinearAttention", key="E"),
        subject("AdditiveAttention", key="E", num_hiddens=5),
        subject("MultiHeadAttention", key="E", weights="BhQK", **heads),
        subject("AdditiveAttention", "AdditiveAttention, uniform", "E", num_hiddens=5, empty_row="uniform"),
    ]


def _recurrences() -> list[Subject]:
    def call(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
        state = (inputs["h"], inputs["c"]) if "c" in inputs else inputs["h"]
        outputs, final = module(inputs["inputs"], inputs["valid_lens"], state)
        return outputs, *(final if isinstance(final, tuple) else (final,))

    def subject(name: str, title: str, layers: int, bidirectional: bool) -> Subject:
        directions = 2 if bidirectional else 1
        parts = ("h", "c") if name == "LSTM" else ("h",)
        options = {"num_layers": layers, "bidirectional": bidirectional}
        return Subject(
            title,
            {"inputs": "BTD", "valid_lens": "B", **dict.fromkeys(parts, "LBH")},
            {"outputs": "BTO", **{f"final {part}": "LBH" for part in parts}},
            call,
            positions="T",
            jax_module=lambda dtype: getattr(jax_attn, name)(SIZES["H"], **options, param_dtype=dtype),
            torch_module=lambda: getattr(torch_ref, name)(SIZES["D"], SIZES["H"], **options),
            sizes={"L": layers * directions, "O": directions * SIZES["H"]},
        )

    return [
        subject("LSTM", "LSTM, both directions", 1, True),
        subject("GRU", "GRU, two layers", 2, False),
    ]


def _encoders() -> list[Subject]:
    def call(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
        outputs, state = module(inputs["tokens"], inputs["valid_lens"])
        return outputs, *(state if isinstance(state, tuple) else (state,))

    options: dict[str, Any] = {"cell": "gru", "bidirectional": True}
    return [
        Subject(
            "Seq2SeqEncoder",
            {"tokens": "BT", "valid_lens": "B"},
            {"outputs": "BTO", "final h": "LBH"},
            call,
            positions="T",
            jax_module=lambda dtype: jax_attn.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], **options, param_dtype=dtype),
            torch_module=lambda: torch_ref.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], **options),
            sizes={"L": 2, "O": 2 * SIZES["H"]},
            wants_batch=("torch_ref",),
        )
    ]


def _losses() -> list[Subject]:
    inputs = {"logits": "BTN", "labels": "BT", "valid_lens": "B", "mask": "BT"}
    return [
        Subject(
            f"masked_cross_entropy, {reduction}",
            inputs,
            {"loss": letters},
            _function("masked_cross_entropy", reduction=reduction, label_smoothing=0.1),
            positions="T",
        )
        for reduction, letters in (("tokens", ""), ("sentences", "B"), ("none", "BT"))
    ]


def _translators() -> list[Subject]:
    """A whole model: its logits over sources with padding, and its loss over targets with padding."""

    def logits(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
        return module(inputs["tokens"], inputs["targets"], inputs["valid_lens"])

    def loss(library: Any, module: Any, inputs: Mapping[str, Any]) -> Any:
        found, _ = module(inputs["tokens"], inputs["targets"], inputs["source_lens"])
        return library.masked_cross_entropy(found, inputs["labels"], inputs["valid_lens"])

    size = SIZES["H"]
    modules: dict[str, Any] = {
        "jax_module": lambda dtype: jax_attn.EncoderDecoder(
            jax_attn.Seq2SeqEncoder(VOCAB, 3, size, param_dtype=dtype),
            jax_attn.Seq2SeqAttentionDecoder(VOCAB, 3, size, param_dtype=dtype),
        ),
        "torch_module": lambda: torch_ref.EncoderDecoder(
            torch_ref.Seq2SeqEncoder(VOCAB, 3, size), torch_ref.Seq2SeqAttentionDecoder(VOCAB, 3, size)
        ),
        "wants_batch": ("jax_attn", "torch_ref"),
    }
    results = {"logits": "BUn", "weights": "BUT"}
    sources = {"tokens": "BT", "valid_lens": "B", "targets": "BU"}
    targets = {"tokens": "BU", "source_lens": "B", "targets": "BT", "labels": "BT", "valid_lens": "B"}
    sizes = {"U": 5, "n": VOCAB}
    return [
        Subject("EncoderDecoder", sources, results, logits, positions="T", sizes=sizes, **modules),
        Subject("EncoderDecoder, loss", targets, {"loss": ""}, loss, positions="T", sizes=sizes, **modules),
    ]


SUBJECTS = {
    subject.name: subject
    for subject in (
        *_softmaxes(),
        *_scores(),
        *_attentions(),
        *_recurrences(),
        *_encoders(),
        *_losses(),
        *_translators(),
    )
}

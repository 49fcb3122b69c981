"""The functions, modules and models of both libraries whose properties are checked.

Every axis of an array has its letter (those of `jax_attn`'s glossary), so that a property can say "delete these keys"
and mean every array that has a K, including gradients and the directions of the differentiation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

import jax_attn
import torch_ref
from parity_tests.case import Case
from parity_tests.jax_side import jax_function, linen_module
from parity_tests.torch_side import torch_function, torch_module

SIZES = {"B": 3, "Q": 2, "D": 4, "E": 6, "V": 3, "H": 4, "N": 6, "h": 2}
VOCAB = 9
"""Ids of tokens; the last stands in padding alone."""

Call = Callable[[Any, Any, Any], Any]
"""(library, module or None, inputs) -> results."""
Letters = Mapping[str, str]
Edit = Callable[[str, np.ndarray, int], np.ndarray]
"""(name, array, position of an axis) -> array."""


@dataclass(frozen=True)
class Subject:
    """A function or a module, and the letters of its arrays' axes."""

    name: str
    inputs: Letters
    """Argument -> letters of its axes. `valid_lens` and `mask` say what counts; without them everything does."""
    results: Letters
    """Result -> letters of its axes, in the order in which `call` returns them."""
    call: Call
    positions: str = "K"
    """The letter of the axis that has padding."""
    jax_module: Callable[[Any], Any] | None = None
    """Parameter dtype -> Flax module."""
    torch_module: Callable[[], Any] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of letters that are not in SIZES, or differ."""
    masked: float = 0.0
    """The value of a result that has an axis of positions where nothing counts."""
    uniform: bool = False
    """Whether an empty row weighs every value."""
    wants_batch: tuple[str, ...] = ()
    """The libraries that need the batch axis."""

    @cached_property
    def case(self) -> Case:
        """The two sides, for the harness."""
        if self.jax_module is None or self.torch_module is None:
            torch_side = torch_function(lambda inputs, _: self.call(torch_ref, None, inputs))
            jax_side = jax_function(lambda inputs, _: self.call(jax_attn, None, inputs))
        else:
            build_jax, build_torch = self.jax_module, self.torch_module
            torch_side = torch_module(lambda *_: build_torch(), lambda m, inputs: self.call(torch_ref, m, inputs))
            jax_side = linen_module(lambda _, dtype: build_jax(dtype), lambda m, inputs: self.call(jax_attn, m, inputs))
        return Case(self.name, (), torch_side, jax_side, tuple(self.results))

    @cached_property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters' shapes, by PyTorch name."""
        if self.torch_module is None:
            return {}
        return {name: tuple(x.shape) for name, x in self.torch_module().named_parameters()}

    @property
    def hides(self) -> bool:
        """Whether some positions may not count."""
        return "valid_lens" in self.inputs

    def letters(self, name: str) -> str:
        return self.inputs[name] if name in self.inputs else self.results[name]

    def shape(self, letters: str, length: int) -> tuple[int, ...]:
        sizes = {**SIZES, **self.sizes, self.positions: length}
        return tuple(sizes[letter] for letter in letters)

    def edit(self, arrays: Mapping[str, np.ndarray], letter: str, edit: Edit) -> dict[str, np.ndarray]:
        """Replace every array that has the axis `letter` by edit(name, array, position of that axis)."""
        return {
            name: edit(name, array, self.letters(name).index(letter)) if letter in self.letters(name) else array
            for name, array in arrays.items()
        }


@dataclass(frozen=True)
class Question:
    """The numbers of one case: floats in float64, which each side rounds to `dtype`."""

    subject: Subject
    inputs: Mapping[str, np.ndarray]
    directions: Mapping[str, np.ndarray]
    """For each result, the fixed direction along which it is differentiated."""
    weights: Mapping[str, np.ndarray]
    """Parameters by PyTorch name."""
    dtype: str = "float64"

    def change(self, letter: str, edit: Edit) -> "Question":
        """Edit every array that has the axis `letter`."""
        inputs, directions = (self.subject.edit(arrays, letter, edit) for arrays in (self.inputs, self.directions))
        return replace(self, inputs=inputs, directions=directions)

    def with_inputs(self, **inputs: np.ndarray) -> "Question":
        return replace(self, inputs={**self.inputs, **inputs})

    @property
    def length(self) -> int:
        """How many positions there are."""
        letter = self.subject.positions
        name = next(name for name, letters in self.subject.inputs.items() if letter in letters)
        return self.inputs[name].shape[self.subject.inputs[name].index(letter)]

    @property
    def counts(self) -> np.ndarray:
        """What lengths and mask allow, `[B, Q, K]` or `[B, T]`: written independently of both libraries."""
        allowed: np.ndarray = np.arange(self.length) < self.inputs["valid_lens"][:, None]
        mask = self.inputs.get("mask")
        if mask is None:
            return allowed
        return mask & (allowed[:, None] if mask.ndim == 3 else allowed)

    def hidden(self, name: str) -> np.ndarray | None:
        """The places of an input that nothing may read, in its shape; None if it has no such places."""
        letters, counts = self.subject.inputs[name], self.counts
        if self.subject.positions not in letters or name in ("valid_lens", "mask"):
            return None
        if "Q" in letters:  # scores
            return ~counts
        if self.subject.uniform and name in ("values", "value"):
            counts = counts | ~counts.any(-1, keepdims=True)
        unseen = ~(counts.any(1) if counts.ndim == 3 else counts)  # [B, positions]
        return np.broadcast_to(unseen.reshape(unseen.shape + (1,) * (len(letters) - 2)), self.inputs[name].shape)


# The subjects


def _function(name: str, inputs: Letters, results: Letters, title: str = "", **more: Any) -> Subject:
    """A function of both libraries; `options` are its keywords."""
    options = more.pop("options", {})
    title = title or name
    return Subject(
        title, inputs, results, lambda library, _, inputs: getattr(library, name)(**inputs, **options), **more
    )


def _functions() -> list[Subject]:
    weights, context = {"weights": "BQK"}, {"context": "BQV", "weights": "BQK"}
    masks = {"valid_lens": "B", "mask": "BQK"}
    scores, attend = {"scores": "BQK", **masks}, {"scores": "BQK", "values": "BKV", **masks}
    attention = {"query": "BQD", "key": "BKD", "value": "BKV", **masks}
    uniform: dict[str, Any] = {"options": {"empty_row": "uniform"}, "uniform": True}
    pair, pairs = {"queries": "BQD", "keys": "BKD"}, {"scores": "BQK"}
    return [
        _function("masked_softmax", scores, weights),
        _function("masked_log_softmax", scores, weights, masked=-np.inf),
        _function("masked_softmax", scores, weights, "masked_softmax, uniform", **uniform),
        _function("attend", attend, context),
        _function("attend", attend, context, "attend, uniform", **uniform),
        _function("attention", attention, context),
        *(_function(name, pair, pairs) for name in ("dot_score", "scaled_dot_score", "gaussian_score")),
        _function("additive_score", {**pair, "w_v": "D"}, pairs),
        _function("bilinear_score", {"queries": "BQD", "keys": "BKE", "weight": "DE"}, pairs),
    ]


def _attention(name: str, title: str = "", key: str = "D", weights: str = "BQK", **options: Any) -> Subject:
    sizes = {"query_size": SIZES["D"], "key_size": SIZES["E"], "value_size": SIZES["V"]}
    taken = {"BilinearAttention": 2, "AdditiveAttention": 2, "MultiHeadAttention": 3}.get(name, 0)
    sizes = dict(list(sizes.items())[:taken])
    return Subject(
        title or name,
        {"queries": "BQD", "keys": f"BK{key}", "values": "BKV", "valid_lens": "B", "mask": "BQK"},
        {"context": "BQH" if name == "MultiHeadAttention" else "BQV", "weights": weights},
        lambda library, module, inputs: module(**inputs),
        jax_module=lambda dtype: getattr(jax_attn, name)(**options, param_dtype=dtype),
        torch_module=lambda: getattr(torch_ref, name)(**options, **sizes),
        uniform=options.get("empty_row") == "uniform",
    )


def _attentions() -> list[Subject]:
    return [
        _attention("DotProductAttention"),
        _attention("GaussianAttention"),
        _attention("BilinearAttention", key="E"),
        _attention("AdditiveAttention", key="E", num_hiddens=5),
        _attention("MultiHeadAttention", key="E", weights="BhQK", num_hiddens=4, num_heads=SIZES["h"]),
        _attention("AdditiveAttention", "AdditiveAttention, uniform", "E", num_hiddens=5, empty_row="uniform"),
    ]


def _flat(outputs: Any, state: Any) -> tuple[Any, ...]:
    return outputs, *(state if isinstance(state, tuple) else (state,))


def _recurrent(name: str, title: str, layers: int, bidirectional: bool) -> Subject:
    def call(library: Any, module: Any, inputs: Any) -> Any:
        state = (inputs["h"], inputs["c"]) if "c" in inputs else inputs["h"]
        return _flat(*module(inputs["inputs"], inputs["valid_lens"], state))

    parts = ("h", "c") if name == "LSTM" else ("h",)
    directions, options = 2 if bidirectional else 1, {"num_layers": layers, "bidirectional": bidirectional}
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


def _encoder() -> Subject:
    options: dict[str, Any] = {"cell": "gru", "bidirectional": True}
    return Subject(
        "Seq2SeqEncoder",
        {"tokens": "BT", "valid_lens": "B"},
        {"outputs": "BTO", "final h": "LBH"},
        lambda library, module, inputs: _flat(*module(inputs["tokens"], inputs["valid_lens"])),
        positions="T",
        jax_module=lambda dtype: jax_attn.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], **options, param_dtype=dtype),
        torch_module=lambda: torch_ref.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], **options),
        sizes={"L": 2, "O": 2 * SIZES["H"]},
        wants_batch=("torch_ref",),
    )


def _losses() -> list[Subject]:
    inputs, name = {"logits": "BTN", "labels": "BT", "valid_lens": "B", "mask": "BT"}, "masked_cross_entropy"
    return [
        _function(name, inputs, {"loss": letters}, f"{name}, {reduction}", positions="T", options=options)
        for reduction, letters in (("tokens", ""), ("sentences", "B"), ("none", "BT"))
        for options in [{"reduction": reduction, "label_smoothing": 0.1}]
    ]


def _translators() -> list[Subject]:
    """A whole model: its logits over sources with padding, and its loss over targets with padding."""

    def logits(library: Any, module: Any, inputs: Any) -> Any:
        return module(inputs["tokens"], inputs["targets"], inputs["valid_lens"])

    def loss(library: Any, module: Any, inputs: Any) -> Any:
        found, _ = module(inputs["tokens"], inputs["targets"], inputs["source_lens"])
        return library.masked_cross_entropy(found, inputs["labels"], inputs["valid_lens"])

    def build(library: Any, **options: Any) -> Any:
        sizes = (VOCAB, 3, SIZES["H"])
        parts = library.Seq2SeqEncoder(*sizes, **options), library.Seq2SeqAttentionDecoder(*sizes, **options)
        return library.EncoderDecoder(*parts)

    more: dict[str, Any] = {
        "positions": "T",
        "jax_module": lambda dtype: build(jax_attn, param_dtype=dtype),
        "torch_module": lambda: build(torch_ref),
        "wants_batch": ("jax_attn", "torch_ref"),
        "sizes": {"U": 5, "n": VOCAB},
    }
    sources = {"tokens": "BT", "valid_lens": "B", "targets": "BU"}
    targets = {"tokens": "BU", "source_lens": "B", "targets": "BT", "labels": "BT", "valid_lens": "B"}
    return [
        Subject("EncoderDecoder", sources, {"logits": "BUn", "weights": "BUT"}, logits, **more),
        Subject("EncoderDecoder, loss", targets, {"loss": ""}, loss, **more),
    ]


_RECURRENT = (("LSTM", "LSTM, both directions", 1, True), ("GRU", "GRU, two layers", 2, False))
_ALL = [
    *_functions(),
    *_attentions(),
    *(_recurrent(*row) for row in _RECURRENT),
    _encoder(),
    *_losses(),
    *_translators(),
]
SUBJECTS = {subject.name: subject for subject in _ALL}

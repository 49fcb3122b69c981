"""The functions, modules and models whose properties are checked, and how they run.

Every axis of an array has a letter (those of `jax_attn`'s glossary). So a property can say "delete these keys" and mean
every array that has an axis K, including gradients and the directions of the differentiation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

import jax_attn
from parity_tests.your_port.measure.jax_side import Applied, Transform
from parity_tests.your_port.measure.width import enable_x64

SIZES = {"B": 3, "Q": 2, "D": 4, "E": 6, "V": 3, "H": 4, "N": 6, "h": 2}
LONG, SHORT = 5, 3
"""Numbers of positions: only two, so that few compiled programs serve many cases."""
VOCAB = 9
"""Ids of tokens; the last occurs in padding only."""

DISCRETE = ("tokens", "targets", "labels", "valid_lens", "source_lens")
"""The inputs that are ids or lengths."""

Letters = Mapping[str, str]
Arrays = Mapping[str, np.ndarray]
Edit = Callable[[str, np.ndarray, int], np.ndarray]
"""(name, array, position of an axis) -> array."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A function or a module, and the letters of its arrays' axes."""

    name: str
    inputs: Letters
    """By argument. `valid_lens` and `mask` say which positions count; without them all do."""
    results: Letters
    """In the order in which `call` returns them."""
    call: Callable[[Any, Any], Any]
    """(module or None, inputs) -> results."""
    positions: str = "K"
    """The letter of the axis that has padding."""
    module: nn.Module | None = None
    """None for a function."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of letters that are not in SIZES, or differ."""
    masked: float = 0.0
    """The value of a result at positions that do not count."""

    @cached_property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters' shapes, by path."""
        if self.module is None:
            return {}
        dtypes = {"mask": bool, **dict.fromkeys(DISCRETE, np.int32)}
        inputs = {name: np.ones(self.shape(x, LONG), dtypes.get(name, np.float32)) for name, x in self.inputs.items()}
        init = partial(self.module.init, jax.random.key(0), method=self.call)
        params = jax.eval_shape(init, jax.device_put(inputs)).get("params", {})
        return {name: leaf.shape for name, leaf in flatten_dict(params, sep=".").items()}

    @property
    def hides(self) -> bool:
        """Whether some positions may not count."""
        return "valid_lens" in self.inputs

    def letters(self, name: str) -> str:
        """The axes of an input, a result or a gradient; none for parameters."""
        return {**self.results, **self.inputs}.get(name.removeprefix("gradient of "), "")

    def shape(self, letters: str, length: int) -> tuple[int, ...]:
        sizes = {**SIZES, **self.sizes, self.positions: length}
        return tuple(sizes[letter] for letter in letters)

    def edit(self, arrays: Arrays, letter: str, edit: Edit) -> dict[str, np.ndarray]:
        """Replace every array that has the axis `letter` by edit(name, array, position of that axis)."""
        found = {name: self.letters(name).find(letter) for name in arrays}
        return {name: x if found[name] < 0 else edit(name, x, found[name]) for name, x in arrays.items()}


@dataclass(frozen=True)
class Sample:
    """The numbers of one case: floats in float64, which are rounded to `dtype` where they run."""

    subject: Subject
    inputs: Arrays
    directions: Arrays
    """For each result, the fixed direction along which it is differentiated."""
    weights: Arrays
    """Parameters by path."""
    dtype: str = "float64"

    def run(self, transform: Transform = jax.jit) -> dict[str, np.ndarray]:
        """Compute the results and `gradient of` each input and weight, as float64."""
        with enable_x64(self.dtype == "float64"):
            moved = {name: x.astype(self.dtype) for name, x in self.inputs.items() if x.dtype.kind == "f"}
            fixed = {name: x for name, x in self.inputs.items() if name not in moved}
            weights, directions = (
                {name: x.astype(self.dtype) for name, x in arrays.items()} for arrays in (self.weights, self.directions)
            )
            found = program_of(self.subject, transform)(*jax.device_put((weights, moved, fixed, directions)))
            return {name: np.asarray(x, np.float64) for name, x in found.items()}

    def edit(self, letter: str, edit: Edit) -> "Sample":
        """Edit every input and direction that has the axis `letter`."""
        inputs, directions = (self.subject.edit(arrays, letter, edit) for arrays in (self.inputs, self.directions))
        return replace(self, inputs=inputs, directions=directions)

    def with_inputs(self, **inputs: np.ndarray) -> "Sample":
        return replace(self, inputs={**self.inputs, **inputs})

    @property
    def length(self) -> int:
        """The number of positions."""
        name = next(name for name, letters in self.subject.inputs.items() if self.subject.positions in letters)
        return self.inputs[name].shape[self.subject.letters(name).index(self.subject.positions)]

    @property
    def counts(self) -> np.ndarray:
        """What lengths and mask allow, `[B, Q, K]` or `[B, T]`: written independently of the library."""
        allowed: np.ndarray = np.arange(self.length) < self.inputs["valid_lens"][:, None]
        mask = self.inputs.get("mask")
        if mask is None:
            return allowed
        return mask & (allowed[:, None] if mask.ndim == 3 else allowed)

    def hidden(self, name: str) -> np.ndarray | None:
        """The places of an input that nothing may read, in its shape; None if it has no such places."""
        letters, counts = self.subject.letters(name), self.counts
        if self.subject.positions not in letters or name in ("valid_lens", "mask"):
            return None
        if "Q" in letters:  # scores
            return ~counts
        unseen = ~(counts.any(1) if counts.ndim == 3 else counts)  # [B, positions]
        return np.broadcast_to(unseen.reshape(unseen.shape + (1,) * (len(letters) - 2)), self.inputs[name].shape)


@cache
def program_of(subject: Subject, transform: Transform) -> Callable[..., dict[str, Any]]:
    """Make the program (weights, floating inputs, other inputs, directions) -> results and gradients, by name."""

    def program(weights: Any, moved: Any, fixed: Any, directions: Any) -> dict[str, Any]:
        def compute(weights: Any, moved: Any) -> Any:
            module = subject.module and Applied(subject.module, {"params": unflatten_dict(weights, sep=".")})
            results = subject.call(module, {**moved, **fixed})
            return dict(zip(subject.results, results if isinstance(results, tuple) else (results,), strict=True))

        results, pull_back = jax.vjp(compute, weights, moved)
        gradients = pull_back({name: x.astype(results[name].dtype) for name, x in directions.items()})
        return {**results, **{f"gradient of {name}": x for part in gradients for name, x in part.items()}}

    return transform(program)


@cache
def over_examples(subject: Subject) -> Transform:
    """Map the program for one example over the batch; what examples share has a gradient for each of them."""

    def axes(names: Any, shared: int | None = None) -> dict[str, int | None]:
        letters = {name: subject.letters(name) for name in names}
        return {name: found.index("B") if "B" in found else shared for name, found in letters.items()}

    def transform(program: Callable[..., Any]) -> Callable[..., Any]:
        def run(weights: Any, moved: Any, fixed: Any, directions: Any) -> Any:
            gradients = [f"gradient of {name}" for name in (*weights, *moved)]
            out_axes = axes([*directions, *gradients], shared=0)
            return jax.vmap(program, (None, axes(moved), axes(fixed), axes(directions)), out_axes)(
                weights, moved, fixed, directions
            )

        return jax.jit(run)

    return transform


# The subjects


def _function(name: str, inputs: Letters, results: Letters, title: str = "", **more: Any) -> Subject:
    """Make the subject of a function; `options` are its keywords."""
    options = more.pop("options", {})
    call = lambda _, inputs: getattr(jax_attn, name)(**inputs, **options)  # noqa: E731
    return Subject(f"{name}{title}", inputs, results, call, **more)


def _functions() -> list[Subject]:
    weights, context = {"weights": "BQK"}, {"context": "BQV", "weights": "BQK"}
    masks = {"valid_lens": "B", "mask": "BQK"}
    scores, attend = {"scores": "BQK", **masks}, {"scores": "BQK", "values": "BKV", **masks}
    pair, pairs = {"queries": "BQD", "keys": "BKD"}, {"scores": "BQK"}
    return [
        _function("masked_softmax", scores, weights),
        _function("masked_log_softmax", scores, weights, masked=-np.inf),
        _function("attend", attend, context),
        _function("attention", {"query": "BQD", "key": "BKD", "value": "BKV", **masks}, context),
        *(_function(name, pair, pairs) for name in ("dot_score", "scaled_dot_score", "gaussian_score")),
        _function("additive_score", {**pair, "w_v": "D"}, pairs),
        _function("bilinear_score", {"queries": "BQD", "keys": "BKE", "weight": "DE"}, pairs),
    ]


def _attention(name: str, key: str = "D", **options: Any) -> Subject:
    heads = name == "MultiHeadAttention"
    return Subject(
        name,
        {"queries": "BQD", "keys": f"BK{key}", "values": "BKV", "valid_lens": "B", "mask": "BQK"},
        {"context": "BQH" if heads else "BQV", "weights": "BhQK" if heads else "BQK"},
        lambda module, inputs: module(**inputs),
        module=getattr(jax_attn, name)(**options),
    )


def _attentions() -> list[Subject]:
    return [
        _attention("DotProductAttention"),
        _attention("GaussianAttention"),
        _attention("BilinearAttention", "E"),
        _attention("AdditiveAttention", "E", num_hiddens=5),
        _attention("MultiHeadAttention", "E", num_hiddens=4, num_heads=SIZES["h"]),
    ]


def _flat(outputs: Any, state: Any) -> tuple[Any, ...]:
    return outputs, *(state if isinstance(state, tuple) else (state,))


def _recurrent(name: str, title: str, layers: int, directions: int) -> Subject:
    parts = ("h", "c") if name == "LSTM" else ("h",)
    options = {"num_hiddens": SIZES["H"], "num_layers": layers, "bidirectional": directions == 2}

    def call(module: Any, inputs: Any) -> Any:
        state = (inputs["h"], inputs["c"]) if "c" in inputs else inputs["h"]
        return _flat(*module(inputs["inputs"], inputs["valid_lens"], state))

    return Subject(
        f"{name}, {title}",
        {"inputs": "BTD", "valid_lens": "B", **dict.fromkeys(parts, "LBH")},
        {"outputs": "BTO", **{f"final {part}": "LBH" for part in parts}},
        call,
        "T",
        getattr(jax_attn, name)(**options),
        {"L": layers * directions, "O": directions * SIZES["H"]},
    )


def _encoder() -> Subject:
    def call(module: Any, inputs: Any) -> Any:
        return _flat(*module(inputs["tokens"], inputs["valid_lens"]))

    module = jax_attn.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], cell="gru", bidirectional=True)
    inputs, results = {"tokens": "BT", "valid_lens": "B"}, {"outputs": "BTO", "final h": "LBH"}
    return Subject("Seq2SeqEncoder", inputs, results, call, "T", module, {"L": 2, "O": 2 * SIZES["H"]})


def _loss(reduction: str, letters: str) -> Subject:
    inputs = {"logits": "BTN", "labels": "BT", "valid_lens": "B", "mask": "BT"}
    options = {"reduction": reduction, "label_smoothing": 0.1}
    return _function(
        "masked_cross_entropy", inputs, {"loss": letters}, f", {reduction}", positions="T", options=options
    )


def _translators() -> list[Subject]:
    """A whole model: its logits over sources with padding, and its loss over targets with padding."""

    def logits(module: Any, inputs: Any) -> Any:
        return module(inputs["tokens"], inputs["targets"], inputs["valid_lens"])

    def loss(module: Any, inputs: Any) -> Any:
        found, _ = module(inputs["tokens"], inputs["targets"], inputs["source_lens"])
        return jax_attn.masked_cross_entropy(found, inputs["labels"], inputs["valid_lens"])

    sizes = (VOCAB, 3, SIZES["H"])
    model = jax_attn.EncoderDecoder(jax_attn.Seq2SeqEncoder(*sizes), jax_attn.Seq2SeqAttentionDecoder(*sizes))
    sources = {"tokens": "BT", "valid_lens": "B", "targets": "BU"}
    targets = {"tokens": "BU", "source_lens": "B", "targets": "BT", "labels": "BT", "valid_lens": "B"}
    others = {"U": 5, "n": VOCAB}
    return [
        Subject("EncoderDecoder", sources, {"logits": "BUn", "weights": "BUT"}, logits, "T", model, others),
        Subject("EncoderDecoder, loss", targets, {"loss": ""}, loss, "T", model, others),
    ]


_ALL = [
    *_functions(),
    *_attentions(),
    _recurrent("LSTM", "both directions", 1, 2),
    _recurrent("GRU", "two layers", 2, 1),
    _encoder(),
    *(_loss(*row) for row in (("tokens", ""), ("sentences", "B"), ("none", "BT"))),
    *_translators(),
]
SUBJECTS = {subject.name: subject for subject in _ALL}

"""The functions, modules and models whose properties are checked, and numbers drawn for them.

Every axis of an array has a letter (those of `jax_attn`'s glossary). So a property can say "delete these keys" and mean
every array that has an axis K, including gradients and the directions of the differentiation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import jax
import numpy as np

import jax_attn
import torch_ref
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import Case, Variant
from parity_tests.your_port.measure.jax_side import Transform, jax_function, run_jax
from parity_tests.your_port.measure.numbers import given_numbers, rounded
from parity_tests.your_port.measure.torch_side import run_torch, torch_function, torch_module

SIZES = {"B": 3, "Q": 2, "D": 4, "E": 6, "V": 3, "H": 4, "N": 6, "h": 2}
LONG, SHORT = 5, 3
"""Numbers of positions: only two, so that few compiled programs serve many cases."""
VOCAB = 9
"""Ids of tokens; the last occurs in padding only."""

Side = Literal["jax_attn", "torch_ref"]
Letters = Mapping[str, str]
Arrays = Mapping[str, np.ndarray]
Edit = Callable[[str, np.ndarray, int], np.ndarray]
"""(name, array, position of an axis) -> array."""


@dataclass(frozen=True)
class Subject:
    """A function or a module, and the letters of its arrays' axes."""

    name: str
    inputs: Letters
    """By argument. `valid_lens` and `mask` say which positions count; without them all do."""
    results: Letters
    """In the order in which `call` returns them."""
    call: Callable[[Any, Any, Any], Any]
    """(library, module or None, inputs) -> results."""
    positions: str = "K"
    """The letter of the axis that has padding."""
    build: Callable[..., Any] | None = None
    """library -> module; for JAX with a keyword `param_dtype`. None for a function."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of letters that are not in SIZES, or differ."""
    masked: float = 0.0
    """The value of a result at positions that do not count."""
    uniform: bool = False
    """Whether an empty row weighs all values alike."""

    @cached_property
    def case(self) -> Case:
        """The two sides, for the harness."""

        def call(library: Any, module: Any, inputs: Any) -> tuple[Any, ...]:
            results = self.call(library, module, inputs)
            return results if isinstance(results, tuple) else (results,)

        build, outputs = self.build, tuple(self.results)
        if build is None:
            torch_side = torch_function(lambda inputs, _: call(torch_ref, None, inputs))
            return Case(
                self.name, (), torch_side, jax_function(lambda inputs, _: call(jax_attn, None, inputs)), outputs
            )
        jax_side = linen_module(lambda _, dtype: build(jax_attn, param_dtype=dtype), partial(call, jax_attn))
        return Case(
            self.name, (), torch_module(lambda *_: build(torch_ref), partial(call, torch_ref)), jax_side, outputs
        )

    @cached_property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters' shapes, by PyTorch name."""
        parameters = () if self.build is None else self.build(torch_ref).named_parameters()
        return {name: tuple(x.shape) for name, x in parameters}

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
    """The numbers of one case: floats in float64, which each side rounds to `dtype`."""

    subject: Subject
    inputs: Arrays
    directions: Arrays
    """For each result, the fixed direction along which it is differentiated."""
    weights: Arrays
    """Parameters by PyTorch name."""
    dtype: str = "float64"

    def run(self, side: Side, transform: Transform = jax.jit) -> dict[str, np.ndarray]:
        """Compute the results and `gradient of` each input and weight, as float64; `transform` is for JAX's program."""
        case, variant = self.subject.case, Variant(self.subject.name, self.inputs)
        directions = {name: rounded(x, self.dtype) for name, x in self.directions.items()}
        numbers = given_numbers(case, self.inputs, self.weights, lambda name, _: directions[name], self.dtype)
        if side == "torch_ref":
            run = run_torch(case, variant, numbers, self.dtype)
        else:
            run = run_jax(case, variant, numbers, self.dtype, directions, transform)
        return {name: x.astype(np.float64) for name, x in run.tensors.items() if x is not None}

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
        """What lengths and mask allow, `[B, Q, K]` or `[B, T]`: written independently of both libraries."""
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
        if self.subject.uniform and name in ("values", "value"):
            counts = counts | ~counts.any(-1, keepdims=True)
        unseen = ~(counts.any(1) if counts.ndim == 3 else counts)  # [B, positions]
        return np.broadcast_to(unseen.reshape(unseen.shape + (1,) * (len(letters) - 2)), self.inputs[name].shape)


def draw_sample(
    subject: Subject,
    rng: np.random.Generator,
    dtype: str = "float64",
    length: int = LONG,
    lens: np.ndarray | None = None,
) -> Sample:
    """Draw a case's numbers: ties and zeros among normal ones, lengths from 0, and in half of the cases a mask."""
    scale, special = rng.choice([0.1, 1.0, 3.0]), np.array([0.0, 0.0, *rng.uniform(-1, 1, 2), rng.choice([-1.0, 1.0])])
    lens = rng.integers(0, LONG + 1, SIZES["B"]) if lens is None else lens
    density = rng.choice([0.2, 0.5, 0.8, 1.0, 1.0, 1.0])

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name == "mask":
            return rng.random(shape) < density
        if name in ("tokens", "targets", "labels"):
            return rng.integers(0, SIZES["N"] if name == "labels" else VOCAB - 1, shape).astype(np.int32)
        if name in ("valid_lens", "source_lens"):
            return np.minimum(lens, length).astype(np.int32)
        return np.where(rng.random(shape) < 0.25, rng.choice(special, shape), rng.normal(size=shape)) * scale

    inputs = {name: draw(name, subject.shape(letters, length)) for name, letters in subject.inputs.items()}
    directions = {name: rng.normal(size=subject.shape(letters, length)) for name, letters in subject.results.items()}
    weights = {name: rng.normal(size=shape) * 0.5 for name, shape in subject.weight_shapes.items()}
    return Sample(subject, inputs, directions, weights, dtype)


# The subjects


def _function(name: str, inputs: Letters, results: Letters, title: str = "", **more: Any) -> Subject:
    """A function of both libraries; `options` are its keywords."""
    options = more.pop("options", {})

    def call(library: Any, _: Any, inputs: Any) -> Any:
        return getattr(library, name)(**inputs, **options)

    return Subject(f"{name}{title}", inputs, results, call, **more)


def _functions() -> list[Subject]:
    weights, context = {"weights": "BQK"}, {"context": "BQV", "weights": "BQK"}
    masks = {"valid_lens": "B", "mask": "BQK"}
    scores, attend = {"scores": "BQK", **masks}, {"scores": "BQK", "values": "BKV", **masks}
    uniform: dict[str, Any] = {"title": ", uniform", "options": {"empty_row": "uniform"}, "uniform": True}
    pair, pairs = {"queries": "BQD", "keys": "BKD"}, {"scores": "BQK"}
    return [
        _function("masked_softmax", scores, weights),
        _function("masked_log_softmax", scores, weights, masked=-np.inf),
        _function("masked_softmax", scores, weights, **uniform),
        _function("attend", attend, context),
        _function("attend", attend, context, **uniform),
        _function("attention", {"query": "BQD", "key": "BKD", "value": "BKV", **masks}, context),
        *(_function(name, pair, pairs) for name in ("dot_score", "scaled_dot_score", "gaussian_score")),
        _function("additive_score", {**pair, "w_v": "D"}, pairs),
        _function("bilinear_score", {"queries": "BQD", "keys": "BKE", "weight": "DE"}, pairs),
    ]


def _attention(name: str, key: str = "D", torch_sizes: str = "", **options: Any) -> Subject:
    """`torch_sizes` are the letters of the sizes that PyTorch's module must be given."""
    uniform, heads = options.get("empty_row") == "uniform", name == "MultiHeadAttention"
    sizes = {f"{argument}_size": SIZES[x] for argument, x in zip(("query", "key", "value"), torch_sizes, strict=False)}

    def build(library: Any, **dtype: Any) -> Any:
        return getattr(library, name)(**options, **(sizes if library is torch_ref else dtype))

    return Subject(
        name + ", uniform" * uniform,
        {"queries": "BQD", "keys": f"BK{key}", "values": "BKV", "valid_lens": "B", "mask": "BQK"},
        {"context": "BQH" if heads else "BQV", "weights": "BhQK" if heads else "BQK"},
        lambda library, module, inputs: module(**inputs),
        build=build,
        uniform=uniform,
    )


def _attentions() -> list[Subject]:
    return [
        _attention("DotProductAttention"),
        _attention("GaussianAttention"),
        _attention("BilinearAttention", "E", "DE"),
        _attention("AdditiveAttention", "E", "DE", num_hiddens=5),
        _attention("MultiHeadAttention", "E", "DEV", num_hiddens=4, num_heads=SIZES["h"]),
        _attention("AdditiveAttention", "E", "DE", num_hiddens=5, empty_row="uniform"),
    ]


def _flat(outputs: Any, state: Any) -> tuple[Any, ...]:
    return outputs, *(state if isinstance(state, tuple) else (state,))


def _recurrent(name: str, title: str, layers: int, directions: int) -> Subject:
    parts, options = ("h", "c") if name == "LSTM" else ("h",), {"num_layers": layers, "bidirectional": directions == 2}

    def call(library: Any, module: Any, inputs: Any) -> Any:
        state = (inputs["h"], inputs["c"]) if "c" in inputs else inputs["h"]
        return _flat(*module(inputs["inputs"], inputs["valid_lens"], state))

    def build(library: Any, **dtype: Any) -> Any:
        sizes = (SIZES["D"], SIZES["H"]) if library is torch_ref else (SIZES["H"],)
        return getattr(library, name)(*sizes, **options, **dtype)

    return Subject(
        f"{name}, {title}",
        {"inputs": "BTD", "valid_lens": "B", **dict.fromkeys(parts, "LBH")},
        {"outputs": "BTO", **{f"final {part}": "LBH" for part in parts}},
        call,
        "T",
        build,
        {"L": layers * directions, "O": directions * SIZES["H"]},
    )


def _encoder() -> Subject:
    def build(library: Any, **dtype: Any) -> Any:
        return library.Seq2SeqEncoder(VOCAB, 3, SIZES["H"], cell="gru", bidirectional=True, **dtype)

    def call(library: Any, module: Any, inputs: Any) -> Any:
        return _flat(*module(inputs["tokens"], inputs["valid_lens"]))

    inputs, results = {"tokens": "BT", "valid_lens": "B"}, {"outputs": "BTO", "final h": "LBH"}
    return Subject("Seq2SeqEncoder", inputs, results, call, "T", build, {"L": 2, "O": 2 * SIZES["H"]})


def _loss(reduction: str, letters: str) -> Subject:
    inputs = {"logits": "BTN", "labels": "BT", "valid_lens": "B", "mask": "BT"}
    options = {"reduction": reduction, "label_smoothing": 0.1}
    title = f", {reduction}"
    return _function("masked_cross_entropy", inputs, {"loss": letters}, title, positions="T", options=options)


def _translators() -> list[Subject]:
    """A whole model: its logits over sources with padding, and its loss over targets with padding."""

    def logits(library: Any, module: Any, inputs: Any) -> Any:
        return module(inputs["tokens"], inputs["targets"], inputs["valid_lens"])

    def loss(library: Any, module: Any, inputs: Any) -> Any:
        found, _ = module(inputs["tokens"], inputs["targets"], inputs["source_lens"])
        return library.masked_cross_entropy(found, inputs["labels"], inputs["valid_lens"])

    def build(library: Any, **dtype: Any) -> Any:
        sizes = (VOCAB, 3, SIZES["H"])
        parts = library.Seq2SeqEncoder(*sizes, **dtype), library.Seq2SeqAttentionDecoder(*sizes, **dtype)
        return library.EncoderDecoder(*parts)

    sources = {"tokens": "BT", "valid_lens": "B", "targets": "BU"}
    targets = {"tokens": "BU", "source_lens": "B", "targets": "BT", "labels": "BT", "valid_lens": "B"}
    sizes = {"U": 5, "n": VOCAB}
    return [
        Subject("EncoderDecoder", sources, {"logits": "BUn", "weights": "BUT"}, logits, "T", build, sizes),
        Subject("EncoderDecoder, loss", targets, {"loss": ""}, loss, "T", build, sizes),
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

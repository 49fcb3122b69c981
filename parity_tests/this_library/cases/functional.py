"""The pure functions of jax_attn.functional."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.this_library.cases.masking import COMMON, EXTREME, MORE, RAGGED, Masking, draw_inputs, extreme_scores
from parity_tests.your_port.measure.case import DTYPES, RUN_DTYPE, Case, Variant, random_for
from parity_tests.your_port.measure.jax_side import jax_function
from parity_tests.your_port.measure.torch_side import torch_function


def function_case(name: str, variants: Iterable[Variant], call: Callable[..., Any] | None = None, **more: Any) -> Case:
    """Make a case of two libraries that have the same names: call(library, inputs, options).

    By default the function with the case's name is called, inputs and options by keyword.
    """

    def by_name(library: Any, inputs: Any, options: Any) -> Any:
        return getattr(library, name)(**inputs, **options)

    run = call or by_name
    torch_side = torch_function(lambda inputs, options: run(torch_ref, inputs, options))
    jax_side = jax_function(lambda inputs, options: run(jax_attn, inputs, options))
    return Case(name, tuple(variants), torch_side, jax_side, **more)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


# Masks


def length_masks() -> Iterator[Variant]:
    yield Variant("integers", {"valid_lens": ints(0, 1, 3, 4)}, {"size": 4})
    yield Variant("two axes", {"valid_lens": ints([0, 1], [3, 2])}, {"size": 3})
    yield Variant("floats", {"valid_lens": np.array([0.0, 1.5, 3.0])}, {"size": 4})
    yield Variant("floats larger than bfloat16 can count", {"valid_lens": np.array([256.0, 258.0])}, {"size": 300})
    yield Variant("small integers", {"valid_lens": np.array([100, 127], np.int8)}, {"size": 300})


CAUSAL_MASKS = (
    Variant("square", {}, {"num_queries": 4}),
    Variant("more keys", {}, {"num_queries": 2, "num_keys": 5}),
    Variant("more queries", {}, {"num_queries": 5, "num_keys": 2}),
)


def attention_masks() -> Iterator[Variant]:
    for masking in (*COMMON, *MORE):
        if not masking.nan and not masking.options:
            lens_and_mask = {"valid_lens": masking.valid_lens, "mask": masking.mask}
            yield Variant(masking.name, lens_and_mask, {"shape": masking.shape})


def broadcast_mask(library: Any, inputs: Any, options: Any) -> Any:
    """Either library may leave axes of size 1, so the masks are compared at the scores' full shape."""
    allowed = library.attention_mask(options["shape"], inputs["valid_lens"], inputs["mask"])
    if allowed is None:
        return None
    return (torch if library is torch_ref else jnp).broadcast_to(allowed, options["shape"])


def sequence_masks() -> Iterator[Variant]:
    X = random_for("sequence_mask").normal(size=(3, 4, 2))
    lens = ints(0, 2, 4)
    yield Variant("features", {"X": X, "valid_lens": lens})
    yield Variant("no features", {"X": X[..., 0], "valid_lens": lens}, {"value": -1e6})
    yield Variant("two leading axes", {"X": X[None].repeat(2, 0), "valid_lens": ints([0, 1, 2], [4, 3, 2])})
    yield Variant("NaN past the length", {"X": hide_time(X, lens), "valid_lens": lens})
    yield Variant("integers", {"X": np.arange(12, dtype=np.int32).reshape(3, 4), "valid_lens": lens}, {"value": 7})


def hide_time(X: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """Put NaN past each sequence's length, `[B, T, D]`."""
    return np.where((np.arange(X.shape[1]) < lens[:, None])[..., None], X, np.nan)


# Softmax and attention


def masked_variants(names: tuple[str, ...], maskings: Iterable[Masking], **options: Any) -> Iterator[Variant]:
    """Draw the inputs `names` for each masking."""
    for masking in maskings:
        inputs = draw_inputs(masking, names)
        yield Variant(masking.name, inputs, {**options, **masking.options}, dtypes=masking.dtypes)


def softmaxes(*maskings: Masking) -> Iterator[Variant]:
    yield from masked_variants(("scores",), (*maskings, EXTREME))
    inputs = draw_inputs(RAGGED, ("scores",))
    infinite = np.where(RAGGED.allowed, inputs["scores"], np.inf)
    yield Variant("infinities where masked", {**inputs, "scores": infinite})


def dropped(variant: Variant) -> Variant:
    """Add dropout by a keep-mask to a variant."""
    keep_mask = random_for("dropout").random(RAGGED.shape) < 0.7
    options = {**variant.options, "dropout_rate": 0.3}
    return Variant("dropout", {**variant.inputs, "keep_mask": keep_mask}, options, dtypes=variant.dtypes)


def attends() -> Iterator[Variant]:
    names = ("scores", "values")
    yield from masked_variants(names, (*COMMON, EXTREME))
    yield dropped(next(masked_variants(names, [RAGGED])))


def halve_larger(weights: Any) -> Any:
    """Stand for dropout: any function of the weights, the same in both libraries."""
    return weights * (weights < 0.5) * 2.0


def attention_call(library: Any, inputs: Any, options: Any) -> Any:
    plain = library.attention(**inputs, **options)
    return *plain, *library.attention(**inputs, **options, dropout=halve_larger)


# Scores


def score_pairs(name: str, *, key_features: int = 4, **more: np.ndarray) -> Iterator[Variant]:
    shapes = {
        "several keys": ((3, 2), (3, 5)),
        "a single key": ((3, 2), (3, 1)),
        "no leading axis": ((2,), (5,)),
        "more leading axes": ((2, 3, 2), (2, 3, 5)),
    }
    for shape_name, (query_shape, key_shape) in shapes.items():
        rng = random_for(name, shape_name)
        queries, keys = rng.normal(size=(*query_shape, 4)), rng.normal(size=(*key_shape, key_features))
        yield Variant(shape_name, {"queries": queries, "keys": keys, **more})
        if shape_name == "several keys":
            yield Variant("scaled up", {"queries": queries * 1e2, "keys": keys * 1e2, **more})


def additive_scores() -> Iterator[Variant]:
    w_v = random_for("additive").normal(size=4)
    several, scaled_up, *others = score_pairs("additive_score", w_v=w_v)
    for variant in (several, scaled_up):
        yield variant
        yield Variant(f"{variant.name}, w_v scaled up", {**variant.inputs, "w_v": w_v * 1e4})
    yield from others
    yield Variant("without the tanh", several.inputs, {"use_tanh": False})
    # So many queries and keys that the sum is taken term by term: at three sizes of its arguments.
    rng = random_for("additive_score", "many")
    queries, keys, w_v = (rng.normal(size=shape) for shape in ((2, 17, 21), (2, 40, 21), 21))
    for name, scale in (("many pairs", 1.0), ("many pairs, scaled up", 1e2), ("many pairs, scaled down", 1e-3)):
        yield Variant(name, {"queries": queries * scale, "keys": keys * scale, "w_v": w_v})


def gaussian_scores() -> Iterator[Variant]:
    several, *others = score_pairs("gaussian_score")
    yield from (several, *others)
    yield Variant("narrow", several.inputs, {"sigma": 0.01})
    yield Variant("close to each other, far from 0", {name: x + 1e3 for name, x in several.inputs.items()})


def cosine_scores() -> Iterator[Variant]:
    for variant in score_pairs("cosine_score", temperature=np.array(0.3)):
        yield variant
        if variant.name == "several keys":  # a vector of zeros has no direction
            keys = np.where(np.arange(5)[:, None] == 2, 0.0, variant.inputs["keys"])
            yield Variant("a key of zeros", {**variant.inputs, "keys": keys})


# Attention by blocks

PARAMETERS = {"additive_score": (4,), "bilinear_score": (4, 4)}
"""The shapes of the scores' parameters; the others have none."""


def blockwise_variants() -> Iterator[Variant]:
    """Try some maskings: its own test compares it with the plain form under every one."""
    names = ("queries", "keys", "values")
    yield from masked_variants(names, (RAGGED, COMMON[5], EXTREME), score="dot_score")
    yield from (replace(v, slow=True) for v in masked_variants(names, (COMMON[3], COMMON[7]), score="dot_score"))
    yield dropped(next(masked_variants(names, [RAGGED], score="dot_score")))
    for score in (name for name in jax_attn.functional.scores.__all__ if name != "dot_score"):
        shape = PARAMETERS.get(score)
        parameters = () if shape is None else (random_for("blockwise", score).normal(size=shape),)
        inputs = {**draw_inputs(RAGGED, names, score), "parameters": parameters}
        # The scores are the plain form's, which are compared in every dtype: here one stands for those of 16 bits.
        dtypes = DTYPES if score == "additive_score" else ("float64", "float32")
        yield Variant(score, inputs, {"score": score}, dtypes=dtypes, slow=score != "additive_score")


def blockwise_call(library: Any, inputs: Any, options: Any) -> Any:
    """Attend by blocks of two: five keys make three blocks, the last of them half empty."""
    options = dict(options)
    score = getattr(library, options.pop("score"))
    return library.blockwise_attention(score, **inputs, **options, block_size=2)


def dropouts() -> Iterator[Variant]:
    rng = random_for("dropout")
    x, keep_mask = rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.6
    yield Variant("rate 0.4", {"x": x, "keep_mask": keep_mask}, {"rate": 0.4})
    yield Variant("rate 0", {"x": x, "keep_mask": np.ones((3, 4), bool)}, {"rate": 0.0})
    yield Variant("NaN dropped", {"x": np.where(keep_mask, x, np.nan), "keep_mask": keep_mask}, {"rate": 0.4})


def positions() -> Iterator[Variant]:
    for length, num_features in ((1, 1), (10, 7), (60, 32), (1500, 8)):
        options = {"length": length, "num_features": num_features, "dtype": RUN_DTYPE}
        yield Variant(f"{length} positions, {num_features} features", {}, options)
    for form, num_features in (("halves", 8), ("halves", 7), ("opennmt", 32), ("fairseq", 8)):
        options = {"length": 60, "num_features": num_features, "dtype": RUN_DTYPE, "form": form}
        yield Variant(f"{form}, {num_features} features", {}, options)


# Recurrence


def transpose_for(library: Any, kernel: Any) -> Any:
    """Return a kernel `[H, gates]` as the library expects it: PyTorch's weights are transposed."""
    return kernel.T if library is torch_ref else kernel


def step_call(library: Any, inputs: Any, options: Any) -> Any:
    step = getattr(library, options["step"])
    return step(inputs["carry"], inputs["projected"], transpose_for(library, inputs["kernel"]), inputs["bias"])


def steps(name: str, gates: int) -> Iterator[Variant]:
    def drawn(batch_name: str, *batch: int) -> dict[str, Any]:
        rng = random_for("step", str(gates), batch_name)
        h, c, projected = (rng.normal(size=(*batch, size)) for size in (4, 4, gates * 4))
        weights = {"kernel": rng.normal(size=(4, gates * 4)), "bias": rng.normal(size=gates * 4)}
        return {"carry": (h, c) if gates == 4 else h, "projected": projected, **weights}

    inputs, options = drawn("a batch", 3), {"step": name}
    yield Variant("a batch", inputs, options)
    yield Variant("no bias", {**inputs, "bias": None}, options)
    yield Variant("gates saturated", {**inputs, "projected": inputs["projected"] * 30}, options)
    yield Variant("no leading axis", drawn("no leading axis"), options)
    yield Variant("more leading axes", drawn("more leading axes", 2, 3), options)


def unrolls() -> Iterator[Variant]:
    rng, lens = random_for("unroll"), ints(0, 5, 2)
    for gates, cell in ((4, "lstm"), (3, "gru")):
        parts = tuple(rng.normal(size=(3, 2)) for _ in range(2))
        inputs, kernel = rng.normal(size=(3, 5, gates * 2)), rng.normal(size=(2, gates * 2))
        arrays = {"carry": parts if gates == 4 else parts[0], "inputs": inputs, "valid_lens": None, "kernel": kernel}
        hidden = {**arrays, "inputs": hide_time(inputs, lens), "valid_lens": lens}
        yield Variant(cell, arrays, {"cell": cell})
        yield Variant(f"{cell}, ragged", {**arrays, "valid_lens": lens}, {"cell": cell})
        for reverse in (False, True):
            name = f"{cell}{' in reverse' if reverse else ''}, NaN past the length"
            yield Variant(name, hidden, {"cell": cell, "reverse": reverse})
    shapes = {"carry": (2, 3, 2), "inputs": (2, 3, 4, 6), "kernel": (2, 6)}
    leading = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    yield Variant("more leading axes", {**leading, "valid_lens": ints([4, 0, 1], [2, 3, 4])}, {"cell": "gru"})


def unroll_call(library: Any, inputs: Any, options: Any) -> Any:
    step, kernel = getattr(library, f"{options['cell']}_step"), transpose_for(library, inputs["kernel"])
    arrays = (inputs["carry"], inputs["inputs"], inputs["valid_lens"])
    reverse = options.get("reverse", False)
    return library.unroll(lambda carry, projected: step(carry, projected, kernel), *arrays, reverse=reverse)


# Loss


def losses() -> Iterator[Variant]:
    rng = random_for("loss")
    logits, labels = rng.normal(size=(3, 4, 6)) * 2, rng.integers(0, 6, (3, 4)).astype(np.int32)
    lens, mask = ints(0, 4, 2), rng.random((3, 4)) < 0.6
    plain = {"logits": logits, "labels": labels, "valid_lens": None, "mask": None}
    ragged = {**plain, "valid_lens": lens}
    hidden = {"labels": np.where(np.arange(4) >= lens[:, None], -100, labels), "logits": hide_time(logits, lens)}
    for reduction in ("tokens", "sentences", "none"):
        option = {"reduction": reduction}
        yield Variant(f"{reduction}, everything counts", plain, option)
        yield Variant(f"{reduction}, ragged", ragged, option)
        yield Variant(f"{reduction}, NaN and −100 where masked", {**ragged, **hidden}, option)
    yield Variant("mask and lengths", {**ragged, "mask": mask})
    yield Variant("mask of one sentence for all", {**plain, "mask": mask[:1]})
    yield Variant("smoothed", ragged, {"label_smoothing": 0.1})
    yield Variant("nothing counts", {**plain, "valid_lens": ints(0, 0, 0)})
    yield Variant("logits of ±1e4", {**ragged, "logits": extreme_scores((3, 4, 6))})
    leading = {"logits": np.stack([logits, -logits]), "labels": np.stack([labels, labels[::-1]]), "mask": None}
    leading["valid_lens"] = ints([4, 2, 1], [0, 3, 4])
    yield Variant("more leading axes", leading, {"reduction": "sentences"})


def projected_losses() -> Iterator[Variant]:
    rng = random_for("projected loss")
    labels, lens = rng.integers(0, 6, (3, 4)).astype(np.int32), ints(0, 4, 2)
    shapes = {"features": (3, 4, 5), "kernel": (5, 6), "bias": (6,)}
    plain: dict[str, Any] = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    plain |= {"labels": labels, "weights": rng.uniform(0.1, 1, (3, 4))}
    hidden = np.arange(4) >= lens[:, None]
    ragged = {**plain, "weights": np.where(hidden, 0, plain["weights"])}
    outside = {"labels": np.where(hidden, -100, labels), "features": hide_time(plain["features"], lens)}
    yield Variant("everything counts", plain)
    yield Variant("ragged", ragged)
    yield Variant("three blocks, smoothed", ragged, {"label_smoothing": 0.1, "block": 24})
    yield Variant("NaN and −100 where masked", {**ragged, **outside})
    yield Variant("nothing counts", {**plain, "weights": np.zeros((3, 4))})
    yield Variant("weights below 0", {**plain, "weights": -plain["weights"]})
    yield Variant("logits of ±1e4", {**ragged, "kernel": plain["kernel"] * 5e3})
    yield Variant("one sentence", {**plain, **{name: plain[name][0] for name in ("features", "labels", "weights")}})


def projected_call(library: Any, inputs: Any, options: Any) -> Any:
    """Let JAX make at most `block` logits at once, where that is given."""
    options = dict(options)
    with mock.patch.object(jax_attn.functional.losses, "BLOCK", options.pop("block", 1000)):
        return library.projected_cross_entropy(**inputs, **options)


TANH = "XLA's tanh and logistic are good to 4 ULP, PyTorch's to half of one"
SOFTMAX = "the gradient of a softmax, w (g − Σ w g), is a difference that loses a digit, on either side by chance"
SUMMED = TANH + "; and the kernel's gradient is summed over time in the run's dtype"
WEIGHTED: dict[str, Any] = {"factor": 16, "reason": SOFTMAX}
BFLOAT16 = ("bfloat16",)
AXES = (MORE[4], MORE[5], MORE[7])  # causal, more leading axes, none
QKV = ("query", "key", "value")
DROPPED = ("context", "weights", "context after dropout", "weights after dropout")
BILINEAR = random_for("bilinear").normal(size=(4, 6))

FUNCTIONAL_CASES = (
    function_case("length_mask", length_masks()),
    function_case("causal_mask", CAUSAL_MASKS),
    function_case("attention_mask", attention_masks(), broadcast_mask),
    function_case("sequence_mask", sequence_masks()),
    function_case("masked_softmax", softmaxes(*COMMON, *MORE)),
    function_case("masked_log_softmax", softmaxes(*COMMON)),
    function_case("dot_score", score_pairs("dot_score")),
    function_case("scaled_dot_score", score_pairs("scaled_dot_score")),
    function_case("bilinear_score", score_pairs("bilinear_score", key_features=6, weight=BILINEAR)),
    function_case("additive_score", additive_scores(), factor=16, reason=TANH),
    function_case("cosine_score", cosine_scores()),
    function_case("gaussian_score", gaussian_scores()),
    function_case("attend", attends(), outputs=DROPPED[:2], **WEIGHTED),
    function_case(
        "attention", masked_variants(QKV, (*COMMON, *AXES, EXTREME)), attention_call, outputs=DROPPED, **WEIGHTED
    ),
    function_case(
        "blockwise_attention", blockwise_variants(), blockwise_call, factor=16, reason=f"{SOFTMAX}; and {TANH}"
    ),
    function_case("dropout", dropouts()),
    function_case("sinusoidal_positions", positions()),
    function_case("lstm_step", steps("lstm_step", 4), step_call, outputs=("carry", "output")),
    function_case("gru_step", steps("gru_step", 3), step_call, outputs=("carry", "output")),
    function_case(
        "unroll", unrolls(), unroll_call, outputs=("carry", "outputs"), factor=16, reason=SUMMED, slow_dtypes=BFLOAT16
    ),
    function_case("masked_cross_entropy", losses()),
    function_case("projected_cross_entropy", projected_losses(), projected_call, outputs=("total", "losses")),
)

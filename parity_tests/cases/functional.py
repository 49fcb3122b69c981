"""The pure functions of jax_attn.functional."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.case import DTYPES, RUN_DTYPE, Case, Variant, random_for
from parity_tests.cases.masking import COMMON, EXTREME, MORE, Masking, hide
from parity_tests.jax_side import jax_function
from parity_tests.torch_side import torch_function


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
            yield Variant(masking.name, masking.arguments(), {"shape": masking.shape})


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


def extreme_scores(shape: tuple[int, ...], *seed: str) -> np.ndarray:
    """±1e4, some of them within a few units of each other."""
    rng = random_for("extreme", *seed)
    return 1e4 * np.sign(rng.normal(size=shape)) + rng.normal(size=shape)


def extreme_pair(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys with products of ±1e4 and a few units: the first feature gives the one, the others the rest."""
    queries, keys = queries.copy(), keys.copy()
    queries[..., 0] = 1e4
    keys[..., 0] = np.sign(keys[..., 0])
    return queries, keys


def masked_variants(
    maskings: Iterable[Masking], draw: Callable[[Masking], dict[str, np.ndarray]], **options: Any
) -> Iterator[Variant]:
    """A variant for each masking: `draw` gives its arrays, which are hidden where nothing attends."""
    for masking in maskings:
        inputs = {**hide_arrays(draw(masking), masking), **masking.arguments()}
        yield Variant(masking.name, inputs, {**options, **masking.options}, dtypes=masking.dtypes)


def hide_arrays(arrays: dict[str, np.ndarray], masking: Masking) -> dict[str, np.ndarray]:
    """Put NaN where nothing attends, by the meaning of each argument."""
    visible = {
        "scores": masking.allowed,
        **dict.fromkeys(("key", "keys"), masking.attendable[..., None]),
        **dict.fromkeys(("value", "values"), masking.attended[..., None]),
    }
    return {name: hide(array, visible[name], masking) if name in visible else array for name, array in arrays.items()}


def softmaxes() -> Iterator[Variant]:
    def draw(masking: Masking) -> dict[str, np.ndarray]:
        if masking is EXTREME:
            return {"scores": extreme_scores(masking.shape)}
        return {"scores": random_for("scores", masking.name).normal(size=masking.shape) * 2}

    yield from masked_variants((*COMMON, *MORE, EXTREME), draw)
    hidden = COMMON[1]._replace(name="infinities where masked")
    scores = np.where(hidden.allowed, random_for("infinite").normal(size=hidden.shape), np.inf)
    yield Variant(hidden.name, {"scores": scores, **hidden.arguments()})


def attends() -> Iterator[Variant]:
    def draw(masking: Masking) -> dict[str, np.ndarray]:
        rng, shape = random_for("attend", masking.name), masking.shape
        scores = extreme_scores(shape) if masking is EXTREME else rng.normal(size=shape) * 2
        return {"scores": scores, "values": rng.normal(size=(*shape[:-2], shape[-1], 4))}

    yield from masked_variants((*COMMON, *MORE, EXTREME), draw)
    rng = random_for("attend", "dropout")
    inputs = {"scores": rng.normal(size=(3, 2, 5)), "values": rng.normal(size=(3, 5, 4)), **COMMON[1].arguments()}
    yield Variant("dropout", {**inputs, "keep_mask": rng.random((3, 2, 5)) < 0.7}, {"dropout_rate": 0.3})


def draw_triple(masking: Masking, names: Iterable[str], *seed: str) -> dict[str, np.ndarray]:
    """Queries, keys and values under the given names."""
    rng = random_for(*seed)
    *batch, num_queries, num_keys = masking.shape
    query, key = rng.normal(size=(*batch, num_queries, 4)), rng.normal(size=(*batch, num_keys, 4))
    if masking is EXTREME:
        query, key = extreme_pair(query, key)
    return dict(zip(names, (query, key, rng.normal(size=(*batch, num_keys, 3))), strict=True))


def attentions() -> Iterator[Variant]:
    names = ("query", "key", "value")
    maskings = (*COMMON, *MORE, EXTREME)
    return masked_variants(maskings, lambda masking: draw_triple(masking, names, "attention", masking.name))


def halve_larger(weights: Any) -> Any:
    """A stand-in for dropout: any function of the weights, the same in both libraries."""
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
    for variant in score_pairs("additive_score", w_v=w_v):
        yield variant
        if variant.name in ("several keys", "scaled up"):
            yield Variant(f"{variant.name}, w_v scaled up", {**variant.inputs, "w_v": w_v * 1e4})
    yield Variant("without the tanh", next(score_pairs("additive_score", w_v=w_v)).inputs, {"use_tanh": False})
    # So many queries and keys that the sum is taken term by term: at three sizes of its arguments.
    rng = random_for("additive_score", "many")
    queries, keys, w_v = (rng.normal(size=shape) for shape in ((2, 17, 21), (2, 40, 21), 21))
    for name, scale in (("many pairs", 1.0), ("many pairs, scaled up", 1e2), ("many pairs, scaled down", 1e-3)):
        yield Variant(name, {"queries": queries * scale, "keys": keys * scale, "w_v": w_v})


def gaussian_scores() -> Iterator[Variant]:
    yield from score_pairs("gaussian_score")
    inputs = next(score_pairs("gaussian_score")).inputs
    yield Variant("narrow", inputs, {"sigma": 0.01})
    yield Variant("close to each other, far from 0", {name: x + 1e3 for name, x in inputs.items()})


# Attention by blocks


def blockwise_variants() -> Iterator[Variant]:
    """Its own test holds it to the plain form under every masking; here are those that all attentions run on."""

    def draw(masking: Masking, *seed: str) -> dict[str, Any]:
        return draw_triple(masking, ("queries", "keys", "values"), "blockwise", masking.name, *seed)

    yield from masked_variants((*COMMON, EXTREME), lambda masking: draw(masking, "dot_score"), score="dot_score")
    lengths, rng = COMMON[1], random_for("blockwise", "parameters")
    parameters = {"additive_score": (rng.normal(size=4),), "bilinear_score": (rng.normal(size=(4, 4)),)}
    for score in ("additive_score", "bilinear_score", "scaled_dot_score", "gaussian_score"):
        inputs = {**draw(lengths, score), **lengths.arguments(), "parameters": parameters.get(score, ())}
        # The scores are the plain form's, which are compared in every dtype: here one stands for those of 16 bits.
        dtypes = DTYPES if score == "additive_score" else ("float64", "float32")
        yield Variant(score, inputs, {"score": score}, dtypes=dtypes)
    inputs = {**draw(lengths, "dot_score", "dropout"), **lengths.arguments(), "keep_mask": rng.random((3, 2, 5)) < 0.7}
    yield Variant("dropout", inputs, {"score": "dot_score", "dropout_rate": 0.3})


def blockwise_call(library: Any, inputs: Any, options: Any) -> Any:
    """By blocks of two: five keys make three blocks, the last of them half empty."""
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


# Recurrence


def transpose_for(library: Any, kernel: Any) -> Any:
    """A kernel `[H, gates]` as the library expects it: PyTorch's weights are transposed."""
    return kernel.T if library is torch_ref else kernel


def step_call(library: Any, inputs: Any, options: Any) -> Any:
    step = getattr(library, options["step"])
    return step(inputs["carry"], inputs["projected"], transpose_for(library, inputs["kernel"]), inputs["bias"])


def steps(name: str, gates: int) -> Iterator[Variant]:
    options = {"step": name}
    for batch_name, batch in (("a batch", (3,)), ("no leading axis", ()), ("more leading axes", (2, 3))):
        rng = random_for("step", str(gates), batch_name)
        parts = tuple(rng.normal(size=(*batch, 4)) for _ in range(2))
        inputs = {
            "carry": parts if gates == 4 else parts[0],
            "projected": rng.normal(size=(*batch, gates * 4)),
            "kernel": rng.normal(size=(4, gates * 4)),
            "bias": rng.normal(size=gates * 4),
        }
        yield Variant(batch_name, inputs, options)
        if batch == (3,):
            yield Variant("no bias", {**inputs, "bias": None}, options)
            yield Variant("gates saturated", {**inputs, "projected": inputs["projected"] * 30}, options)


def unrolls() -> Iterator[Variant]:
    rng = random_for("unroll")
    for gates, cell in ((4, "lstm"), (3, "gru")):
        parts = tuple(rng.normal(size=(3, 2)) for _ in range(2))
        inputs = {
            "carry": parts if gates == 4 else parts[0],
            "inputs": rng.normal(size=(3, 5, gates * 2)),
            "valid_lens": None,
            "kernel": rng.normal(size=(2, gates * 2)),
        }
        yield Variant(f"{cell}", inputs, {"cell": cell})
        lens = ints(0, 5, 2)
        for reverse in (False, True):
            options, direction = {"cell": cell, "reverse": reverse}, "in reverse" if reverse else "forward"
            yield Variant(f"{cell} {direction}, ragged", {**inputs, "valid_lens": lens}, options)
            hidden = {**inputs, "inputs": hide_time(np.asarray(inputs["inputs"]), lens), "valid_lens": lens}
            yield Variant(f"{cell} {direction}, NaN past the length", hidden, options)
    leading = {
        "carry": rng.normal(size=(2, 3, 2)),
        "inputs": rng.normal(size=(2, 3, 4, 6)),
        "valid_lens": ints([4, 0, 1], [2, 3, 4]),
        "kernel": rng.normal(size=(2, 6)),
    }
    yield Variant("more leading axes", leading, {"cell": "gru"})


def unroll_call(library: Any, inputs: Any, options: Any) -> Any:
    step, kernel = getattr(library, f"{options['cell']}_step"), transpose_for(library, inputs["kernel"])
    arrays = (inputs["carry"], inputs["inputs"], inputs["valid_lens"])
    reverse = options.get("reverse", False)
    return library.unroll(lambda carry, projected: step(carry, projected, kernel), *arrays, reverse=reverse)


def reversals() -> Iterator[Variant]:
    X = random_for("reverse_sequence").normal(size=(3, 4, 2))
    yield Variant("all of it", {"inputs": X, "valid_lens": None})
    yield Variant("ragged", {"inputs": X, "valid_lens": ints(0, 3, 4)})
    yield Variant("more leading axes", {"inputs": X[None].repeat(2, 0), "valid_lens": ints([0, 1, 2], [4, 3, 2])})


# Loss


def losses() -> Iterator[Variant]:
    rng = random_for("loss")
    logits, labels = rng.normal(size=(3, 4, 6)) * 2, rng.integers(0, 6, (3, 4)).astype(np.int32)
    lens = ints(0, 4, 2)
    mask = rng.random((3, 4)) < 0.6
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
    hidden = np.arange(4) >= lens[:, None]
    plain: dict[str, Any] = {
        "features": rng.normal(size=(3, 4, 5)),
        "kernel": rng.normal(size=(5, 6)),
        "bias": rng.normal(size=6),
        "labels": labels,
        "weights": rng.uniform(0.1, 1, (3, 4)),
    }
    ragged = {**plain, "weights": np.where(hidden, 0, plain["weights"])}
    yield Variant("everything counts", plain)
    yield Variant("ragged", ragged)
    yield Variant("smoothed", ragged, {"label_smoothing": 0.1})
    outside = {"labels": np.where(hidden, -100, labels), "features": hide_time(plain["features"], lens)}
    yield Variant("NaN and −100 where masked", {**ragged, **outside})
    yield Variant("nothing counts", {**plain, "weights": np.zeros((3, 4))})
    yield Variant("weights below 0", {**plain, "weights": -plain["weights"]})
    yield Variant("logits of ±1e4", {**ragged, "kernel": plain["kernel"] * 5e3})
    yield Variant("one sentence", {**plain, **{name: plain[name][0] for name in ("features", "labels", "weights")}})


TANH = "XLA's tanh and logistic are good to 4 ULP, PyTorch's to half of one"
SOFTMAX = "the gradient of a softmax, w (g − Σ w g), is a difference that loses a digit, on either side by chance"
SUMMED = TANH + "; and the kernel's gradient is summed over time in the run's dtype"
WEIGHTED: dict[str, Any] = {"factor": 16, "reason": SOFTMAX}
DROPPED = ("context", "weights", "context after dropout", "weights after dropout")
STEPPED = ("carry", "output")
BILINEAR = random_for("bilinear").normal(size=(4, 6))

FUNCTIONAL_CASES = (
    function_case("length_mask", length_masks()),
    function_case("causal_mask", CAUSAL_MASKS),
    function_case("attention_mask", attention_masks(), broadcast_mask),
    function_case("sequence_mask", sequence_masks()),
    function_case("masked_softmax", softmaxes()),
    function_case("masked_log_softmax", softmaxes()),
    function_case("dot_score", score_pairs("dot_score")),
    function_case("scaled_dot_score", score_pairs("scaled_dot_score")),
    function_case("bilinear_score", score_pairs("bilinear_score", key_features=6, weight=BILINEAR)),
    function_case("additive_score", additive_scores(), factor=16, reason=TANH),
    function_case("gaussian_score", gaussian_scores()),
    function_case("attend", attends(), outputs=DROPPED[:2], **WEIGHTED),
    function_case("attention", attentions(), attention_call, outputs=DROPPED, **WEIGHTED),
    function_case(
        "blockwise_attention", blockwise_variants(), blockwise_call, factor=16, reason=f"{SOFTMAX}; and {TANH}"
    ),
    function_case("dropout", dropouts()),
    function_case("sinusoidal_positions", positions()),
    function_case("lstm_step", steps("lstm_step", 4), step_call, outputs=STEPPED),
    function_case("gru_step", steps("gru_step", 3), step_call, outputs=STEPPED),
    function_case(
        "unroll",
        unrolls(),
        unroll_call,
        outputs=("carry", "outputs"),
        factor=16,
        reason=SUMMED,
        slow_dtypes=("bfloat16",),
    ),
    function_case("reverse_sequence", reversals()),
    function_case("masked_cross_entropy", losses()),
    function_case("projected_cross_entropy", projected_losses(), outputs=("total", "losses")),
)

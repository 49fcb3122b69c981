"""The registry: which workloads are timed, in which implementations, and which ratios are reported."""

from collections.abc import Callable
from typing import Any

from parity_tests.speed import jax_side, limits, torch_side, tuned
from parity_tests.speed.inputs import BEAM, SENTENCES, W1, W2, J, Translator, draw_training
from parity_tests.speed.records import OURS, Agreement, Implementation, Program, Ratio, Workload

WITHOUT = "without attention"
"""Our model with the same widths, where every context is the encoder's final state."""

TUNED = ("tuned", "compiled")
"""Plain PyTorch at its best, without and with torch.compile. A ratio takes the faster one."""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
"""Make glibc keep freed memory. Otherwise PyTorch's large tensors are unmapped and zeroed again at every step."""


def _jax(name: str, function: Callable[..., Any], **settings: Any) -> Implementation:
    return Implementation(name, jax_side.attention, {"function": function, **settings})


def _torch(name: str, function: Callable[..., Any], compiled: bool = False, **settings: Any) -> Implementation:
    settings = {"function": function, "compiled": compiled, **settings}
    return Implementation(name, torch_side.attention, settings, needs_compiler=compiled)


def _tuned(build: Callable[..., Program], units: int, **settings: Any) -> tuple[Implementation, ...]:
    return tuple(
        Implementation(name, build, {**settings, "compiled": compiled}, units, compiled, KEEP_MEMORY)
        for name, compiled in zip(TUNED, (False, True), strict=True)
    )


def _additive(direction: str) -> Workload:
    """Additive scores with B = 8, Q = K = 512, H = 128.

    Limit: one tanh for each of the B·Q·K·H terms, and as many again for the gradient, which must not store them. Code
    that computes the sum without tanh can exceed it.
    """
    settings: dict[str, Any] = {"arguments": "additive", "backward": direction == "backward"}
    terms = 8 * 512 * 512 * 128
    return Workload(
        f"additive_{direction}",
        "call",
        (
            _jax(OURS, jax_side.case_function("additive_score"), **settings),
            _torch("reference", torch_side.case_function("additive_score"), **settings),
            _torch("compiled", tuned.additive_score_to_compile, compiled=True, **settings),
            _jax("naive jnp", jax_side.naive_additive, **settings),
        ),
        Agreement(1e-4, why="the gradient of w_v is a sum of two million terms; PyTorch's is 4e-5 from float64's"),
        {"tanh": terms * (2 if direction == "backward" else 1)},
        rounds=5,
    )


def _dot(direction: str) -> Workload:
    """Scaled dot-product attention with B = 8, 8 heads, L = 1024, D = 64.

    Limit: two products forward and five more backward (the scores again, and the gradients of the weights, queries,
    keys and values).
    """
    settings: dict[str, Any] = {"arguments": "dot product", "backward": direction == "backward"}
    sdpa = "DotProductAttention (F.scaled_dot_product_attention)"
    jax_nn = "DotProductAttention (jax.nn.dot_product_attention)"
    return Workload(
        f"dot_{direction}",
        "call",
        (
            _jax(OURS, jax_side.case_function(sdpa), **settings),
            _torch("reference", torch_side.case_function(jax_nn), **settings),
            _torch("SDPA", torch_side.case_function(sdpa), **settings),
            _jax("jax.nn", jax_side.case_function(jax_nn), **settings),
        ),
        Agreement(2e-5),
        {"gemm": 2 * 8 * 8 * 1024 * 1024 * 64 * (7 if direction == "backward" else 2)},
        rounds=5,
    )


def _masked_softmax() -> Workload:
    """Scores (8, 512, 512) with one length for each example. Limit: each number is read once and written once."""
    settings: dict[str, Any] = {"arguments": "softmax"}
    return Workload(
        "masked_softmax",
        "call",
        (
            _jax(OURS, jax_side.case_function("masked_softmax"), **settings),
            _torch("reference", torch_side.case_function("masked_softmax"), **settings),
            _torch("tuned", tuned.masked_softmax, **settings),
            _torch("compiled", tuned.masked_softmax, compiled=True, **settings),
            _jax("naive jnp", jax_side.naive_softmax, **settings),
        ),
        limit={"copy": 2 * 4 * 8 * 512 * 512},
        rounds=11,
    )


def _recurrent() -> Workload:
    """W2's encoder after its embedding: an LSTM of 2 layers, 256 → 512, 64 sentences of 30, with gradients."""
    return Workload(
        "recurrent",
        "call",
        (
            Implementation(OURS, jax_side.recurrent, {"module": "ours"}),
            Implementation("nn.LSTM", torch_side.recurrent),
            Implementation("Flax", jax_side.recurrent, {"module": "Flax"}),
        ),
        Agreement(2e-5),
        limits.recurrent_needs(),
        rounds=5,
    )


def _train(translator: Translator, rounds: int, unit: str = "step") -> Workload:
    """A pass over the batches of a translator. J has no reference, since the book has no such model."""
    groups = draw_training(translator.name)
    steps = sum(len(group.sources) for group in groups)
    units = steps if unit == "step" else sum(group.num_labels for group in groups)
    settings = {"translator": translator}
    implementations = [Implementation(OURS, jax_side.train, settings, units)]
    if translator != J:
        none = {**settings, "attention": "none"}
        implementations += [
            Implementation(WITHOUT, jax_side.train, none, units, comparable=False),
            Implementation("reference", torch_side.train, {**settings, "reference": True}, units),
        ]
    return Workload(
        f"{translator.name}_train",
        unit,
        (*implementations, *_tuned(torch_side.train, units, **settings)),
        Agreement(2e-5, why="losses of up to four float32 steps, whose rounding errors the optimiser passes on"),
        {ceiling: amount * steps / units for ceiling, amount in limits.training_needs(translator).items()},
        rounds,
    )


def _search(name: str, beam_size: int) -> Workload:
    """W2's model translates 64 sentences in 30 steps; none ends early. torch_ref translates four, one by one."""
    implementations = [
        Implementation(OURS, jax_side.search, {"beam_size": beam_size}, SENTENCES),
        *_tuned(torch_side.search_tuned, SENTENCES, beam_size=beam_size),
    ]
    if beam_size == 1:
        reference = Implementation(
            "reference", torch_side.search_reference, {"num_sentences": 4}, units=4, num_examples=4
        )
        implementations.append(reference)
    return Workload(
        name,
        "sentence",
        tuple(implementations),
        Agreement(2e-5, 0.03, "random weights make some tokens equally likely up to rounding"),
        limits.search_needs(beam_size),
        rounds=5,
    )


WORKLOADS: tuple[Workload, ...] = (
    _train(W1, 7),
    _train(W2, 5),
    _additive("forward"),
    _additive("backward"),
    _dot("forward"),
    _dot("backward"),
    _masked_softmax(),
    _recurrent(),
    _train(J, 5, "target token"),
    _search("greedy", 1),
    _search("beam", BEAM),
)


def _ceiling(name: str, operations: float, repeats: int, *shape: int) -> Workload:
    settings = {"operation": name.removeprefix("small "), "repeats": repeats, "shape": shape}
    units = int(operations * repeats)
    return Workload(
        f"ceiling: {name}",
        "operation",
        (
            Implementation("JAX", limits.jax_ceiling, settings, units),
            Implementation("PyTorch", limits.torch_ceiling, settings, units),
        ),
        rounds=3,
        has_memory=False,
    )


CEILINGS: dict[str, Workload] = {
    "gemm": _ceiling("gemm", 2 * 1024**3, 8, 1024, 1024, 1024),
    "small gemm": _ceiling("small gemm", 2 * 64 * 512 * 2048, 50, 64, 512, 2048),
    "tanh": _ceiling("tanh", 2**18, 64, 2**18),
    "copy": _ceiling("copy", 2 * 4 * 2**26, 4, 2**26),
}
"""What the machine can do. The unit is one operation; see `parity_tests.speed.limits`."""

RATIOS: tuple[Ratio, ...] = (
    Ratio("w1_train_vs_reference", "w1_train", ("reference",), goal=5, small=True),
    Ratio("w1_train_vs_tuned", "w1_train", TUNED, goal=2.2, small=True),
    Ratio("w2_train_vs_reference", "w2_train", ("reference",), goal=1.6),
    Ratio("w2_train_vs_tuned", "w2_train", TUNED, goal=1.1),
    Ratio("j_train_vs_tuned", "j_train", TUNED, goal=1.2),
    Ratio("w1_attention_overhead", "w1_train", (OURS,), WITHOUT, goal=1.3, lower_is_better=True, small=True),
    Ratio("w2_attention_overhead", "w2_train", (OURS,), WITHOUT, goal=1.15, lower_is_better=True),
    Ratio("additive_forward", "additive_forward", ("reference",), goal=25, small=True),
    Ratio("additive_backward", "additive_backward", ("reference",), goal=18, small=True),
    Ratio("additive_forward_vs_compiled", "additive_forward", ("compiled",), goal=4, small=True),
    Ratio("additive_backward_vs_compiled", "additive_backward", ("compiled",), goal=10, small=True),
    Ratio("additive_forward_memory", "additive_forward", ("reference",), goal=30, memory=True, small=True),
    Ratio("additive_backward_memory", "additive_backward", ("reference",), goal=15, memory=True, small=True),
    Ratio("dot_forward_vs_sdpa", "dot_forward", ("SDPA",), goal=1.0),
    Ratio("dot_backward_vs_sdpa", "dot_backward", ("SDPA",), goal=1.0),
    Ratio("masked_softmax", "masked_softmax", ("reference",), goal=1.7, small=True),
    Ratio("recurrent_vs_nn_lstm", "recurrent", ("nn.LSTM",), goal=0.95),
    Ratio("greedy_vs_tuned", "greedy", TUNED, goal=1.5),
    Ratio("greedy_vs_reference", "greedy", ("reference",), goal=30),
    Ratio("beam_vs_tuned", "beam", TUNED, goal=1.1),
)

START_RATIOS: dict[str, Ratio] = {
    name: Ratio(f"{name}_start_seconds", "start", (), goal=goal, lower_is_better=True)
    for name, goal in (("w1", 1.5), ("w2", 3.0))
}
"""Seconds to the first step, by translator; see `parity_tests.speed.start`."""

ALL_RATIOS = (*RATIOS, *START_RATIOS.values())
NAMES: tuple[str, ...] = (*(workload.name for workload in WORKLOADS), "start")


def find_workload(name: str) -> Workload:
    """Return the workload of that name, ceilings included."""
    return next(workload for workload in (*WORKLOADS, *CEILINGS.values()) if workload.name == name)

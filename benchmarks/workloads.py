"""The registry: which workloads are timed, in which implementations, and which ratios are reported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from benchmarks import jax_side, limits, torch_side, tuned
from benchmarks.inputs import BEAM, SENTENCES, W1, W2, J, Translator, draw_training
from benchmarks.process import Build, Program

OURS = "ours"

WITHOUT = "without attention"
"""Our model with the same widths, where every context is the encoder's final state."""

TUNED = ("tuned", "compiled")
"""Plain PyTorch at its best, without and with torch.compile. A ratio takes the faster one."""

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
"""Make glibc keep freed memory. Otherwise PyTorch's large tensors are unmapped and zeroed again at every step."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute a workload. It runs in a process of its own."""

    name: str
    build: Build
    units: int = 1
    """How many units of the workload one call computes. Times are divided by it."""
    needs_compiler: bool = False
    """Whether it needs a C++ compiler, as torch.compile does."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process."""
    num_examples: int | None = None
    """How many examples its outputs have, counted from the first; None means all."""
    comparable: bool = True
    """False if it computes something else on purpose; then its outputs are not compared."""


class Agreement(NamedTuple):
    """How far outputs may differ."""

    floats: float = 1e-5
    """Bound of max|a − b| / max|b| for a tensor of floats. The default covers another order of float32 sums."""
    ids: float = 0.0
    """Share of rows of ids that may differ."""


EXACT = Agreement()


@dataclass(frozen=True)
class Workload:
    """A computation that is timed in several implementations."""

    name: str
    unit: str
    """What a time belongs to: a call, a training step, a sentence."""
    implementations: tuple[Implementation, ...]
    agreement: Agreement = EXACT
    limit: Mapping[str, float] = field(default_factory=dict)
    """What a unit needs at least, by ceiling; see `benchmarks.limits`."""
    rounds: int = 7
    has_memory: bool = True
    """Whether to measure its peak memory."""


@dataclass(frozen=True)
class Ratio:
    """A number to report: one implementation's time or memory divided by another's."""

    name: str
    workload: str
    numerator: tuple[str, ...]
    """The implementations in the numerator. If there are several, the fastest one counts."""
    denominator: str | None = OURS
    """None reports the seconds themselves."""
    goal: float | None = None
    memory: bool = False
    """Divide peak memory instead of time."""
    lower_is_better: bool = False

    def met(self, value: float | None) -> bool | None:
        """Return whether the value reaches the goal; None without a value or a goal."""
        if value is None or self.goal is None:
            return None
        return value <= self.goal if self.lower_is_better else value >= self.goal


def _jax(name: str, function: Callable[..., Any], **settings: Any) -> Implementation:
    return Implementation(name, partial(jax_side.attention, function=function, **settings))


def _torch(name: str, function: Callable[..., Any], compiled: bool = False, **settings: Any) -> Implementation:
    build = partial(torch_side.attention, function=function, compiled=compiled, **settings)
    return Implementation(name, build, needs_compiler=compiled)


def _tuned(build: Callable[..., Program], units: int, **settings: Any) -> tuple[Implementation, ...]:
    return tuple(
        Implementation(name, partial(build, **settings, compiled=compiled), units, compiled, KEEP_MEMORY)
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
            _jax(OURS, partial(jax_side.call_case, "additive_score"), **settings),
            _torch("reference", partial(torch_side.call_case, "additive_score"), **settings),
            _torch("compiled", tuned.additive_score_to_compile, compiled=True, **settings),
            _jax("naive jnp", jax_side.naive_additive, **settings),
        ),
        Agreement(1e-4),  # the gradient of w_v is a sum of two million terms; PyTorch's is 4e-5 from float64's
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
            _jax(OURS, partial(jax_side.call_case, sdpa), **settings),
            _torch("reference", partial(torch_side.call_case, jax_nn), **settings),
            _torch("SDPA", partial(torch_side.call_case, sdpa), **settings),
            _jax("jax.nn", partial(jax_side.call_case, jax_nn), **settings),
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
            _jax(OURS, partial(jax_side.call_case, "masked_softmax"), **settings),
            _torch("reference", partial(torch_side.call_case, "masked_softmax"), **settings),
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
            Implementation(OURS, partial(jax_side.recurrent, module="ours")),
            Implementation("nn.LSTM", torch_side.recurrent),
            Implementation("Flax", partial(jax_side.recurrent, module="Flax")),
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
    ours = partial(jax_side.train, translator=translator)
    implementations = [Implementation(OURS, ours, units)]
    if translator != J:
        reference = partial(torch_side.train, translator=translator, reference=True)
        implementations += [
            Implementation(WITHOUT, partial(ours, attention="none"), units, comparable=False),
            Implementation("reference", reference, units),
        ]
    return Workload(
        f"{translator.name}_train",
        unit,
        (*implementations, *_tuned(torch_side.train, units, translator=translator)),
        Agreement(2e-5),  # losses of up to four float32 steps, whose rounding errors the optimiser passes on
        {ceiling: amount * steps / units for ceiling, amount in limits.training_needs(translator).items()},
        rounds,
    )


def _search(name: str, beam_size: int) -> Workload:
    """W2's model translates 64 sentences in 30 steps; none ends early. torch_ref translates four, one by one."""
    implementations = [
        Implementation(OURS, partial(jax_side.search, beam_size=beam_size), SENTENCES),
        *_tuned(torch_side.search_tuned, SENTENCES, beam_size=beam_size),
    ]
    if beam_size == 1:
        build = partial(torch_side.search_reference, num_sentences=4)
        implementations.append(Implementation("reference", build, units=4, num_examples=4))
    return Workload(
        name,
        "sentence",
        tuple(implementations),
        Agreement(2e-5, ids=0.03),  # random weights make some tokens equally likely up to rounding
        limits.search_needs(beam_size),
        rounds=5,
    )


def _start() -> Workload:
    """The first training step of a fresh process, compiled by an earlier one."""
    implementations = (
        Implementation(translator.name, partial(jax_side.first_step, translator=translator), comparable=False)
        for translator in (W1, W2)
    )
    return Workload("start", "first step", tuple(implementations), has_memory=False)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
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
        _start(),
    )
}


def _ceiling(name: str, operations: float, repeats: int, *shape: int) -> Workload:
    settings: dict[str, Any] = {"operation": name.removeprefix("small "), "repeats": repeats, "shape": shape}
    units = int(operations * repeats)
    jax, torch = partial(jax_side.ceiling, **settings), partial(torch_side.ceiling, **settings)
    implementations = Implementation("JAX", jax, units), Implementation("PyTorch", torch, units)
    return Workload(name, "operation", implementations, rounds=3, has_memory=False)


CEILINGS: dict[str, Workload] = {
    "gemm": _ceiling("gemm", 2 * 1024**3, 8, 1024, 1024, 1024),
    "small gemm": _ceiling("small gemm", 2 * 64 * 512 * 2048, 50, 64, 512, 2048),
    "tanh": _ceiling("tanh", 2**18, 64, 2**18),
    "copy": _ceiling("copy", 2 * 4 * 2**26, 4, 2**26),
}
"""What the machine can do. The unit is one operation; see `benchmarks.limits`."""

RATIOS: tuple[Ratio, ...] = (
    Ratio("w1_train_vs_reference", "w1_train", ("reference",), goal=5),
    Ratio("w1_train_vs_tuned", "w1_train", TUNED, goal=2.2),
    Ratio("w2_train_vs_reference", "w2_train", ("reference",), goal=1.6),
    Ratio("w2_train_vs_tuned", "w2_train", TUNED, goal=1.1),
    Ratio("j_train_vs_tuned", "j_train", TUNED, goal=1.1),
    Ratio("w1_attention_overhead", "w1_train", (OURS,), WITHOUT, goal=1.3, lower_is_better=True),
    Ratio("w2_attention_overhead", "w2_train", (OURS,), WITHOUT, goal=1.15, lower_is_better=True),
    Ratio("additive_forward", "additive_forward", ("reference",), goal=25),
    Ratio("additive_backward", "additive_backward", ("reference",), goal=18),
    Ratio("additive_forward_vs_compiled", "additive_forward", ("compiled",), goal=4),
    Ratio("additive_backward_vs_compiled", "additive_backward", ("compiled",), goal=10),
    Ratio("additive_forward_memory", "additive_forward", ("reference",), goal=30, memory=True),
    Ratio("additive_backward_memory", "additive_backward", ("reference",), goal=15, memory=True),
    Ratio("dot_forward_vs_sdpa", "dot_forward", ("SDPA",), goal=1.0),
    Ratio("dot_backward_vs_sdpa", "dot_backward", ("SDPA",), goal=1.0),
    Ratio("masked_softmax", "masked_softmax", ("reference",), goal=1.7),
    Ratio("recurrent_vs_nn_lstm", "recurrent", ("nn.LSTM",), goal=1.0),
    Ratio("greedy_vs_tuned", "greedy", TUNED, goal=1.5),
    Ratio("greedy_vs_reference", "greedy", ("reference",), goal=30),
    Ratio("beam_vs_tuned", "beam", TUNED, goal=1.1),
    Ratio("w1_start_seconds", "start", ("w1",), None, goal=1.5, lower_is_better=True),
    Ratio("w2_start_seconds", "start", ("w2",), None, goal=3.0, lower_is_better=True),
)

"""How time and memory grow with length, hidden size, batch and vocabulary: `python -m parity_tests.speed --growth`.

Each point is a workload of its own, measured as the others are, forward and backward: attention from projected queries
and keys to the context, one example unless the batch is what grows, and one training step with W2's two layers at embed
128 and hidden 256, 64 sentences of 20 steps. Not tried is what would need more memory than `MOST_BYTES`, or by the time
of the point before longer than `MOST_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import TYPE_CHECKING, Any

from parity_tests.speed.workload import Agreement, Contestant, Workload

if TYPE_CHECKING:
    from parity_tests.speed.measure import Measured

LENGTHS = (64, 256, 1024, 4096, 16384)
HIDDEN = (32, 128, 512)
BATCHES = (1, 8, 64)
VOCABULARIES = (500, 2000, 8000, 32000)
MOST_BYTES, MOST_SECONDS = 6e9, 6.0

Point = dict[str, int]


@dataclass(frozen=True)
class Line:
    """One contestant of a sweep."""

    name: str
    contestant: Callable[[Point], Contestant]
    bytes_needed: Callable[[Point], float] = lambda point: 0.0


@dataclass(frozen=True)
class Sweep:
    """One quantity that grows while the others stay."""

    name: str
    quantity: str
    points: tuple[Point, ...]
    lines: tuple[Line, ...]

    def workload_name(self, point: Point) -> str:
        return f"grow {self.name} {self.quantity} {point[self.quantity]}"

    def workloads(self) -> Iterator[Workload]:
        """A workload for each point, of the lines that fit into memory there."""
        for point in self.points:
            fits = (line for line in self.lines if line.bytes_needed(point) <= MOST_BYTES)
            contestants = tuple(line.contestant(point) for line in fits)
            yield Workload(self.workload_name(point), "call", contestants, Agreement(1e-4), rounds=3)


def _function(framework: str, name: str, function: str, inputs: str, **more: Any) -> Callable[[Point], Contestant]:
    def contestant(point: Point) -> Contestant:
        settings = {"function": function, "inputs": inputs, "backward": True, "sizes": point, **more}
        return Contestant(name, f"{framework}_functions:build", settings, compiles_cpp=bool(more.get("compiled")))

    return contestant


def _scores(point: Point) -> float:
    """Bytes of five arrays of scores, about what their gradient needs at once."""
    return 5 * 4.0 * point["length"] ** 2 * point["batch"]


def _terms(point: Point) -> float:
    """Bytes of two arrays of `[B, Q, K, H]` terms and one of their gradient."""
    return 3 * 4.0 * point["length"] ** 2 * point["batch"] * point["hidden"]


def _attention(score: str, quantity: str, points: tuple[Point, ...]) -> Sweep:
    """Additive or dot-product attention along one of its sizes."""
    inputs = f"{score} attention"

    def line(framework: str, name: str, function: str, most: Callable[[Point], float], **more: Any) -> Line:
        return Line(name, _function(framework, name, function, inputs, **more), most)

    def little(point: Point) -> float:
        return 0.0

    additive = score == "additive"
    tuned = ("compiled", {"compiled": True}, _scores) if additive else ("SDPA", {}, little)
    lines = (
        line("jax", "ours, plain", f"plain {inputs}", _scores),
        line("jax", "ours, blockwise", f"blockwise {inputs}", little),
        line("torch", "seed", f"seed_{score}_attention", _terms if additive else _scores),
        line("torch", tuned[0], f"{score}_attention", tuned[2], **tuned[1]),
    )
    return Sweep(score, quantity, points, lines)


def _training() -> Sweep:
    def of(build: str, **more: Any) -> Callable[[Point], Contestant]:
        name = {"seed": "seed", "tuned": "tuned"}.get(str(more.get("kind")), "ours")
        return lambda point: Contestant(name, build, {"translator": f"vocabulary {point['vocabulary']}", **more})

    return Sweep(
        "training step",
        "vocabulary",
        tuple({"vocabulary": size} for size in VOCABULARIES),
        (
            Line("ours", of("jax_training:build")),
            Line("seed", of("torch_training:build", kind="seed")),
            Line("tuned", of("torch_training:build", kind="tuned")),
        ),
    )


def _points(quantity: str, values: tuple[int, ...], **others: int) -> tuple[Point, ...]:
    return tuple({quantity: value, **others} for value in values)


SWEEPS: tuple[Sweep, ...] = (
    _attention("additive", "length", _points("length", LENGTHS, batch=1, hidden=32)),
    _attention("dot", "length", _points("length", LENGTHS, batch=1, hidden=32)),
    _attention("additive", "hidden", _points("hidden", HIDDEN, batch=1, length=512)),
    _attention("dot", "hidden", _points("hidden", HIDDEN, batch=1, length=512)),
    _attention("additive", "batch", _points("batch", BATCHES, length=256, hidden=64)),
    _attention("dot", "batch", _points("batch", BATCHES, length=256, hidden=64)),
    _training(),
)

GROWTH_WORKLOADS: dict[str, Workload] = {workload.name: workload for sweep in SWEEPS for workload in sweep.workloads()}


def work(point: Point) -> float:
    """What the time of a large point is about proportional to: lengths count twice, as queries and as keys."""
    return prod(value * value if name == "length" else value for name, value in point.items())


def measure_growth(sweeps: Sequence[Sweep], take: Callable[[Workload], Measured | None]) -> list[Measured]:
    """Every point of the sweeps, small ones first, without what would take too long; `take` measures a workload."""
    results = []
    for sweep in sweeps:
        seconds: dict[str, float] = {}
        before: Point | None = None
        for point in sweep.points:
            workload = GROWTH_WORKLOADS[sweep.workload_name(point)]
            grown = work(point) / work(before) if before is not None else 1.0
            short = tuple(c for c in workload.contestants if seconds.get(c.name, 0) * grown <= MOST_SECONDS)
            result = take(replace(workload, contestants=short))
            entries = {} if result is None else result.entries
            # What was not tried is not tried again.
            seconds = {c.name: entries[c.name].spread.median if c.name in entries else inf for c in short} | {
                c.name: inf for c in workload.contestants if c not in short
            }
            results += [] if result is None else [result]
            before = point
    return results

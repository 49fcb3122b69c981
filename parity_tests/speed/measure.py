"""One workload measured: its contestants started, compared, timed in turn, and asked for their memory."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from parity_tests.speed.agreement import require_agreement
from parity_tests.speed.memory import GIVE_BACK
from parity_tests.speed.processes import Worker, start_worker
from parity_tests.speed.rounds import Spread, ratio_of, take_turns
from parity_tests.speed.workload import Contestant, Ratio, Workload

Say = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """What was measured of one contestant; seconds are those of a unit."""

    seconds: tuple[float, ...]
    """A number for each round."""
    compile_seconds: float
    """How much longer the first call took than the others."""
    peak_bytes: int | None
    """Of a call, above what the process held before it."""
    process_bytes: int | None
    """The most that the process ever held."""
    error: float
    """The largest difference from the reference's outputs, by tensor."""

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


@dataclass(frozen=True)
class Measured:
    """A workload's contestants, and those that did not run with the reason."""

    workload: Workload
    entries: dict[str, Entry]
    left_out: dict[str, str] = field(default_factory=dict)

    def ratio(self, ratio: Ratio) -> Spread | None:
        """The ratio, or None if what it needs did not run."""
        above = [self.entries[name] for name in ratio.above if name in self.entries]
        below = self.entries.get(ratio.below)
        if below is None or not above:
            return None
        if ratio.memory:
            return _memory_ratio(above[0], below)
        return ratio_of([entry.seconds for entry in above], below.seconds)


def _memory_ratio(above: Entry, below: Entry) -> Spread | None:
    return Spread.of([above.peak_bytes / below.peak_bytes]) if above.peak_bytes and below.peak_bytes else None


def measure(workload: Workload, device: str, compiler: str | None, say: Say) -> Measured:
    """Everything about one workload.

    Raises:
        ContestantError: one of them died.
        DisagreementError: they do not compute the same.
    """
    reasons = {contestant.name: why_not(contestant, device, compiler) for contestant in workload.contestants}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    running = [contestant for contestant in workload.contestants if contestant.name not in left_out]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speed-")))
        workers: dict[str, Worker] = {}
        first: dict[str, float] = {}
        outputs: dict[str, dict[str, np.ndarray]] = {}
        for contestant in running:
            say(f"{workload.name}: {contestant.name} starts")
            worker = stack.enter_context(
                start_worker(workload.name, contestant.name, device, dict(contestant.environment))
            )
            told, outputs[contestant.name] = worker.prepare(folder)
            workers[contestant.name], first[contestant.name] = worker, told["first"]
        errors = compare(workload, running, outputs)
        seconds = take_turns(
            {name: worker.run for name, worker in workers.items()},
            workload.rounds,
            lambda done: say(f"{workload.name}: round {done} of {workload.rounds}"),
        )
    memory = {contestant.name: _memory(workload, contestant, device, say) for contestant in running}
    entries = {
        contestant.name: _entry(contestant, seconds[contestant.name], first, memory, errors) for contestant in running
    }
    return Measured(workload, entries, left_out)


def why_not(contestant: Contestant, device: str, compiler: str | None) -> str:
    """What a contestant lacks here, in words; empty where it can run."""
    if contestant.compiles_cpp and compiler is None:
        return "no C++ compiler was found, which torch.compile needs"
    return "it is written for a GPU" if contestant.for_gpu and device == "cpu" else ""


def _memory(workload: Workload, contestant: Contestant, device: str, say: Say) -> dict[str, int | None]:
    """Its peak and its process's, from a fresh process."""
    if not workload.has_memory:
        return {"peak_bytes": None, "process_bytes": None}
    say(f"{workload.name}: memory of {contestant.name}")
    environment = {**contestant.environment, **GIVE_BACK}
    with start_worker(workload.name, contestant.name, device, environment) as worker:
        return worker.ask("memory")


def _entry(
    contestant: Contestant,
    seconds: Sequence[float],
    first: dict[str, float],
    memory: dict[str, dict[str, int | None]],
    errors: dict[str, float],
) -> Entry:
    name = contestant.name
    return Entry(
        tuple(s / contestant.units for s in seconds),
        max(0.0, first[name] - median(seconds)),
        memory[name]["peak_bytes"],
        memory[name]["process_bytes"],
        errors.get(name, 0.0),
    )


def compare(
    workload: Workload, running: Sequence[Contestant], outputs: dict[str, dict[str, np.ndarray]]
) -> dict[str, float]:
    """How far each contestant's outputs are from the reference's, which is PyTorch's first.

    What is another computation on purpose (the model without attention) is compared with nothing.
    """
    comparable = [contestant for contestant in running if not contestant.another]
    torches = [contestant for contestant in comparable if contestant.build.startswith("torch")]
    reference = (torches or comparable)[0].name
    return {
        contestant.name: require_agreement(
            f"{workload.name}: {contestant.name} against {reference}",
            outputs[contestant.name],
            {name: x[: contestant.examples] for name, x in outputs[reference].items()},
            workload.agreement,
        )
        for contestant in comparable
    }

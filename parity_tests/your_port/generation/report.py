"""What a comparison of two models that generate found."""

from collections.abc import Iterator
from dataclasses import dataclass

from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.record import Findings

FULL, STEPS, FREE, OWN = "full forward", "prefill and steps", "free-running", "generate"
"""The programs of a model, as a report names them."""


@dataclass(frozen=True)
class GenerationReport(Findings):
    """What `compare_generation` found."""

    name: str
    measurements: tuple[Measurement, ...]
    """For each program and each new token the worst prompt."""
    difference: tuple[str, ...] = ()
    """Where the two part first, and what that looks like."""
    notes: tuple[str, ...] = ()

    def _lines(self) -> Iterator[str]:
        failed = dict.fromkeys(m.variant for m in self.failed)
        verdict = f"DIFFERS in {' and '.join(failed)}" if failed else "agrees"
        prompts = sum(m.variant.endswith(FREE) for m in self.measurements)
        tokens = sum(m.variant.endswith(FULL) for m in self.measurements) - 1  # logits go one further
        dtype = self.measurements[0].dtype
        yield f"{self.name}, generating, {verdict} ({prompts} prompts, {tokens} new tokens; {dtype})"
        worst = max(self.measurements, key=lambda m: m.share)
        yield f"  worst: {worst.tensor}, {worst.variant}: {worst.difference}"
        yield from (f"  {line}" for line in self.difference)
        yield from (f"  note: {note}" for note in self.notes)

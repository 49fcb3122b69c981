"""What a comparison of two trainings found."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.record import Findings


@dataclass(frozen=True)
class TrainingDivergence:
    """How far two trainings are apart in one quantity at one step, and why they part there."""

    step: int
    """Counted from 1."""
    quantity: str
    tensor: str
    """The worst of the quantity; empty if the quantity is one number."""
    error: float
    bound: float
    tensors: tuple[str, ...]
    """All of the quantity that part."""
    symptoms: tuple[str, ...] = ()
    """What the difference looks like."""
    causes: tuple[str, ...] = ()
    """Mistakes that explain it: made in PyTorch on purpose, each of them brings agreement, here and in a training from
    other weights. Where there are several, the steps do not tell which it is."""
    confirmed: bool = True
    """False in float32, in which a mistake can be named for a difference that only carries its error."""

    @property
    def place(self) -> str:
        """What is compared."""
        return f"{self.quantity} of {self.tensor}" if self.tensor else self.quantity

    def __str__(self) -> str:
        others = f" ({len(self.tensors)} tensors part)" if len(self.tensors) > 1 else ""
        size = f"error {self.error:.3g}, bound {self.bound:.0e}"
        lines = [f"the trainings part at step {self.step} in {self.place}{others}: {size}"]
        lines += [f"  looks like: {symptom}" for symptom in self.symptoms]
        doubt = "" if self.confirmed else " (in float32, not confirmed)"
        if len(self.causes) > 1:
            lines.append(f"  explained by any of these{doubt}, which the steps do not tell apart:")
        single = f"explained by{doubt}: " if len(self.causes) == 1 else "  "
        return "\n".join([*lines, *(f"  {single}{cause}" for cause in self.causes)])


@dataclass(frozen=True)
class TrainingReport(Findings):
    """How far apart both trainings were at each step."""

    name: str
    steps: int
    bound: float
    errors: dict[str, np.ndarray]
    """For each quantity, the worst tensor's error at each step."""
    worst: TrainingDivergence
    """Where they were furthest apart."""
    measurements: tuple[Measurement, ...]
    """Of each quantity where it parts first, or else is furthest apart."""
    divergence: TrainingDivergence | None = None
    """Where they part first."""
    notes: tuple[str, ...] = ()
    """What was not compared, and why."""

    def _lines(self) -> Iterator[str]:
        if self.divergence is not None:
            yield from f"{self.name}: {self.divergence}".splitlines()
        else:
            worst = self.worst
            furthest = f"worst: {worst.place} at step {worst.step}, error {worst.error:.2e}, bound {self.bound:.0e}"
            yield f"{self.name}: the trainings agree for {self.steps} steps in {', '.join(self.errors)}; {furthest}"
        yield from (f"  note: {note}" for note in self.notes)

"""The results of the comparisons as rows and as tables."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from parity_tests.this_library.trainings import Drift
from parity_tests.your_port.measure.tables import Row, layout_table, verdict
from parity_tests.your_port.training.report import TrainingReport


class TrainingRow(NamedTuple):
    """A training in both frameworks."""

    training: str
    dtype: str
    steps: int
    error: float
    """The largest of all steps and tensors; for a drift, the median over the steps of the parameters' error."""
    bound: float
    where: str
    """The tensor and the step with the largest error; for a drift, what it is measured against."""
    failed: bool


class FaultRow(NamedTuple):
    """A planted fault, and whether it was noticed."""

    name: str
    side: str
    """The framework whose code it was planted in."""
    case: str
    """The case that must notice."""
    caught: bool


class Results(NamedTuple):
    """All that a run has found."""

    rows: list[Row]
    trainings: list[TrainingRow]
    faults: list[FaultRow]

    @property
    def failed(self) -> int:
        """How many comparisons failed."""
        return sum(bool(row.failures) for row in self.rows) + sum(row.failed for row in self.trainings)


def summarize_training(result: TrainingReport | Drift) -> TrainingRow:
    """Make the row of one training."""
    if isinstance(result, TrainingReport):
        worst, where = result.worst, f"{result.worst.place}, step {result.worst.step}"
        return TrainingRow(result.name, "float64", result.steps, worst.error, result.bound, where, not result)
    in_jax, in_torch = (result.median("parameters", framework) for framework in ("JAX", "PyTorch"))
    where = f"parameters; PyTorch's own {in_torch:.1e}"
    bound = result.bound("parameters")
    return TrainingRow(result.name, "float32", result.steps, in_jax, bound, where, result.failed)


def as_training_table(rows: Sequence[TrainingRow]) -> Table:
    """Lay out the trainings."""
    headings = ("training", "dtype", "steps", "error", "bound", "where", "verdict")
    cells = (
        (r.training, r.dtype, str(r.steps), f"{r.error:.1e}", f"{r.bound:.1e}", r.where, verdict(r.failed))
        for r in rows
    )
    return layout_table("training", headings, cells, numbers=range(2, 5))


def as_fault_table(faults: Sequence[FaultRow]) -> Table:
    """Lay out the faults that were planted in JAX, and of the many in PyTorch those that went unnoticed."""
    shown = [fault for fault in faults if fault.side == "JAX" or not fault.caught]
    cells = ((f.name, f.side, f.case, "yes" if f.caught else "[red]NO[/red]") for f in shown)
    return layout_table("planted faults", ("fault", "planted in", "checked by", "caught"), cells)

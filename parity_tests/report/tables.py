"""The results of the comparisons as rows, to print and for programs."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from parity_tests.comparison import Measurement, unit_roundoff
from parity_tests.training.comparison import TrainingReport
from parity_tests.training.training import Drift


class Row(NamedTuple):
    """A case in a dtype: the worst of all tensors of all its variants."""

    case: str
    dtype: str
    variants: int
    tensors: int
    forward: float
    """The largest error of an output."""
    gradients: float
    """The largest error of a gradient."""
    torch: float
    """PyTorch's own largest error; 0 in float64, where PyTorch is the reference."""
    ulps: float
    """The largest error in units of the last place of the tensor's largest entry."""
    share: float
    """The largest share of its bound that an error takes; more than 1 is a failure."""
    failures: tuple[str, ...]
    """Each tensor that failed, in words."""


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
    curves: dict[str, dict[str, list[float]]] | None
    """For a drift: the errors of either framework at each step."""


class FaultRow(NamedTuple):
    """A planted fault, and whether it was noticed."""

    name: str
    side: str
    """The framework whose code it was planted in."""
    case: str
    """The case that must notice."""
    caught: bool


def summarize(measurements: Sequence[Measurement]) -> Row:
    """Make the row of one case in one dtype."""
    first = measurements[0]
    return Row(
        first.case,
        first.dtype,
        len({m.variant for m in measurements}),
        len(measurements),
        max((m.error for m in measurements if not m.is_gradient), default=0.0),
        max((m.error for m in measurements if m.is_gradient), default=0.0),
        max(m.torch_error for m in measurements),
        max(m.error for m in measurements) / (2 * unit_roundoff(first.dtype)),
        max(m.error / m.bound if m.bound else float(m.error > 0) for m in measurements),
        tuple(str(m) for m in measurements if m.failed),
    )


def summarize_training(result: TrainingReport | Drift) -> TrainingRow:
    """Make the row of one training."""
    if isinstance(result, TrainingReport):
        quantity, tensor, step, error = result.worst
        where = f"{quantity} of {tensor}, step {step}"
        return TrainingRow(result.name, "float64", result.steps, error, result.bound, where, result.failed, None)
    in_jax, in_torch = (result.median("parameters", framework) for framework in ("JAX", "PyTorch"))
    curves = {q: {side: errors.tolist() for side, errors in sides.items()} for q, sides in result.curves.items()}
    where = f"parameters; PyTorch's own {in_torch:.1e}"
    bound = result.bound("parameters")
    return TrainingRow(result.name, "float32", result.steps, in_jax, bound, where, result.failed, curves)


def as_table(rows: Sequence[Row]) -> Table:
    """Lay out the cases for a terminal of 80 columns."""
    headings = ("case", "dtype", "forward", "gradients", "worst\nULP", "PyTorch's\nown", "of its\nbound", "verdict")
    cells = (
        (r.case, r.dtype, *errors, share(r), _verdict(bool(r.failures)))
        for r in rows
        for errors in [(f"{r.forward:.1e}", f"{r.gradients:.1e}", f"{r.ulps:.2g}", f"{r.torch:.1e}")]
    )
    return _table("JAX against PyTorch", headings, cells, numbers=range(2, 7))


def share(row: Row) -> str:
    """A row's share of its bound, in words."""
    return f"{row.share:.0%}" if row.share < 100 else "> 100"


def as_training_table(rows: Sequence[TrainingRow]) -> Table:
    """Lay out the trainings."""
    headings = ("training", "dtype", "steps", "error", "bound", "where", "verdict")
    cells = (
        (r.training, r.dtype, str(r.steps), f"{r.error:.1e}", f"{r.bound:.1e}", r.where, _verdict(r.failed))
        for r in rows
    )
    return _table("training", headings, cells, numbers=range(2, 5))


def as_fault_table(faults: Sequence[FaultRow]) -> Table:
    """Lay out the planted faults."""
    cells = ((f.name, f.side, f.case, "yes" if f.caught else "[red]NO[/red]") for f in faults)
    return _table("planted faults", ("fault", "planted in", "checked by", "caught"), cells)


def _table(title: str, headings: Sequence[str], rows: Iterable[tuple[str, ...]], numbers: Sequence[int] = ()) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for column, heading in enumerate(headings):
        fixed = column in numbers or heading in ("dtype", "verdict")
        table.add_column(heading, justify="right" if column in numbers else "left", no_wrap=fixed, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _verdict(failed: bool) -> str:
    return "[red]FAILED[/red]" if failed else "agrees"


def as_json(rows: Sequence[Row], trainings: Sequence[TrainingRow], faults: Sequence[FaultRow]) -> dict[str, Any]:
    """Make the same for programs."""
    return {
        "cases": [row._asdict() for row in rows],
        "training": [row._asdict() for row in trainings],
        "failed": sum(bool(row.failures) for row in rows) + sum(row.failed for row in trainings),
        "faults": [fault._asdict() for fault in faults],
        "faults_planted": len(faults),
        "faults_caught": sum(fault.caught for fault in faults),
    }

"""What was compared and how far apart it was, as rows that a person reads and a program can check."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table

from parity_tests.compare import Measurement, unit_roundoff


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
    """PyTorch's own largest error; 0 in float64, where PyTorch is what is compared with."""
    ulps: float
    """The largest error in units of the last place of the tensor's largest entry."""
    share: float
    """The largest share of its bound that an error takes; more than 1 is a failure."""
    failures: tuple[str, ...]
    """Each tensor that failed, in words."""


def summarize(measurements: Sequence[Measurement]) -> Row:
    """The row of one case in one dtype."""
    first = measurements[0]
    errors = [m.error for m in measurements]
    return Row(
        first.case,
        first.dtype,
        len({m.variant for m in measurements}),
        len(measurements),
        max((m.error for m in measurements if not m.of_gradient), default=0.0),
        max((m.error for m in measurements if m.of_gradient), default=0.0),
        max(m.twin_error for m in measurements),
        max(errors) / (2 * unit_roundoff(first.dtype)),
        max((m.error / m.bound if m.bound else float(m.error > 0) for m in measurements), default=0.0),
        tuple(str(m) for m in measurements if m.failed),
    )


def as_table(rows: Sequence[Row]) -> Table:
    """The rows as they are printed."""
    table = Table(title="JAX against PyTorch", title_justify="left")
    for heading in ("case", "dtype"):
        table.add_column(heading)
    for heading in ("variants", "tensors", "forward", "gradients", "worst ULP", "PyTorch's own", "of its bound"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in rows:
        errors = (f"{row.forward:.1e}", f"{row.gradients:.1e}", f"{row.ulps:.3g}", f"{row.torch:.1e}")
        verdict = "[red]FAILED[/red]" if row.failures else "agrees"
        sizes = (str(row.variants), str(row.tensors))
        table.add_row(row.case, row.dtype, *sizes, *errors, f"{row.share:.0%}" if row.share < 100 else "> 100", verdict)
    return table


def as_json(rows: Sequence[Row], faults: dict[str, bool]) -> dict[str, Any]:
    """The same for programs; `faults` says of each planted fault whether it was caught."""
    return {
        "cases": [row._asdict() for row in rows],
        "failed": sum(bool(row.failures) for row in rows),
        "faults": faults,
        "faults_planted": len(faults),
        "faults_caught": sum(faults.values()),
    }

"""The results of comparisons as rows and as a table."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from parity_tests.your_port.measure.judge import Measurement, unit_roundoff


class Row(NamedTuple):
    """A case in a dtype: the worst of all tensors of all its variants."""

    case: str
    dtype: str
    forward: float
    """The largest error of an output; `gradients` is that of a gradient."""
    gradients: float
    torch: float
    """PyTorch's own largest error; in float64 that of its run in float32."""
    ulps: float
    """The largest error in units of the last place of the tensor's largest entry."""
    share: float
    """The largest share of its bound that an error takes; more than 1 is a failure."""
    failures: tuple[str, ...]
    """Each tensor that failed, in words."""


def summarize(measurements: Sequence[Measurement]) -> Row:
    """Make the row of one case in one dtype."""
    first = measurements[0]
    told = [m for m in measurements if not m.only_rounding] or measurements[:1]
    return Row(
        first.case,
        first.dtype,
        max((m.error for m in told if not m.is_gradient), default=0.0),
        max((m.error for m in told if m.is_gradient), default=0.0),
        max(m.torch_error for m in told),
        max(m.error for m in told) / (2 * unit_roundoff(first.run_dtype) if "float" in first.dtype else 1),
        max(m.share for m in measurements),
        tuple(str(m) for m in measurements if m.failed),
    )


def as_table(rows: Sequence[Row]) -> Table:
    """Lay out the cases for a terminal of 80 columns."""
    headings = ("case", "dtype", "forward", "gradients", "worst\nULP", "PyTorch's\nown", "of its\nbound", "verdict")
    cells = (
        (
            escape(r.case),
            r.dtype,
            f"{r.forward:.1e}",
            f"{r.gradients:.1e}",
            f"{r.ulps:.2g}",
            f"{r.torch:.1e}",
            f"{r.share:.0%}" if r.share < 100 else "> 100",
            verdict(bool(r.failures)),
        )
        for r in rows
    )
    return layout_table("JAX against PyTorch", headings, cells, numbers=range(2, 7))


def layout_table(
    title: str, headings: Sequence[str], rows: Iterable[tuple[str, ...]], numbers: Sequence[int] = ()
) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for column, heading in enumerate(headings):
        fixed = column in numbers or heading in ("dtype", "verdict")
        table.add_column(heading, justify="right" if column in numbers else "left", no_wrap=fixed, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def verdict(failed: bool) -> str:
    return "[red]FAILED[/red]" if failed else "agrees"

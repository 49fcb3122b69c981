"""The report as one self-contained page: it needs no network, and reads in light and dark, on paper and on a phone."""

import io
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

import jinja2

from parity_tests.this_library.cases.twin_differences import NOT_THE_SAME
from parity_tests.this_library.report.drift_plot import draw_drift
from parity_tests.this_library.report.tables import Results, TrainingRow
from parity_tests.your_port.measure.tables import share


def as_page(results: Results) -> str:
    """Render the whole page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parity_tests.this_library.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"power": power, "share": share}
    return environment.get_template("page.html").render(
        **results._asdict(),
        drift=_as_svg([row for row in results.trainings if row.curves is not None]),
        differences=NOT_THE_SAME,
        packages={name: version(name) for name in ("jax", "flax", "optax", "torch", "numpy")},
        machine=f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        time=datetime.now(UTC),
    )


def _as_svg(drifts: Sequence[TrainingRow]) -> str:
    """Draw the drifts; empty if there are none."""
    if not drifts:
        return ""
    file = io.StringIO()
    draw_drift(drifts).savefig(file, format="svg")
    return file.getvalue()[file.getvalue().index("<svg") :]


def power(number: float) -> str:
    """1.4e-16 as 1.4·10⁻¹⁶; 0 as 0."""
    if number == 0:
        return "0"
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"

"""The report as one self-contained page: it needs no network, and reads in light and dark, on paper and on a phone."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import NamedTuple

import jinja2

from parity_tests.report import FaultRow, Row


class Figure(NamedTuple):
    """A picture with what it shows."""

    caption: str
    svg: str


def as_page(rows: Sequence[Row], faults: Sequence[FaultRow], figures: Sequence[Figure] = ()) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parity_tests", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["power"] = power
    packages = {name: version(name) for name in ("jax", "flax", "optax", "torch", "numpy")}
    return environment.get_template("page.html").render(
        rows=rows,
        faults=faults,
        figures=figures,
        packages=packages,
        machine=f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        time=datetime.now(UTC),
    )


def power(number: float) -> str:
    """1.4e-16 as 1.4·10⁻¹⁶; 0 as 0."""
    if number == 0:
        return "0"
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"

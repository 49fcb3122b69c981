"""For pytest: the fixture `parity`, which compares a case, and the table of all that were compared, at the end.

    # conftest.py
    pytest_plugins = ["parity_tests.plugin"]

    # port_test.py
    def test_my_port(parity):
        parity(CASE)

The table is left out with `-q`.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from parity_tests.case import Case
from parity_tests.compare import compare_case
from parity_tests.diagnosis.bisect import find_divergence
from parity_tests.report.tables import Row, as_table, summarize

_PROPERTY = "parity"


@pytest.fixture
def parity(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Compare a case in each dtype that it has inputs for; a failure names the first tensor that differs, and why."""

    def compare(case: Case, *dtypes: str) -> None:
        rows = []
        for dtype in dtypes or ("float64", "float32"):
            measurements = compare_case(case, dtype)
            if measurements:
                rows.append(summarize(measurements))
                record_property(_PROPERTY, rows[-1]._asdict())
        assert rows, f"{case.name} has no variant in {dtypes}"
        failed = [row for row in rows if row.failures]
        if failed:
            divergence = find_divergence(case, dtype=failed[0].dtype)
            failures = (failure for row in failed for failure in row.failures)
            pytest.fail("\n".join([*failures, str(divergence)]), pytrace=False)

    return compare


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, of every process that took part."""
    rows = list(_rows(terminalreporter.stats))
    if not rows or terminalreporter.verbosity < 0:
        return
    colors: Any = "standard" if terminalreporter.isatty else None
    console = Console(file=io.StringIO(), width=max(80, terminalreporter._tw.fullwidth), color_system=colors)
    console.print(as_table(sorted(rows)))
    terminalreporter.write_line("")
    terminalreporter.write(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO from above


def _rows(stats: dict[str, list[Any]]) -> Iterator[Row]:
    for reports in stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY and getattr(report, "when", "") == "call":
                    yield Row(**value)

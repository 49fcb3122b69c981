"""For pytest: the fixture `parity`, which compares a case, and a table of all comparisons at the end.

    # conftest.py
    pytest_plugins = ["parity_tests.plugin"]

    # port_test.py
    def test_my_port(parity):
        parity(CASE)

`-q` leaves the table out.
"""

import io
from collections.abc import Callable
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
        measured = (compare_case(case, dtype) for dtype in dtypes or ("float64", "float32"))
        rows = [summarize(measurements) for measurements in measured if measurements]
        assert rows, f"{case.name} has no variant in {dtypes}"
        for row in rows:
            record_property(_PROPERTY, row._asdict())
        failed = [row for row in rows if row.failures]
        if failed:
            failures = (failure for row in failed for failure in row.failures)
            found = find_divergence(case, dtype=failed[0].dtype)
            pytest.fail("\n".join([*failures, *([] if found is None else [str(found)])]), pytrace=False)

    return compare


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of all test processes."""
    properties = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == _PROPERTY
    ]
    if not properties or terminalreporter.verbosity < 0:
        return
    text = io.StringIO()
    colors: Any = "standard" if terminalreporter.isatty else None
    console = Console(file=text, width=max(80, terminalreporter._tw.fullwidth), color_system=colors)
    console.print(as_table(sorted(Row(**value) for value in properties)))
    terminalreporter.write_line("")
    terminalreporter.write(text.getvalue())

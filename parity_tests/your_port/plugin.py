"""For pytest: the fixture `parity`, which asserts that two programs agree, and a table of all comparisons at the end.

    def test_my_port(parity):
        parity(compare(torch_module, jax_module, inputs))  # or a Case, with the dtypes in which it is to be run

pytest finds the plugin where the package is installed, and imports JAX only when a test uses it. `-q` leaves the table
out. Of a failure everything that was found is written as JSON and as Markdown, beside the file of `--junitxml` or into
the folder of `--parity-files`.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity_tests.your_port.measure.case import Case
    from parity_tests.your_port.record import Findings, Record

_PROPERTY = "parity"
SHOWN = 3
"""How many of a failure's tensors are listed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the folder of the files."""
    words = "write what `parity` found of each failure to this folder (default: beside the file of --junitxml)"
    parser.getgroup("parity").addoption("--parity-files", metavar="FOLDER", help=words)


def _write_files(request: pytest.FixtureRequest, record: "Record") -> None:
    """Write what was found, under the name of the test."""
    options = request.config.option
    junit: Any = getattr(options, "xmlpath", None)
    if not options.parity_files and not junit:
        return
    folder = Path(options.parity_files or Path(junit).parent)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"parity-{re.sub(r'[^A-Za-z0-9_.-]+', '-', request.node.nodeid)}"[:200]
    record.write(folder / f"{name}.json", folder / f"{name}.md")


_IS_CALLED = pytest.StashKey[bool]()
"""Of a test that asks for `parity`: whether it has called it."""


@pytest.fixture
def parity(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Check a report of `compare` or of its kin, or compare a case in each dtype that it has inputs for.

    Of a report, `dtypes` are those that count. A failure names the first tensor that differs, and why.
    """
    from parity_tests.your_port.divergence import find_divergence
    from parity_tests.your_port.measure.case import DTYPES, Case
    from parity_tests.your_port.measure.draw import compare_case
    from parity_tests.your_port.measure.tables import summarize
    from parity_tests.your_port.record import Findings, Record

    request.node.stash[_IS_CALLED] = False

    def check(given: "Case | Findings", *dtypes: str) -> None:
        found: Any = given
        request.node.stash[_IS_CALLED] = True
        if unknown := set(dtypes) - set(DTYPES):
            raise ValueError(
                f"after a report or a case come dtypes, some of {DTYPES}; got {', '.join(sorted(unknown))}"
            )
        if isinstance(found, Findings):
            measured = [m for m in found.measurements if not dtypes or m.run_dtype in dtypes]
        elif isinstance(found, Case):
            measured = [m for dtype in dtypes or ("float64", "float32") for m in compare_case(found, dtype)]
        else:
            raise TypeError(f"parity takes a report, such as that of compare, or a Case; got {found!r}")
        if missing := [dtype for dtype in dtypes if not any(m.run_dtype == dtype for m in measured)]:
            raise ValueError(f"{found.name} was not run in {', '.join(missing)}")
        assert measured, f"{found.name} has no variant in float64 or float32"
        row = attrgetter("case", "dtype")
        for _, group in groupby(sorted(measured, key=row), row):
            record_property(_PROPERTY, summarize([*group])._asdict())
        failed = [m for m in measured if m.failed]
        if not failed:
            return
        if isinstance(found, Findings):
            record = found.record
        else:
            divergence = find_divergence(found, found.find_variant(failed[0].variant), failed[0].dtype)
            lines = [line for part in (divergence, *failed[:SHOWN]) if part for line in str(part).splitlines()]
            lines += [f"… and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
            record = Record(found.name, lines, measured, divergence)
        _write_files(request, record)
        pytest.fail("\n".join(record.lines), pytrace=False)

    return check


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Fail a test that passes, has asked for `parity` and has not called it."""
    result = yield
    if not pyfuncitem.stash.get(_IS_CALLED, True):
        pytest.fail("the test asks for the fixture `parity` and never calls it: parity(compare(…))", pytrace=False)
    return result


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
    import io

    from rich.console import Console

    from parity_tests.your_port.measure.tables import Row, as_table

    text = io.StringIO()
    colors: Any = "standard" if terminalreporter.isatty else None
    console = Console(file=text, width=max(80, terminalreporter._tw.fullwidth), color_system=colors)
    console.print(as_table(sorted(Row(**value) for value in properties)))
    terminalreporter.write_line("")
    terminalreporter.write(text.getvalue())

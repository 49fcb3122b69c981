"""Print how far jax_attn and torch_ref are apart: `python -m parity_tests`.

    python -m parity_tests                          every case, in float64 and float32
    python -m parity_tests --case LSTM --dtype float64
    python -m parity_tests --faults                 plant every fault as well, and see that each is noticed
    python -m parity_tests --json parity.json       the same rows for a program

The exit status is 1 if anything disagrees or a planted fault goes unnoticed.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import track

from parity_tests.case import Case
from parity_tests.cases import CASES
from parity_tests.compare import compare_case
from parity_tests.fault import Fault, is_caught
from parity_tests.faults import FAULTS
from parity_tests.jax_side import forget_programs
from parity_tests.report import Row, as_json, as_table, summarize

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to compare."""

    case: tuple[str, ...] = ()
    """Names of cases, or parts of names; by default all."""
    dtype: tuple[Literal["float64", "float32", "bfloat16"], ...] = ("float64", "float32")
    """Each case runs in those of them that it has inputs for."""
    faults: bool = False
    """Plant the faults too."""
    json: Path | None = None
    """A file to write the rows to; it must not exist."""


def main() -> int:
    """Compare, print, and say by the exit status whether all is well."""
    options = tyro.cli(Options, prog="python -m parity_tests", description=__doc__)
    cases = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    if not cases:
        return complain(f"no case is called like {options.case}; there are: {', '.join(c.name for c in CASES)}")
    if options.json is not None and (options.json.exists() or not options.json.absolute().parent.is_dir()):
        return complain(f"{options.json} exists already, or its folder does not")
    rows = compare(cases, options.dtype)
    names = {case.name for case in cases}
    caught = plant([fault for fault in FAULTS if fault.case in names]) if options.faults else {}
    CONSOLE.print(as_table(rows))
    for failure in (failure for row in rows for failure in row.failures):
        CONSOLE.print(failure, markup=False)
    if caught:
        CONSOLE.print(f"{sum(caught.values())} of {len(caught)} planted faults caught")
        for name in (name for name, noticed in caught.items() if not noticed):
            CONSOLE.print(f"  not caught: {name}", markup=False)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(rows, caught), indent=2) + "\n", encoding="utf-8")
    return int(any(row.failures for row in rows) or not all(caught.values()))


def compare(cases: list[Case], dtypes: tuple[str, ...]) -> list[Row]:
    """A row for each case in each dtype that it runs in."""
    rows = []
    for case in track(cases, "comparing", console=CONSOLE, transient=True):
        for dtype in dtypes:
            measurements = compare_case(case, dtype)
            if measurements:
                rows.append(summarize(measurements))
        forget_programs()
    return rows


def plant(faults: list[Fault]) -> dict[str, bool]:
    """Of each fault, whether its case notices it."""
    caught = {}
    for fault in track(faults, "planting faults", console=CONSOLE, transient=True):
        caught[fault.name] = is_caught(fault)
    return caught


def complain(message: str) -> int:
    """An error on one line; the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""Compare every port of the zoo with PyTorch, and count what is found."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from parity_tests.your_port.cause.cause import in_words
from parity_tests.your_port.compare import compare
from parity_tests.your_port.report import Report
from parity_tests.zoo import convolution, norm_and_loss, recurrent, transformer
from parity_tests.zoo.port import Bug, Port

ZOO: tuple[Port, ...] = (*recurrent.PORTS, *transformer.PORTS, *convolution.PORTS, *norm_and_loss.PORTS)
KINDS = ("Linen", "NNX", "Equinox", "function")


@dataclass(frozen=True)
class Result:
    """What the comparison said about a port, right or with a bug."""

    port: Port
    bug: Bug | None
    report: Report | None
    seconds: float
    """Of the processor."""
    error: str = ""
    """What was raised: then the port was not compared, and nothing was caught."""

    @property
    def caught(self) -> bool:
        """Whether the comparison speaks against the port. One that a right port stops is a false alarm."""
        return self.bug is None if self.report is None else not self.report.agrees

    @property
    def located(self) -> bool:
        return bool(self.bug and self.report and self.bug.is_located(self.report))

    @property
    def explained(self) -> bool | None:
        return self.bug.is_explained(self.report) if self.bug and self.report else None

    def __str__(self) -> str:
        """One line: the verdict on the verdict."""
        if self.bug is None:
            words = "false alarm" if self.caught else "agrees"
        else:
            where = "" if self.bug.where is None else ", located" if self.located else ", NOT located"
            why = {True: "explained", False: "WRONG cause", None: "no cause"}[self.explained]
            words = f"caught{where}, {why}" if self.caught else "MISSED"
        name = f"{self.port.kind} {self.port.name}: {self.bug.name if self.bug else 'the right port'}"
        found = self.report.divergence if self.report else None
        said = self.error.partition("\n")[0] if self.error else ""
        if found is not None:
            said = f"{found.tensor} inside of {found.module or 'the program'}; {in_words(found.found)}"
        return f"{self.seconds:5.1f} s  {name}: {words}" + (f" [{said}]" if said else "")


def run(port: Port, bug: Bug | None, dtypes: Sequence[str] = ("float64",)) -> Result:
    """Compare a port, right or with a bug."""
    options: dict[str, Any] = {**port.options, **(bug.options if bug else {})}
    torch.manual_seed(0)
    start = time.process_time()
    report, error = None, ""
    try:
        jax_module = port.jax(bug.name if bug else "")
        report = compare(port.torch(), jax_module, port.inputs, dtypes=dtypes, name=port.name, **options)
    except Exception as problem:  # one that fails is a result, too
        error = f"{type(problem).__name__}: {problem}"
    return Result(port, bug, report, time.process_time() - start, error)


def run_all(pairs: Iterable[tuple[Port, Bug | None]], dtypes: Sequence[str] = ("float64",)) -> Iterator[Result]:
    """Compare them one after the other; what was compiled for a port is forgotten after it."""
    for _, group in itertools.groupby(pairs, key=lambda pair: id(pair[0])):
        yield from (run(port, bug, dtypes) for port, bug in group)
        jax.clear_caches()


def choose(kind: str = "", name: str = "") -> list[tuple[Port, Bug | None]]:
    """List the right ports and the bugs of a kind, and of the ports or bugs with this in their name."""
    pairs = [(port, bug) for port in ZOO for bug in (None, *port.bugs)]
    return [
        (port, bug)
        for port, bug in pairs
        if kind in ("", port.kind.lower()) and name.lower() in f"{port.name}: {bug.name if bug else ''}".lower()
    ]


COLUMNS = ("kind", "ports", "false alarms", "bugs", "caught", "located", "cause right", "wrong", "seconds", "lines")


def score(results: Iterable[Result]) -> str:
    """Make the table of the score, a row for each kind and one for all."""
    results = list(results)
    groups = {kind: [r for r in results if r.port.kind == kind] for kind in KINDS} | {"all": results}
    rows = [COLUMNS, *(_row(kind, group) for kind, group in groups.items() if group)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(kind: str, results: list[Result]) -> tuple[str, ...]:
    right, bugs = [r for r in results if r.bug is None], [r for r in results if r.bug is not None]
    placed = [r for r in bugs if r.bug and r.bug.where is not None]
    lines = sorted({r.port.name: r.port.lines for r in results}.values())
    counts = (
        (len(right), sum(r.caught for r in right), len(bugs), sum(r.caught for r in bugs)),
        (sum(r.explained is True for r in bugs), sum(r.explained is False for r in bugs)),
    )
    located = f"{sum(r.located for r in placed)} of {len(placed)}"
    seconds = f"{sum(r.seconds for r in results):.0f}"
    return (kind, *map(str, counts[0]), located, *map(str, counts[1]), seconds, f"{lines[0]} to {lines[-1]}")

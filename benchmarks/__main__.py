"""Measure how fast jax_attn is: `python -m benchmarks`, with options such as `--quick --only w1 additive`.

Ours is compared with torch_ref (the reference) and with the fastest plain PyTorch (tuned, compiled, SDPA). Each
implementation runs in a process of its own. Their outputs are compared, then they are timed in turn. Only ratios of one
run on an otherwise idle machine mean something.

The exit status is 1 if two implementations disagree or one fails; 2 if an option is wrong.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from benchmarks import attention, limits, measure, search, training
from benchmarks.records import Run, Workload, add
from benchmarks.report import make_json, make_tables

WORKLOADS = (*attention.WORKLOADS, *training.WORKLOADS, *search.WORKLOADS)
ROUNDS, QUICK_ROUNDS = 7, 3
CONSOLE = Console(highlight=False, width=max(shutil.get_terminal_size().columns, 120))  # in which the tables fit


@dataclass(frozen=True)
class Options:
    """What to measure."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[WORD ...]", help_behavior_hint="")] = ()
    """Words from the names of workloads or ratios. By default everything."""
    quick: bool = False
    """Take fewer rounds."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the results to this new file."""


def main() -> int:
    """Measure, print the tables, and return the exit status."""
    options = tyro.cli(Options, prog="python -m benchmarks", description=__doc__)
    try:
        chosen = select_workloads(options.only)
        if options.json is not None and (options.json.exists() or not options.json.absolute().parent.is_dir()):
            raise ValueError(f"--json {options.json}: the file exists already, or its folder does not exist")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run = measure_all(chosen, QUICK_ROUNDS if options.quick else ROUNDS)
    show(run)
    if options.json is not None:
        options.json.write_text(json.dumps(make_json(run), indent=2) + "\n", encoding="utf-8")
    return int(bool(run.failures))


def select_workloads(only: tuple[str, ...]) -> list[Workload]:
    """Return the workloads to measure.

    Raises:
        ValueError: a word is part of no name.
    """
    names = {workload: [workload.name, *(ratio.name for ratio in workload.ratios)] for workload in WORKLOADS}
    if unknown := [word for word in only if not any(word in name for each in names.values() for name in each)]:
        known = "; ".join(", ".join(each) for each in names.values())
        raise ValueError(f"no workload and no ratio contains {', '.join(unknown)}. They are {known}")
    return [each for each in WORKLOADS if not only or any(word in name for word in only for name in names[each])]


def measure_all(chosen: Sequence[Workload], rounds: int) -> Run:
    """Measure these workloads, and the speeds of their limits. A failure is noted, and the others are measured."""
    run = Run()
    with CONSOLE.status("starting") as status:
        for workload in chosen:
            try:
                run.results[workload] = measure.measure(workload, rounds, status.update)
            except measure.MeasurementError as error:
                run.failures.append(str(error))
        try:
            run.speeds = limits.measure_speeds(add(*(workload.needs for workload in run.results)), status.update)
        except measure.MeasurementError as error:
            run.failures.append(str(error))
    return run


def show(run: Run) -> None:
    """Print the tables, and what failed."""
    for table in make_tables(run):
        CONSOLE.print(table)
    for failure in run.failures:
        CONSOLE.print(f"FAILED: {failure}", markup=False, style="red")


if __name__ == "__main__":
    sys.exit(main())

"""Measure how fast jax_attn is: `python -m parity_tests.speed`.

    python -m parity_tests.speed                        every workload; ratios beside their goals
    python -m parity_tests.speed --quick                fewer rounds
    python -m parity_tests.speed --only w1 additive     workloads or ratios whose names contain these words
    python -m parity_tests.speed --json speed.json      write the results to a file too
    python -m parity_tests.speed --check                compare the small workloads with the kept ratios
    python -m parity_tests.speed --keep                 keep the ratios of the small workloads

Ours is compared with torch_ref (the reference), with the fastest plain PyTorch (tuned, compiled, SDPA), and with what
JAX offers (naive jnp, jax.nn, Flax). Each implementation runs in a process of its own. Their outputs are compared, then
they are timed in turn. Only ratios of one run on an otherwise idle machine mean something.

The exit status is 1 if a ratio fell (--check), two implementations disagree or one fails; 2 if an option is wrong.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from parity_tests.speed.kept import KEPT_FILE, compare_with_kept, describe_machine, keep
from parity_tests.speed.measure import Report, Run, measure_all
from parity_tests.speed.report import (
    describe_ceilings,
    describe_left_out,
    make_json,
    make_ratio_table,
    make_times_table,
)
from parity_tests.speed.workloads import ALL_RATIOS, NAMES

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to measure."""

    only: tuple[str, ...] = ()
    """Words from the names of workloads or ratios; default: everything."""
    quick: bool = False
    """Take fewer rounds, and measure memory only if a ratio needs it."""
    json: Path | None = None
    """Write the results to this new file."""
    check: bool = False
    """Measure only the small workloads, and report which ratio fell below the kept one by more than the noise."""
    keep: bool = False
    """Measure only the small workloads, and keep their ratios."""


def main() -> int:
    """Measure, print the tables, and return the exit status."""
    options = tyro.cli(Options, prog="python -m parity_tests.speed", description=__doc__)
    small = options.check or options.keep
    try:
        names = select_workloads(options.only, small)
        check_files(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with show_progress() as report:
        run = measure_all(names, options.quick, with_ceilings=not small, report=report)
    print_report(run)
    machine = describe_machine(run.device)
    if options.json is not None:
        options.json.write_text(json.dumps(make_json(run, machine), indent=2) + "\n", encoding="utf-8")
    ratios = {ratio: spread for ratio, spread in run.ratios().items() if ratio.small and spread is not None}
    if options.keep and not run.failures:
        keep(ratios, machine, KEPT_FILE)
        CONSOLE.print(f"kept in {KEPT_FILE}")
    fell = False
    if options.check:
        comparisons, warnings = compare_with_kept(ratios, machine, KEPT_FILE)
        for warning in warnings:
            CONSOLE.print(f"warning: {warning}", style="yellow")
        for comparison in comparisons:
            CONSOLE.print(str(comparison), style="red" if comparison.fell else None)
        fell = any(comparison.fell for comparison in comparisons)
    return int(fell or bool(run.failures))


def select_workloads(only: tuple[str, ...], small: bool = False) -> list[str]:
    """Return the names of the workloads to measure.

    Raises:
        ValueError: a word is part of no name.
    """
    workloads = {**{name: name for name in NAMES}, **{ratio.name: ratio.workload for ratio in ALL_RATIOS}}
    unknown = [word for word in only if not any(word in name for name in workloads)]
    if unknown:
        raise ValueError(
            f"no workload and no ratio contains {', '.join(unknown)}. The workloads are {', '.join(NAMES)}; "
            f"the ratios are {', '.join(ratio.name for ratio in ALL_RATIOS)}"
        )
    wanted = {workload for name, workload in workloads.items() if not only or any(word in name for word in only)}
    if small:
        wanted &= {ratio.workload for ratio in ALL_RATIOS if ratio.small}
    return [name for name in NAMES if name in wanted]


def check_files(options: Options) -> None:
    """Check before measuring that the files are there, or can be written.

    Raises:
        ValueError: a file is missing, exists already, or its folder does not exist.
    """
    if options.json is not None and (options.json.exists() or not options.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {options.json}: the file exists already, or its folder does not exist")
    if options.check and not KEPT_FILE.exists():
        raise ValueError(f"{KEPT_FILE} does not exist: run `python -m parity_tests.speed --keep` first")


def print_report(run: Run) -> None:
    """Print the tables, then what failed."""
    if run.results:
        CONSOLE.print(make_times_table(run.results, run.rates))
    if left_out := describe_left_out(run.results):
        CONSOLE.print(left_out)
    if run.rates:
        CONSOLE.print(describe_ceilings(run.rates))
    CONSOLE.print(make_ratio_table(run.ratios()))
    for failure in run.failures:
        CONSOLE.print(f"FAILED: {failure}", markup=False, style="red")


@contextmanager
def show_progress() -> Iterator[Report]:
    """Show what is being done, and for how long."""
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        task = progress.add_task("starting")
        yield lambda text: progress.update(task, description=text)


if __name__ == "__main__":
    sys.exit(main())

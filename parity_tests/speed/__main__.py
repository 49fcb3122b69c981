"""Measure the project's speed: `python -m parity_tests.speed`.

    python -m parity_tests.speed                        every workload, and the ratios beside their goals
    python -m parity_tests.speed --quick                the same in fewer rounds
    python -m parity_tests.speed --only w1 additive     workloads or ratios whose names have one of these parts
    python -m parity_tests.speed --json speed.json      the same for a program: ratios, medians, spreads, memory
    python -m parity_tests.speed --check                the small workloads against the ratios kept in the repository
    python -m parity_tests.speed --keep                 keep the ratios of the small workloads
    python -m parity_tests.speed --growth growth.png    time and memory against length, hidden size, batch, vocabulary

Ours runs against torch_ref as it is written (seed), against the best that plain PyTorch gives (tuned, compiled, SDPA)
and against what JAX has (naive jnp, jax.nn, Flax). Every contestant has a process of its own and idles while another
runs; they are timed in turn, in rounds, and a ratio is the median of the rounds' ratios. Their results are compared
before they are timed. Only the ratios mean anything, and only those of an otherwise idle machine.

The exit status is 1 if a ratio fell (--check) or two contestants do not agree, and 2 if nothing could be measured.
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

from parity_tests.speed.growth import SWEEPS, measure_growth
from parity_tests.speed.growth_plot import draw_growth
from parity_tests.speed.kept import KEPT_FILE, compare_with_kept, keep
from parity_tests.speed.machine import describe_machine
from parity_tests.speed.measure import Say
from parity_tests.speed.rounds import Spread
from parity_tests.speed.sitting import Sitting, sit_down, sit_through
from parity_tests.speed.tables import (
    as_ceiling_text,
    as_growth_table,
    as_json,
    as_left_out_text,
    as_ratio_table,
    as_times_table,
    best_rates,
)
from parity_tests.speed.workload import Ratio
from parity_tests.speed.workloads import ALL_RATIOS, NAMES

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to measure."""

    only: tuple[str, ...] = ()
    """Workloads or ratios, or parts of their names; by default all."""
    quick: bool = False
    """Fewer rounds of the same workloads, and memory only where a ratio is made of it."""
    json: Path | None = None
    """A file to write everything to; it must not exist."""
    check: bool = False
    """Measure the small workloads alone, and say which ratio fell below the kept one by more than the noise."""
    keep: bool = False
    """Measure the small workloads alone, and keep their ratios."""
    growth: Path | None = None
    """Measure instead how time and memory grow, and draw it into this file; with --only, sweeps by parts of names."""


def main() -> int:
    """Measure, print, and say by the exit status whether all is well."""
    options = tyro.cli(Options, prog="python -m parity_tests.speed", description=__doc__)
    if options.growth is not None:
        return grow(options)
    try:
        small = options.check or options.keep
        names = selected(options.only, small)
    except ValueError as error:
        return complain(str(error))
    if options.json is not None and (options.json.exists() or not options.json.absolute().parent.is_dir()):
        return complain(f"{options.json} exists already, or its folder does not")
    if options.check and not KEPT_FILE.exists():
        return complain(f"nothing was kept in {KEPT_FILE}: run `python -m parity_tests.speed --keep` first")
    with progress() as say:
        sitting = sit_through(names, options.quick, not small, say)
    machine, ratios = describe_machine(sitting.device), sitting.ratios()
    print_report(sitting)
    if options.json is not None:
        write_json(options.json, as_json(sitting, machine))
    kept = {ratio: spread for ratio, spread in ratios.items() if ratio.small and spread is not None}
    if options.keep and not sitting.failures:
        keep({ratio.name: spread for ratio, spread in kept.items()}, machine)
        CONSOLE.print(f"kept in {KEPT_FILE}")
    fell = check(kept, machine) if options.check else False
    return int(fell or bool(sitting.failures))


def grow(options: Options) -> int:
    """The sweeps, as tables and as a picture."""
    names = [f"{sweep.name} {sweep.quantity}" for sweep in SWEEPS]
    unknown = [part for part in options.only if not any(part in name for name in names)]
    if unknown:
        return complain(f"nothing that grows is called like {', '.join(unknown)}; there are {', '.join(names)}")
    sweeps = [
        sweep
        for sweep, name in zip(SWEEPS, names, strict=True)
        if not options.only or any(part in name for part in options.only)
    ]
    assert options.growth is not None
    with progress() as say:
        sitting = sit_down(say)
        for sweep in sweeps:  # each is shown and drawn when it ends: it is long until the last
            sitting.results += measure_growth([sweep], sitting.take)
            CONSOLE.print(as_growth_table(sweep, sitting.results))
            draw_growth(sitting.results).savefig(options.growth, dpi=110)
    print_failures(sitting)
    if options.json is not None:
        write_json(options.json, as_json(sitting, describe_machine(sitting.device)))
    return int(bool(sitting.failures))


def selected(only: tuple[str, ...], small: bool = False) -> list[str]:
    """The workloads asked for.

    Raises:
        ValueError: a name that is part of no workload's and no ratio's.
    """
    of_ratio = {ratio.name: ratio.workload for ratio in ALL_RATIOS}
    known = {**{name: name for name in NAMES}, **of_ratio}
    unknown = [part for part in only if not any(part in name for name in known)]
    if unknown:
        raise ValueError(
            f"nothing is called like {', '.join(unknown)}; there are the workloads {', '.join(NAMES)} "
            f"and the ratios {', '.join(of_ratio)}"
        )
    wanted = {workload for name, workload in known.items() if not only or any(part in name for part in only)}
    if small:
        wanted &= {ratio.workload for ratio in ALL_RATIOS if ratio.small}
    return [name for name in NAMES if name in wanted]


def print_report(sitting: Sitting) -> None:
    """The tables, and what failed in words."""
    if sitting.results:
        CONSOLE.print(as_times_table(sitting.results, best_rates(sitting.rates)))
    if left_out := as_left_out_text(sitting.results):
        CONSOLE.print(left_out)
    if sitting.rates:
        CONSOLE.print(as_ceiling_text(sitting.rates))
    CONSOLE.print(as_ratio_table(sitting.ratios()))
    print_failures(sitting)


def print_failures(sitting: Sitting) -> None:
    for failure in sitting.failures:
        CONSOLE.print(f"FAILED: {failure}", markup=False, style="red")


def write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check(ratios: dict[Ratio, Spread], machine: dict[str, object]) -> bool:
    """Every kept ratio beside the one measured now; whether one fell."""
    comparisons, warning = compare_with_kept(ratios, machine)
    if warning:
        CONSOLE.print(f"warning: {warning}", style="yellow")
    for comparison in comparisons:
        CONSOLE.print(str(comparison), style="red" if comparison.fell else None)
    known = {comparison.ratio for comparison in comparisons}
    for ratio in ratios:
        if ratio not in known:
            CONSOLE.print(f"{ratio.name}: nothing was kept to compare with", style="yellow")
    return any(comparison.fell for comparison in comparisons)


@contextmanager
def progress() -> Iterator[Say]:
    """What is being done, and for how long."""
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=CONSOLE, transient=True) as bar:
        task = bar.add_task("starting")
        yield lambda text: bar.update(task, description=text)


def complain(message: str) -> int:
    """An error on one line; the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

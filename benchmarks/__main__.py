"""Measure how fast jax_attn is: `python -m benchmarks`.

    python -m benchmarks                        every workload; ratios beside their goals
    python -m benchmarks --quick                fewer rounds
    python -m benchmarks --only w1 additive     workloads or ratios whose names contain these words
    python -m benchmarks --json speed.json      write the results to a file too
    python -m benchmarks --check speed.json     compare with an earlier run

Ours is compared with torch_ref (the reference), with the fastest plain PyTorch (tuned, compiled, SDPA), and with what
JAX offers (naive jnp, jax.nn, Flax). Each implementation runs in a process of its own. Their outputs are compared, then
they are timed in turn. Only ratios of one run on an otherwise idle machine mean something.

The exit status is 1 if a ratio fell (--check), two implementations disagree or one fails; 2 if an option is wrong.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from benchmarks.measure import Run, measure_all
from benchmarks.report import (
    describe_ceilings,
    describe_changes,
    describe_left_out,
    make_json,
    make_ratio_table,
    make_times_table,
)
from benchmarks.workloads import RATIOS, WORKLOADS, Workload

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
    check: Path | None = None
    """Compare with the results in this file, which --json has written, and report which ratio fell by more than the
    noise."""


def main() -> int:
    """Measure, print the tables, and return the exit status."""
    options = tyro.cli(Options, prog="python -m benchmarks", description=__doc__)
    try:
        workloads = select_workloads(options.only)
        earlier = read_earlier(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with CONSOLE.status("starting") as status:
        run = measure_all(workloads, options.quick, status.update)
    print_report(run)
    results = make_json(run)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    changes = describe_changes(results, earlier, RATIOS) if earlier else {}
    for line, fell in changes.items():
        CONSOLE.print(line, markup=False, style="red" if fell else None)
    return int(any(changes.values()) or bool(run.failures))


def select_workloads(only: tuple[str, ...]) -> list[Workload]:
    """Return the workloads to measure.

    Raises:
        ValueError: a word is part of no name.
    """
    names = {**{name: name for name in WORKLOADS}, **{ratio.name: ratio.workload for ratio in RATIOS}}
    unknown = [word for word in only if not any(word in name for name in names)]
    if unknown:
        raise ValueError(
            f"no workload and no ratio contains {', '.join(unknown)}. The workloads are {', '.join(WORKLOADS)}; "
            f"the ratios are {', '.join(ratio.name for ratio in RATIOS)}"
        )
    wanted = {workload for name, workload in names.items() if not only or any(word in name for word in only)}
    return [workload for name, workload in WORKLOADS.items() if name in wanted]


def read_earlier(options: Options) -> dict[str, Any]:
    """Read the results to compare with, {} without --check, and see before measuring that --json can be written.

    Raises:
        OSError: the file to compare with cannot be read.
        ValueError: it holds no results; or the file to write exists already, or its folder does not exist.
    """
    if options.json is not None and (options.json.exists() or not options.json.absolute().parent.is_dir()):
        raise ValueError(f"--json {options.json}: the file exists already, or its folder does not exist")
    if options.check is None:
        return {}
    earlier: dict[str, Any] = json.loads(options.check.read_text(encoding="utf-8"))
    if not {"ratios", "spreads", "machine"} <= earlier.keys():
        raise ValueError(f"--check {options.check}: not a file that --json has written")
    return earlier


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


if __name__ == "__main__":
    sys.exit(main())

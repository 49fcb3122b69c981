"""Print how far JAX and PyTorch are apart: `python -m parity_tests`.
$ python -m parity_tests                             # every case, in float64 and float32
$ python -m parity_tests --case LSTM --dtype float64
$ python -m parity_tests --faults                    # also plant every fault, and check that each is noticed

The exit status is 1 if anything disagrees or a planted fault goes unnoticed, and 2 if nothing could be compared.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jax_attn.compiler import DeviceError, avoid_faults, require_device
from parity_tests.this_library.cases import CASES
from parity_tests.this_library.faults import FAULTS, Fault, plant_table
from parity_tests.this_library.report import (
    FaultRow,
    Results,
    as_fault_table,
    as_training_table,
    summarize_training,
)
from parity_tests.this_library.trainings import COMPARISONS, TRAININGS, Training
from parity_tests.your_port.measure.case import Case
from parity_tests.your_port.measure.draw import compare_case
from parity_tests.your_port.measure.jax_side import forget_programs
from parity_tests.your_port.measure.tables import as_table, summarize

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to compare."""

    case: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")] = ()
    """Names of cases, or parts of names; `training` is one of them. By default all."""
    dtype: tuple[Literal["float64", "float32", "bfloat16"], ...] = ("float64", "float32")
    """Each case runs in those for which it has inputs."""
    slow: bool = False
    """Also run the largest cases in the dtypes that compile long and show nothing new."""
    faults: bool = False
    """Also plant the faults of the compared cases."""


def main() -> int:
    """Compare, print, and return the exit status."""
    options = tyro.cli(Options, prog="python -m parity_tests", description=__doc__)
    all_names = ["training", *(case.name for case in CASES)]
    names = [name for name in all_names if not options.case or any(part in name for part in options.case)]
    if not names:
        return complain(f"no case has a name like {options.case}; there are: {', '.join(all_names)}")
    avoid_faults()
    try:
        require_device()
    except DeviceError as error:
        return complain(str(error))
    results = run_all(list_tasks(options, names))
    print_report(results)
    return int(results.failed > 0 or not all(fault.caught for fault in results.faults))


Task = tuple[str, Callable[[Results], None]]
"""What the progress bar shows, and the work, which adds to the results."""


def list_tasks(options: Options, names: list[str]) -> list[Task]:
    """List what is to be compared."""
    tasks: list[Task] = [
        (f"{case.name}, {dtype}", partial(compare, case, dtype))
        for case in CASES
        for dtype in options.dtype
        if case.name in names and (options.slow or dtype not in case.slow_dtypes)
    ]
    if "training" in names:
        tasks += [(f"training: {training.name}", partial(train, training)) for training in TRAININGS]
    if options.faults:
        tasks += [(f"fault: {fault.name}", partial(plant, fault)) for fault in FAULTS if fault.case in names]
        tasks += [(f"faults in PyTorch: {case.name}", partial(plant_all, case)) for case in CASES if case.name in names]
    return tasks


def compare(case: Case, dtype: str, results: Results) -> None:
    """Compare a case in one dtype; no row if the case has no inputs for that dtype."""
    measurements = compare_case(case, dtype)
    forget_programs()
    results.rows.extend([summarize(measurements)] if measurements else [])


def train(training: Training, results: Results) -> None:
    """Compare the trainings of one model."""
    results.trainings.extend(summarize_training(compare_training(training)) for compare_training in COMPARISONS)


def plant(fault: Fault, results: Results) -> None:
    """Plant a fault, and see whether it is noticed."""
    results.faults.append(FaultRow(fault.name, "JAX", fault.case, fault.is_caught()))


def plant_all(case: Case, results: Results) -> None:
    """Plant the mistakes of the harness's table in the case's PyTorch side."""
    for mistake, caught in plant_table(case):
        results.faults.append(FaultRow(mistake.words, "PyTorch", case.name, caught))
    forget_programs()


def run_all(tasks: list[Task]) -> Results:
    """Run the tasks under a bar that names the present one."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    results = Results([], [], [])
    with Progress(*columns, console=CONSOLE, transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for name, run in tasks:
            progress.update(bar, description=name)
            run(results)
            progress.advance(bar)
    return results


def print_report(results: Results) -> None:
    """Print the tables, and the failures in words."""
    if results.rows:
        CONSOLE.print(as_table(results.rows))
    for failure in (failure for row in results.rows for failure in row.failures):
        CONSOLE.print(failure, markup=False)
    if results.trainings:
        CONSOLE.print(as_training_table(results.trainings))
    if results.faults:
        table = as_fault_table(results.faults)
        if table.row_count:
            CONSOLE.print(table)
        CONSOLE.print(f"{sum(fault.caught for fault in results.faults)} of {len(results.faults)} planted faults caught")


def complain(message: str) -> int:
    """Print an error; return the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

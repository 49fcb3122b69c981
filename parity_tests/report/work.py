"""What a report is made of, as tasks that know nothing of each other: so that every core has something to do."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from parity_tests.cases import CASES
from parity_tests.compare import compare_case
from parity_tests.faults import FAULTS
from parity_tests.jax_side import forget_programs
from parity_tests.report.tables import FaultRow, Row, TrainingRow, summarize, summarize_training
from parity_tests.training.training import RUNS
from train.devices import usable_cores


@dataclass(frozen=True)
class Comparison:
    """A case in one dtype."""

    case: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.case}, {self.dtype}"

    def run(self) -> Row | None:
        """None: the case has no inputs for that dtype."""
        case = next(case for case in CASES if case.name == self.case)
        measurements = compare_case(case, self.dtype)
        forget_programs()
        return summarize(measurements) if measurements else None


@dataclass(frozen=True)
class Planting:
    """A fault, by its place in the list."""

    index: int

    def __str__(self) -> str:
        return f"fault: {FAULTS[self.index].name}"

    def run(self) -> FaultRow:
        fault = FAULTS[self.index]
        return FaultRow(fault.name, fault.side, fault.case, fault.is_caught())


@dataclass(frozen=True)
class Training:
    """The runs of one model, which share what PyTorch does in float64."""

    model: str

    def __str__(self) -> str:
        return f"training: {self.model}"

    def run(self) -> list[TrainingRow]:
        return [summarize_training(run.name, run.run()) for run in RUNS if run.name.startswith(self.model)]


Task = Comparison | Training | Planting


def default_jobs() -> int:
    """A process for each core, and never more than 8: each holds both frameworks."""
    return max(1, min(8, usable_cores()))


def run_all(tasks: Sequence[Task], jobs: int, done: Callable[[Task], None]) -> dict[Task, Any]:
    """Every task's result, in the order of the tasks; `done` is called as they end.

    Raises:
        RuntimeError: a task that could not be run, with its name and the reason.
    """
    run = _in_processes if jobs > 1 else _one_by_one
    results = {}
    for task, result in run(tasks, jobs):
        results[task] = result
        done(task)
    return {task: results[task] for task in tasks}


def _one_by_one(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Any]]:
    yield from ((task, task.run()) for task in tasks)


def _in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Any]]:
    # Spawned: a fork of a process in which JAX or PyTorch have started threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures: dict[Future[Any], Task] = {pool.submit(_run, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                task = futures[future]
                try:
                    yield task, future.result()
                except Exception as error:
                    raise RuntimeError(f"{task} could not be run: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _run(task: Task) -> Any:
    return task.run()

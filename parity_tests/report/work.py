"""The tasks of a report. They are independent, so that every core has something to do."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from parity_tests.cases import find_case
from parity_tests.compare import compare_case
from parity_tests.faults import FAULTS
from parity_tests.jax_side import forget_programs
from parity_tests.report.tables import FaultRow, Row, TrainingRow, summarize, summarize_training
from parity_tests.training.training import RUNS


@dataclass(frozen=True)
class Comparison:
    """A case in one dtype."""

    case: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.case}, {self.dtype}"

    def run(self) -> Row | None:
        """Compare; None if the case has no inputs for that dtype."""
        measurements = compare_case(find_case(self.case), self.dtype)
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
    """The runs of one model, which share PyTorch's training in float64."""

    model: str

    def __str__(self) -> str:
        return f"training: {self.model}"

    def run(self) -> list[TrainingRow]:
        return [summarize_training(run.name, run.run()) for run in RUNS if run.name.startswith(self.model)]


Task = Comparison | Training | Planting


def default_jobs() -> int:
    """One process for each core, at most 8: each holds both frameworks."""
    return min(8, os.cpu_count() or 1)


def run_all(tasks: Sequence[Task], jobs: int, done: Callable[[Task], None]) -> dict[Task, Any]:
    """Run every task; return the results in the order of the tasks, and call `done` as they end.

    Raises:
        RuntimeError: a task could not run; with its name and the reason.
    """
    results = {}
    for task, result in _in_processes(tasks, jobs) if jobs > 1 else ((task, task.run()) for task in tasks):
        results[task] = result
        done(task)
    return {task: results[task] for task in tasks}


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

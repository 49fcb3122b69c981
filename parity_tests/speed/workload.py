"""The records of the speed table. They know no framework: only a worker imports what it runs."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OURS = "ours"


class Program(NamedTuple):
    """What a contestant has built, ready to run."""

    run: Callable[[], Any]
    """One call, which returns when the result is there: this is what is timed."""
    outputs: Callable[[], Mapping[str, np.ndarray]]
    """What its answers are compared by; called once, before `run`, and it may be what compiles."""


@dataclass(frozen=True)
class Contestant:
    """One way to do a workload, which runs in a process of its own."""

    name: str
    build: str
    """`module:function` below `parity_tests.speed`; function(device, **settings) -> Program."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    units: int = 1
    """How many of the workload's units a call does: times are given for one."""
    compiles_cpp: bool = False
    """Whether it needs a C++ compiler (torch.compile does)."""
    for_gpu: bool = False
    """Whether it is written for a GPU, and takes part on no other device."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its process."""
    examples: int | None = None
    """Of how many examples, the first ones, it gives the outputs; None: of all."""
    another: bool = False
    """Whether it computes something else on purpose, and is compared with nothing."""

    def load(self, device: str) -> Program:
        """Import what it needs and build it; in its own process."""
        module, _, function = self.build.partition(":")
        program: Program = getattr(importlib.import_module(f"parity_tests.speed.{module}"), function)(
            device, **self.settings
        )
        return program


class Agreement(NamedTuple):
    """How far outputs may be apart: max|a − b| / max|b| of a tensor of floats; the share of rows of ids that differ."""

    floats: float = 1e-5
    ids: float = 0.0
    why: str = ""


EXACT = Agreement()
"""What two orders of float32 sums differ by."""


@dataclass(frozen=True)
class Workload:
    """What all its contestants do alike."""

    name: str
    unit: str
    """What is timed, in words."""
    contestants: tuple[Contestant, ...]
    agreement: Agreement = EXACT
    limit: Mapping[str, float] = field(default_factory=dict)
    """What a unit needs of the machine, by ceiling: `gemm` or `small gemm` in floating point operations, `tanh` in
    calls, `copy` in bytes read and written. They are taken one after the other."""
    rounds: int = 7
    has_memory: bool = True
    """Whether its memory is of interest."""

    def contestant(self, name: str) -> Contestant:
        return next(contestant for contestant in self.contestants if contestant.name == name)


@dataclass(frozen=True)
class Ratio:
    """One number of the table: how two contestants of a workload compare."""

    name: str
    workload: str
    above: tuple[str, ...]
    """What stands above the line; of several, the best that ran."""
    below: str = OURS
    goal: float | None = None
    memory: bool = False
    """Peak memory instead of time."""
    lower_is_better: bool = False
    small: bool = False
    """Whether `--check` measures it: it takes seconds."""

    def met(self, value: float | None) -> bool | None:
        """Whether the goal is reached; None where there is nothing to tell."""
        if value is None or self.goal is None:
            return None
        return value <= self.goal if self.lower_is_better else value >= self.goal

"""The records of the zoo: a port, the mistakes that are planted in it, and what the comparison says of each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch

from parity_tests.your_port.cause.cause import in_words
from parity_tests.your_port.compare import compare
from parity_tests.your_port.report import Report

PROGRAM = ""
"""The place of a mistake in the outermost module's own code."""


@dataclass(frozen=True)
class Bug:
    """A mistake as people make it when they port a model."""

    name: str
    """What the port gets as `bug`."""
    where: str | None
    """PyTorch's path of the submodule in whose own code it is, * for any number. After @ it is the first tensor that
    must differ: in a function, which has no submodules, or of a gradient. None: there is only one place to name."""
    cause: str
    """A pattern of the words that a right verdict has."""
    issue: str
    """The public issue that it is modelled on."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `compare`, where the weights are put into the wrong place."""


@dataclass(frozen=True)
class Port:
    """A PyTorch module and its port: right, or with one of the mistakes."""

    name: str
    torch: Callable[[], Any]
    jax: Callable[[str], Any]
    """(name of a bug, or "" for none) -> the JAX module."""
    inputs: tuple[Any, ...]
    bugs: tuple[Bug, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `compare`."""


@dataclass
class Result:
    """A port, right or with a bug, and what the comparison says about it once it has run."""

    port: Port
    bug: Bug | None
    report: Report | None = None
    error: str = ""
    """What was raised: then the port was not compared, and nothing was caught."""

    def run(self) -> "Result":
        """Compare in float64."""
        port, bug = self.port, self.bug
        torch.manual_seed(0)
        try:
            wrong = port.jax(bug.name if bug else "")
            options: dict[str, Any] = {**port.options, **(bug.options if bug else {})}
            self.report = compare(port.torch(), wrong, port.inputs, dtypes=("float64",), name=port.name, **options)
        except Exception as problem:  # one that fails is a result, too
            self.error = f"{type(problem).__name__}: {problem}"
        return self

    @property
    def caught(self) -> bool:
        """Whether the comparison speaks against the port. One that a right port stops is a false alarm."""
        return self.bug is None if self.report is None else not self.report.agrees

    @property
    def located(self) -> bool | None:
        """Whether the report names the place; None if there is none to name."""
        if self.bug is None or self.bug.where is None:
            return None
        found = None if self.report is None else self.report.divergence
        if found is None:
            return False
        if self.bug.where.startswith("@"):
            return fnmatchcase(found.tensor, self.bug.where[1:])
        return found.phase == "forward" and fnmatchcase(found.module, self.bug.where)

    @property
    def explained(self) -> bool | None:
        """Whether the report names the cause, and none beside it that is not confirmed; None if it names none."""
        found = None if self.report is None else self.report.divergence
        if found is None or self.bug is None or not found.causes:
            return None
        right = [re.search(self.bug.cause, cause.words, re.IGNORECASE) is not None for cause in found.causes]
        supposed = any(not cause.confirmed and not fits for cause, fits in zip(found.causes, right, strict=True))
        return any(right) and not supposed

    def __str__(self) -> str:
        """One line: the verdict on the verdict."""
        found = None if self.report is None else self.report.divergence
        said = self.error.partition("\n")[0]
        if found is not None:
            said = f"{found.tensor} inside of {found.module or 'the program'}; {in_words(found.found)}"
        if self.bug is None:
            words = "false alarm" if self.caught else "agrees"
        else:
            where = {True: ", located", False: ", NOT located", None: ""}[self.located]
            why = {True: "explained", False: "WRONG cause", None: "no cause"}[self.explained]
            words = f"caught{where}, {why}" if self.caught else "MISSED"
        name = f"{self.port.name}: {self.bug.name if self.bug else 'the right port'}"
        return f"{name}: {words}" + (f" [{said}]" if said else "")

"""The records of the zoo: a port, and the mistakes that are planted in it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

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

    def is_located(self, report: Report) -> bool:
        """Whether the report names the place."""
        found = report.divergence
        if found is None or self.where is None:
            return False
        if self.where.startswith("@"):
            return fnmatchcase(found.tensor, self.where[1:])
        return found.phase == "forward" and fnmatchcase(found.module, self.where)

    def is_explained(self, report: Report) -> bool | None:
        """Whether the report names the cause, and none beside it that is not confirmed; None if it names none."""
        named = () if report.divergence is None else report.divergence.causes
        right = [re.search(self.cause, cause.words, re.IGNORECASE) is not None for cause in named]
        supposed = any(not cause.confirmed and not fits for cause, fits in zip(named, right, strict=True))
        return any(right) and not supposed if named else None


@dataclass(frozen=True)
class Port:
    """A PyTorch module and its port: right, or with one of the mistakes."""

    name: str
    kind: str
    """NNX, Linen, Equinox or function."""
    torch: Callable[[], Any]
    jax: Callable[[str], Any]
    """(name of a bug, or "" for none) -> the JAX module."""
    inputs: tuple[Any, ...]
    bugs: tuple[Bug, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `compare`."""

    @property
    def lines(self) -> int:
        """The lines of user code: import, inputs, call, and each option and each name on a line of its own."""
        return 3 + sum(len(x) if isinstance(x, Mapping) else 1 for x in self.options.values())

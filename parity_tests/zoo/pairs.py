"""Modules of two frameworks, by people who have not seen this project, compared at the first try."""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from parity_tests.your_port.compare import compare

REASONS = ("cause:", "note:", "left over")
"""How the lines of a verdict begin that say why two differ."""


@dataclass(frozen=True)
class Pair:
    """A module of each framework, and how the two are compared."""

    name: str
    torch: Any
    jax: Any
    inputs: Any
    options: dict[str, Any] = field(default_factory=dict)
    agrees: bool = True
    """Whether they are known to be the same; the page on parity says why the others are not."""


def compare_all(library: str, pairs: Iterable[Pair]) -> bool:
    """Print a line for each pair that the command line asks for; return whether each verdict is the expected one."""
    expected = True
    for pair in pairs:
        if sys.argv[1:] and sys.argv[1].lower() not in f"{library} {pair.name}".lower():
            continue
        started = time.perf_counter()
        try:
            report = compare(pair.torch, pair.jax, pair.inputs, **pair.options)
            lines = [line.strip() for line in str(report).splitlines() if line.strip().startswith(REASONS)]
            verdict = "agrees" if report.agrees else "; ".join(["differs", *lines])
            expected &= report.agrees == pair.agrees
        except Exception as error:
            verdict, expected = f"{type(error).__name__}: {error}", False
        print(f"{library:9} {pair.name:29} {time.perf_counter() - started:4.1f} s  {verdict}", flush=True)
    return expected

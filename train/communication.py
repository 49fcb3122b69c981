"""What the devices of a mesh send each other, read from a compiled program."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
"""The first line of a computation; its instructions are indented."""

COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(-done)?\(")
"""A collective operation, after its shape. One that runs beside others begins in `-start` and ends in `-done`."""

ARRAY = re.compile(r"\b([a-z]+)(\d+)?\w*\[([\d,]*)\]")
"""An array's type, its bits, and its sizes: f32[16,8], pred[]."""

CALLED = re.compile(r"\b(?:calls|body|condition|to_apply|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Collective(NamedTuple):
    """An operation in which all devices of a group take part."""

    kind: str
    """One of `KINDS`."""
    arrays: int
    """The arrays that it carries."""
    bytes: int
    """The size of its result on each device."""
    times: int
    """How often the program runs it. A loop counts once if the program does not say how often it runs."""


def collectives(program: str) -> list[Collective]:
    """List the collective operations of a compiled program.

        collectives(jitted.lower(*arguments).compile().as_text())

    A call of `train.training.step.make_train_steps` loops over steps, and does not know how many: so what is listed is a step's.

    Args:
        program: XLA's text of it (HLO).
    """
    computations: dict[str, list[str]] = {}
    entry, lines = "", list[str]()
    for line in program.splitlines():
        found = COMPUTATION.match(line)
        if found:
            lines = computations[found[2]] = []
            entry = found[2] if found[1] else entry
        else:
            lines.append(line)
    if not entry:
        raise ValueError("the text must be that of a compiled program; it has no line that begins with ENTRY")
    return _collectives(computations, entry, 1)


def _collectives(computations: Mapping[str, Sequence[str]], name: str, times: int) -> list[Collective]:
    """List those of a computation that runs `times` times, and of all that it calls."""
    found = []
    for line in computations.get(name, ()):
        operation = COLLECTIVE.search(line)
        if operation:
            sizes = [size for size in map(_bytes, ARRAY.findall(operation[1])) if size]
            found.append(Collective(operation[2], len(sizes), sum(sizes), times))
        trips = TRIPS.search(line)
        for called in CALLED.findall(line):
            for other in re.findall(r"[\w.\-]+", called):
                found += _collectives(computations, other, times * int(trips[1] if trips else 1))
    return found


def _bytes(array: tuple[str, str, str]) -> int:
    """Return the size of an array in bytes; 0 for a token, which carries nothing."""
    kind, bits, sizes = array
    width = 8 if kind == "pred" else int(bits or 0)
    return math.ceil(width * math.prod(int(size) for size in sizes.split(",") if size) / 8)

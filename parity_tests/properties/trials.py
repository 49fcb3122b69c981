"""Try the properties on cases drawn at random, and count them: `python -m parity_tests.properties`.

    python -m parity_tests.properties                              100,000 cases of a new seed
    python -m parity_tests.properties --seed 7 --subject attend    those of a seed, of the subjects with such a name

Prints the seed, and a table of how many cases each property was tried on. The exit status is 1 if one does not hold;
the smallest case against it is printed, as hypothesis found it.
"""

import math
import multiprocessing
import os
import random
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from parity_tests.properties.answers import TORCH, forget_programs
from parity_tests.properties.properties import MANY, POISONS, PROPERTIES, Drawn, Property
from parity_tests.properties.subjects import SIZES, SUBJECTS

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to try."""

    cases: int = 100_000
    """How many cases at least, over all properties and subjects."""
    seed: int | None = None
    """A run's seed, to draw the same cases again; by default a new one."""
    subject: str = ""
    """Only the subjects with this in their name."""
    processes: int = os.cpu_count() or 1
    """How many at once; each takes a subject at a time."""


@dataclass(frozen=True)
class Tried:
    """A property of a subject, tried."""

    property_name: str
    subject: str
    cases: int
    seconds: float
    on_both: bool
    """Whether PyTorch's side was asked as well."""
    failure: str = ""


def cases(dtypes: tuple[str, ...]) -> st.SearchStrategy[Drawn]:
    """What a case may be."""
    return st.builds(
        Drawn,
        seed=st.integers(0, 2**32 - 1),
        special=st.lists(st.floats(-1, 1), min_size=1, max_size=4).map(tuple),
        scale=st.sampled_from((1.0, 0.1, 3.0)),
        lens=st.tuples(*[st.integers(0, MANY)] * SIZES["B"]),
        mask=st.one_of(st.just(-1), st.integers(0, 2**30 - 1)),
        poison=st.sampled_from(POISONS),
        dtype=st.sampled_from(dtypes),
    )


def try_property(chosen: Property, subject: str, examples: int, seed: int = 0) -> int:
    """Ask every side about so many cases, the same ones for the same seed; returns how many they were."""
    tried = 0

    @with_seed(zlib.crc32(f"{seed}/{chosen.name}/{subject}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=cases(chosen.dtypes))
    def check(drawn: Drawn) -> None:
        nonlocal tried
        tried += 1
        for side in chosen.sides:
            try:
                chosen.check(side, SUBJECTS[subject], drawn)
            except AssertionError as error:
                raise AssertionError(f"{chosen.name}, {subject}, {side.name}: {error}") from None

    check()
    return tried


def run(options: Options, seed: int) -> Iterator[list[Tried]]:
    """Subject by subject, each in one of a few processes."""
    subjects = [name for name in SUBJECTS if options.subject in name]
    asked = [(chosen, name) for chosen in PROPERTIES for name in chosen.subjects if name in subjects]
    per_share = options.cases / sum(chosen.share for chosen, _ in asked)
    plans = [(name, per_share, seed) for name in reversed(subjects)]  # the largest ones first
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        yield from pool.imap_unordered(try_subject, plans)


def try_subject(plan: tuple[str, float, int]) -> list[Tried]:
    """All properties of one subject."""
    torch.set_num_threads(1)
    subject, per_share, seed = plan
    rows = []
    for chosen in PROPERTIES:
        if subject not in chosen.subjects:
            continue
        start, failure, count, examples = time.process_time(), "", 0, math.ceil(chosen.share * per_share)
        try:
            count = try_property(chosen, subject, examples, seed)
        except Exception:
            failure = traceback.format_exc(limit=-3)
        seconds = time.process_time() - start
        rows.append(Tried(chosen.name, subject, count, seconds, TORCH in chosen.sides, failure))
    forget_programs()
    return rows


def as_table(rows: list[Tried]) -> Table:
    """A line for each property, and their sum."""
    table = Table("property", "subjects", "cases", "also of PyTorch", "CPU seconds", "failures")
    groups = [[row for row in rows if row.property_name == chosen.name] for chosen in PROPERTIES]
    for name, group in [*((g[0].property_name, g) for g in groups if g), ("all", rows)]:
        both = sum(row.cases for row in group if row.on_both)
        counts = (sum(row.cases for row in group), both, sum(row.seconds for row in group))
        failed = sum(bool(row.failure) for row in group)
        subjects = len({row.subject for row in group})
        table.add_row(name, str(subjects), f"{counts[0]:,}", f"{counts[1]:,}", f"{counts[2]:.0f}", str(failed))
    return table


def try_all(options: Options) -> list[Tried]:
    """Try, and print what was tried."""
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    again = f"python -m parity_tests.properties --cases {options.cases} --seed {seed}"
    CONSOLE.print(f"seed {seed}; the same cases again: {again}", soft_wrap=True)
    start, rows = time.perf_counter(), []
    for found in run(options, seed):
        rows += found
        CONSOLE.print(f"{found[0].subject}: {sum(row.cases for row in found):,}")
        for row in found:
            if row.failure:
                CONSOLE.print(row.failure, markup=False)
    CONSOLE.print(as_table(rows))
    CONSOLE.print(f"{sum(row.cases for row in rows):,} cases in {time.perf_counter() - start:.0f} s")
    return rows

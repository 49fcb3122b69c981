"""Check the properties on cases drawn at random, and count them: `python -m parity_tests.properties`.

    python -m parity_tests.properties                              100,000 cases of a new seed
    python -m parity_tests.properties --seed 7 --subject attend    the cases of a seed, of the subjects with such a name

Prints the seed, and a table of how many cases each property was checked on. The exit status is 1 if one does not hold;
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

from parity_tests.jax_side import forget_programs
from parity_tests.properties.properties import MANY, POISONS, PROPERTIES, Drawn, Property
from parity_tests.properties.subjects import SIZES, SUBJECTS

CONSOLE = Console(highlight=False)


@dataclass(frozen=True)
class Options:
    """What to check."""

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
    """A property of a subject, and on how many cases it was checked."""

    property_name: str
    subject: str
    cases: int
    seconds: float
    both: bool
    """Whether PyTorch's side was checked as well."""
    failure: str = ""


def cases(dtypes: tuple[str, ...]) -> st.SearchStrategy[Drawn]:
    """Draw a case."""
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
    """Check this many cases on every side, the same ones for the same seed; return how many they were."""
    tried = 0
    quiet = settings(deadline=None, database=None, print_blob=False, suppress_health_check=list(HealthCheck))

    @with_seed(zlib.crc32(f"{seed}/{chosen.name}/{subject}".encode()))
    @settings(quiet, max_examples=examples)
    @given(drawn=cases(chosen.dtypes))
    def check(drawn: Drawn) -> None:
        nonlocal tried
        tried += 1
        for side in chosen.sides:
            try:
                chosen.check(side, SUBJECTS[subject], drawn)
            except AssertionError as error:
                raise AssertionError(f"{chosen.name}, {subject}, {side}: {error}") from None

    check()
    return tried


def run(options: Options, seed: int) -> Iterator[list[Tried]]:
    """Check subject by subject, each in one of a few processes."""
    subjects = [name for name in SUBJECTS if options.subject in name]
    chosen = [(property_, name) for property_ in PROPERTIES for name in property_.subjects if name in subjects]
    per_share = options.cases / sum(property_.share for property_, _ in chosen)
    plans = [(name, per_share, seed) for name in reversed(subjects)]  # the largest ones first
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        yield from pool.imap_unordered(try_subject, plans)


def try_subject(plan: tuple[str, float, int]) -> list[Tried]:
    """Check all properties of one subject."""
    torch.set_num_threads(1)
    subject, per_share, seed = plan
    rows = []
    for chosen in (chosen for chosen in PROPERTIES if subject in chosen.subjects):
        start, failure, count = time.process_time(), "", 0
        try:
            count = try_property(chosen, subject, math.ceil(chosen.share * per_share), seed)
        except Exception:
            failure = traceback.format_exc(limit=-3)
        seconds = time.process_time() - start
        rows.append(Tried(chosen.name, subject, count, seconds, "torch_ref" in chosen.sides, failure))
    forget_programs()
    return rows


def as_table(rows: list[Tried]) -> Table:
    """Lay out a line for each property, and their sum."""
    table = Table("property", "subjects", "cases", "also of PyTorch", "CPU seconds", "failures")
    groups = {chosen.name: [row for row in rows if row.property_name == chosen.name] for chosen in PROPERTIES}
    for name, group in [*groups.items(), ("all", rows)]:
        if group:
            both = sum(row.cases for row in group if row.both)
            seconds = f"{sum(row.seconds for row in group):.0f}"
            failed = str(sum(bool(row.failure) for row in group))
            subjects = str(len({row.subject for row in group}))
            table.add_row(name, subjects, f"{sum(row.cases for row in group):,}", f"{both:,}", seconds, failed)
    return table


def try_all(options: Options) -> list[Tried]:
    """Check, and print what was checked."""
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    again = f"python -m parity_tests.properties --cases {options.cases} --seed {seed}"
    CONSOLE.print(f"seed {seed}; the same cases again: {again}", soft_wrap=True)
    start, rows = time.perf_counter(), list[Tried]()
    for found in run(options, seed):
        rows += found
        CONSOLE.print(f"{found[0].subject}: {sum(row.cases for row in found):,}")
        for failure in (row.failure for row in found if row.failure):
            CONSOLE.print(failure, markup=False)
    CONSOLE.print(as_table(rows))
    CONSOLE.print(f"{sum(row.cases for row in rows):,} cases in {time.perf_counter() - start:.0f} s")
    return rows

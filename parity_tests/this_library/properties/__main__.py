"""Check the properties on cases drawn at random, and count them.

    python -m parity_tests.this_library.properties                              100,000 cases of a new seed
    python -m parity_tests.this_library.properties --seed 7 --subject attend    these cases of a seed alone

The first case against a property ends the run with an error, which names it.
"""

import multiprocessing
import os
import secrets
from dataclasses import dataclass, field
from functools import partial

import tyro

from parity_tests.this_library.properties.properties import PROPERTIES, check_subject
from parity_tests.this_library.properties.subjects import SUBJECTS


@dataclass(frozen=True)
class Options:
    """What to check."""

    cases: int = 100_000
    """How many cases at least, over all properties and subjects."""
    seed: int = field(default_factory=lambda: secrets.randbelow(2**32))
    """A run's seed, to draw the same cases again; by default a new one."""
    subject: str = ""
    """Only the subjects with this in their name."""
    processes: int = os.cpu_count() or 1
    """How many at once; each takes a subject at a time."""


def main(options: Options) -> int:
    """Check subject by subject, each in one of a few processes; return the number of cases."""
    print(f"seed {options.seed}, --cases {options.cases}: with these the cases are the same", flush=True)
    subjects = [name for name in reversed(SUBJECTS) if options.subject in name]  # the largest ones first
    shares = sum(chosen.share for chosen in PROPERTIES for name in subjects if name in chosen.subjects)
    check = partial(check_subject, per_share=options.cases / shares, seed=options.seed)
    checked = 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for name, cases in zip(subjects, pool.imap(check, subjects), strict=True):
            print(f"{cases:>9,}  {name}", flush=True)
            checked += cases
    print(f"{checked:>9,}  cases, all right")
    return checked


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m parity_tests.this_library.properties", description=__doc__))

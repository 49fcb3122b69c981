"""`python -m parity_tests.properties`: see `trials`."""

import sys

import tyro

from parity_tests.properties import trials

if __name__ == "__main__":
    options = tyro.cli(trials.Options, prog="python -m parity_tests.properties", description=trials.__doc__)
    sys.exit(any(row.failure for row in trials.try_all(options)))

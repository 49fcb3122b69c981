"""`python -m parity_tests.zoo`: compare every port of the zoo, right and with mistakes, and print the score."""

import argparse
import sys

import jax

from jax_attn.compiler import avoid_faults


def main() -> int:
    """Run the chosen ports; return 1 if a right port does not agree, or a mistake is not caught."""
    from parity_tests.zoo import ZOO
    from parity_tests.zoo.planted import PROGRAMS, plant_all
    from parity_tests.zoo.port import run_all, summary

    parser = argparse.ArgumentParser(prog="python -m parity_tests.zoo", description=__doc__.partition(": ")[2])
    parser.add_argument("--only", default="", metavar="NAME", help="only ports and bugs with this in their name")
    parser.add_argument("--quick", action="store_true", help="float64 alone, compiled without most optimisations")
    parser.add_argument("--table", action="store_true", help="plant every mistake of the table instead")
    options = parser.parse_args()
    avoid_faults()
    jax.config.update("jax_disable_most_optimizations", options.quick)
    dtypes = ("float64",) if options.quick else ("float64", "float32")
    found = plant_all((*ZOO, *PROGRAMS)) if options.table else run_all(ZOO, options.only, dtypes)
    results = []
    for result in found:
        print(result, flush=True)
        results.append(result)
    if not results:
        parser.error(f"no port or bug has {options.only!r} in its name")
    print(f"\n{summary(results)}")
    return 0 if all(result.caught == (result.bug is not None) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

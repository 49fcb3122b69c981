"""`python -m parity_tests.zoo`: compare every port of the zoo, right and with mistakes, and print the score."""

import argparse
import sys

import jax


def main() -> int:
    """Run the chosen ports; return 1 if a right port does not agree, or a mistake is not caught."""
    from parity_tests.zoo.score import KINDS, choose, run_all, score

    parser = argparse.ArgumentParser(prog="python -m parity_tests.zoo", description=__doc__.partition(": ")[2])
    kinds = [kind.lower() for kind in KINDS]
    parser.add_argument("--kind", default="", choices=kinds, metavar="KIND", help=f"only one of {', '.join(kinds)}")
    parser.add_argument("--only", default="", metavar="NAME", help="only ports and bugs with this in their name")
    parser.add_argument("--quick", action="store_true", help="float64 alone, compiled without most optimisations")
    parser.add_argument("--table", action="store_true", help="plant every mistake of the table instead")
    options = parser.parse_args()
    if options.table:
        from parity_tests.zoo.planted import plant_all
        from parity_tests.zoo.score import ZOO

        named = []
        for found in plant_all(ZOO):
            print(found, flush=True)
            named.append(found.is_named)
        print(f"\n{sum(named)} of {len(named)} mistakes that change anything are named")
        return 0 if all(named) else 1
    chosen = choose(options.kind, options.only)
    if not chosen:
        parser.error(f"no port or bug has {options.only!r} in its name")
    jax.config.update("jax_disable_most_optimizations", options.quick)
    dtypes = ("float64",) if options.quick else ("float64", "float32")
    results = []
    for result in run_all(chosen, dtypes):
        print(result, flush=True)
        results.append(result)
    print("\n" + score(results))
    return 0 if all(result.caught == (result.bug is not None) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

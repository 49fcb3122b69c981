"""`python -m parity_tests.your_port compare port.py:build`: see `command`."""

import sys

from parity_tests.your_port.command import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["compare"]:
        print("error: the first argument must be compare", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[2:]))

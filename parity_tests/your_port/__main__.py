"""`python -m parity_tests.your_port compare port.py:build`: see `command`."""

import sys

from parity_tests.your_port.command import main

if __name__ == "__main__":
    command, *arguments = sys.argv[1:] or [""]
    if command not in ("compare", "-h", "--help"):
        print("error: write python -m parity_tests.your_port compare FILE.py:build", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(arguments if command == "compare" else ["--help"]))

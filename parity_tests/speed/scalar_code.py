"""Which kernels of a compiled program compute one number at a time: `python -m parity_tests.speed.scalar_code`.

On a CPU, XLA fuses the slice that a loop takes of its inputs into the arithmetic behind it, and where LLVM then cannot see
that neighbours in memory are neighbours in time, a tanh is computed for one number where it could be for sixteen. An
LSTM's step was twice as slow for that. It depends on XLA's version and on the shapes, and nothing else shows it.

What is looked at is the code of one training step of W1, as LLVM has left it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from parity_tests.speed.start import PROGRAM, arguments_of, with_this_package

ARITHMETIC = re.compile(r"= f(?:add|sub|mul|div) .*?(float|<\d+ x float>) ")
MOST_SCALARS = 8
"""A kernel may have so many scalar operations and no others: sums of few numbers, or a bias correction."""


def scalar_kernels(folder: Path) -> dict[str, int]:
    """The kernels without any arithmetic on vectors, and how many scalar operations each has."""
    found = {}
    for file in sorted(folder.glob("*.ir-with-opt.ll")):
        kinds = ARITHMETIC.findall(file.read_text(encoding="utf-8"))
        if len(kinds) > MOST_SCALARS and set(kinds) == {"float"}:
            found[file.name.removesuffix(".ir-with-opt.ll")] = len(kinds)
    return found


def compile_step(name: str, folder: Path, flags: str = "") -> None:
    """One training step of a translator in a process of its own, its code left in a folder."""
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_epoch.* {flags}"
    environment: Mapping[str, str] = {
        **with_this_package(os.environ),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {dump}",
    }
    command = [sys.executable, str(PROGRAM), *arguments_of(name, folder)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Print what was found; 1 if there is any."""
    with tempfile.TemporaryDirectory(prefix="scalar-code-") as folder:
        compile_step("w1", Path(folder))
        found = scalar_kernels(Path(folder))
        looked_at = len(list(Path(folder).glob("*.ir-with-opt.ll")))
    for kernel, count in found.items():
        print(f"{kernel}: {count} operations, each on one number")
    print(f"{len(found)} of {looked_at} kernels of a training step of W1 compute one number at a time")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

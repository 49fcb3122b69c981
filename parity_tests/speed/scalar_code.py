"""Which kernels compute a tanh or an exponential of one number at a time: `python -m parity_tests.speed.scalar_code`.

XLA fuses arithmetic with whatever brings it its numbers, the slice that a loop takes of its inputs for one. Where LLVM
then cannot see that neighbours in the result are neighbours in memory, it makes scalar code, and a tanh is computed for
one number where it could be for sixteen. An LSTM's step was twice as slow for that. It depends on XLA's version and on
the shapes, and nothing else shows it.

What is looked at is the code of one training step, as LLVM has left it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

from parity_tests.speed.start import PROGRAM, arguments_of, with_this_package

ARITHMETIC = re.compile(r"= f(?:add|sub|mul|div) .*?(float|<\d+ x float>) ")
FUSION = re.compile(r"%(\S+) = f32\[([\d,]+)\]\S* fusion\(.*calls=%([\w.\-]+)")
FUNCTION = re.compile(r" (?:tanh|exponential|exponential-minus-one|logistic)\(")
FEWEST = 4096
"""Results of a kernel from which on its code matters."""


def scalar_kernels(folder: Path) -> list[str]:
    """The kernels that compute such functions of many numbers without any arithmetic on vectors."""
    (program,) = folder.glob("*train_epoch*.cpu_after_optimizations.txt")
    text = program.read_text(encoding="utf-8")
    bodies = {body.split(" ", 1)[0]: body for body in re.split(r"\n%", text)}
    found = []
    for name, shape, body in FUSION.findall(text):
        if prod(map(int, shape.split(","))) >= FEWEST and FUNCTION.search(bodies.get(body, "")):
            kinds = [kind for file in _code(folder, name) for kind in ARITHMETIC.findall(file.read_text("utf-8"))]
            if "float" in kinds and set(kinds) == {"float"}:
                found.append(f"{name} [{shape}]")
    return found


def _code(folder: Path, kernel: str) -> list[Path]:
    names = (
        kernel,
        f"{kernel}_kernel_module",
        f"__compute_module_{kernel}",
        f"__compute_module_{kernel}_kernel_module",
    )
    return [file for name in names for file in folder.glob(f"*.{name}.ir-with-opt.ll")]


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
    count = 0
    for name in ("w1", "w2"):
        with tempfile.TemporaryDirectory(prefix="scalar-code-") as folder:
            compile_step(name, Path(folder))
            found = scalar_kernels(Path(folder))
        print(f"{name.upper()}: {', '.join(found) or 'none'}")
        count += len(found)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

"""Write PyTorch's side of a comparison into a file, for a machine without PyTorch (see `golden`).

    python -m parity_tests.your_port.dump model.py:build --out torch.npz

`build()` in model.py returns (module, inputs); the inputs are a tuple of positional arguments, or a dict of keywords.
"""

import platform
import runpy
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from parity_tests.your_port.golden import write_golden
from parity_tests.your_port.measure.case import name_of_draw
from parity_tests.your_port.measure.comparison import DRAWS, run_torch_side
from parity_tests.your_port.measure.numbers import make_numbers
from parity_tests.your_port.weights.torch_program import read_program


@dataclass(frozen=True)
class Options:
    """What to write."""

    build: Annotated[str, tyro.conf.Positional]
    """A file and a function in it, such as model.py:build."""
    out: Path
    """The file to write; it must not exist."""
    weights: Literal["drawn", "own"] = "drawn"
    """Drawn weights show mistakes that zeros and ones hide; `own` are those of the module that was built."""
    dtype: tuple[Literal["float64", "float32", "bfloat16"], ...] = ("float64", "float32")
    """The dtypes in which JAX will be compared."""
    seed: int = 0
    """Of PyTorch's generator while the module is built."""


def main() -> int:
    """Run PyTorch, write the file, and return the exit status."""
    options = tyro.cli(Options, prog="python -m parity_tests.your_port.dump", description=__doc__)
    try:
        if options.out.exists() or not options.out.absolute().parent.is_dir():
            raise ValueError(f"{options.out} exists already, or its folder does not")
        torch.manual_seed(options.seed)
        module, inputs = _built(options.build)
        versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
        facts = {"versions": versions, "seed": options.seed, "build": options.build}
        record = {**facts, **dump(module, inputs, options.weights == "own", options.dtype)}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_golden(options.out, record)
    print(f"{options.out}: {', '.join(options.dtype)}, {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


def dump(module: torch.nn.Module, inputs: Any, own: bool, dtypes: tuple[str, ...]) -> dict[str, Any]:
    """Run a module in each dtype, on as many draws as a comparison needs, and return the record of everything."""
    original = read_program(module, inputs, weights=module.state_dict() if own else None)
    case = original.case()
    given: dict[str, Any] = {dtype: {} for dtype in dtypes}
    runs: dict[str, Any] = {dtype: {run: {} for run in (dtype, "float64", "float32")} for dtype in dtypes}
    for dtype in dtypes:
        for draw in range(1 if dtype == "float64" or own else DRAWS):
            variant = replace(case.variants[0], name=name_of_draw(case.variants[0].name, draw))
            numbers = make_numbers(case, variant, dtype)
            for run_dtype, by_name in runs[dtype].items():
                by_name[variant.name] = run_torch_side(case, variant, numbers, dtype, run_dtype, record=draw == 0)
            parts = {part: getattr(numbers, part) for part in ("inputs", "weights", "buffers", "differentiated")}
            given[dtype][variant.name] = {**parts, "directions": numbers.directions(runs[dtype][dtype][variant.name])}
    described = {"case": original.name, "inputs": original.inputs, "weights": original.weights}
    return {**described, "numbers": given, "runs": runs}


def _built(place: str) -> tuple[torch.nn.Module, Any]:
    """Import the file and call its function."""
    file, colon, name = place.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ValueError(
            f"{place} must be a file and a function in it, such as model.py:build; there is no file {file!r}"
        )
    sys.path.insert(0, str(Path(file).absolute().parent))
    build = runpy.run_path(file).get(name)
    if build is None:
        raise ValueError(f"{file} has no function {name}")
    built = build()
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise ValueError(f"{place} must return (nn.Module, inputs); got {type(built).__name__}")
    return built


if __name__ == "__main__":
    sys.exit(main())

"""Write PyTorch's side of a comparison into a file, for a machine without PyTorch (see `golden`).

    python -m parity_tests.your_port.dump model.py:build --out torch.npz

`build()` in model.py returns (module, inputs); the inputs are a tuple of positional arguments, or a dict of keywords.
"""

import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from parity_tests.your_port.golden import Recorder
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
        facts = {"versions": _versions(), "seed": options.seed, "weights": options.weights, "build": options.build}
        record = dump(module, inputs, options.weights == "own", options.dtype, facts)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    record.write(options.out)
    print(f"{options.out}: {len(record.header['runs'])} runs, {options.out.stat().st_size / 1e6:.1f} MB")
    return 0


def dump(
    module: torch.nn.Module, inputs: Any, own: bool, dtypes: tuple[str, ...], facts: Mapping[str, Any]
) -> Recorder:
    """Run a module in each dtype, on as many draws as a comparison needs, and record everything."""
    original = read_program(module, inputs, weights=module.state_dict() if own else None)
    case = original.case()
    variant = case.variants[0]
    record = Recorder(original, variant.name, facts)
    for dtype in dtypes:
        for draw in range(1 if dtype == "float64" or own else DRAWS):
            numbers = make_numbers(case, replace(variant, name=name_of_draw(variant.name, draw)), dtype)
            for run_dtype in dict.fromkeys((dtype, "float64", "float32")):
                run = run_torch_side(case, variant, numbers, dtype, run_dtype, record=draw == 0)
                record.add_run(draw, dtype, run_dtype, run)
                if run_dtype == dtype:
                    record.add_numbers(draw, dtype, numbers, run)
    return record


def _built(place: str) -> tuple[torch.nn.Module, Any]:
    """Import the file and call its function."""
    file, colon, name = place.rpartition(":")
    if not colon or not Path(file).is_file():
        raise ValueError(
            f"{place} must be a file and a function in it, such as model.py:build; there is no file {file!r}"
        )
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).absolute().parent))
    spec.loader.exec_module(loaded)
    build: Callable[[], Any] | None = getattr(loaded, name, None)
    if build is None:
        raise ValueError(f"{file} has no function {name}")
    built = build()
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise ValueError(f"{place} must return (nn.Module, inputs); got {type(built).__name__}")
    return built


def _versions() -> dict[str, str]:
    try:
        own = version("jax-attn")
    except PackageNotFoundError:
        own = "not installed"
    return {"torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__, "jax-attn": own}


if __name__ == "__main__":
    sys.exit(main())

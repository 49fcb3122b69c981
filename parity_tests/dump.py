"""Write PyTorch's side of a comparison into a file, for a machine without PyTorch (see `parity_tests.golden`).

    python -m parity_tests.dump model.py:build --out torch.npz

`build()` in model.py returns (module, inputs); the inputs are a tuple of positional arguments, or a dict of keywords.
"""

import copy
import importlib.util
import inspect
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from jax_attn.weights import to_numpy
from parity_tests.case import Case, JaxSide, Variant
from parity_tests.comparison import DRAWS, name_of_draw
from parity_tests.golden import Recorder
from parity_tests.numbers import make_numbers, rounded
from parity_tests.taps import recording
from parity_tests.torch_side import run_torch, torch_module


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
    options = tyro.cli(Options, prog="python -m parity_tests.dump", description=__doc__)
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
    named = inputs if isinstance(inputs, Mapping) else _by_name(module, inputs)
    variant = Variant("recorded inputs", {name: _wide(x) for name, x in named.items()})
    side = torch_module(lambda options, inputs: copy.deepcopy(module))
    case = Case(type(module).__name__, (variant,), side, JaxSide(lambda *_: None))
    record = Recorder(case, variant, facts)
    for dtype in dtypes:
        for draw in range(1 if dtype == "float64" or own else DRAWS):
            numbers = make_numbers(case, replace(variant, name=name_of_draw(variant.name, draw)), dtype)
            if own:
                weights = {name: rounded(to_numpy(x), dtype) for name, x in module.named_parameters()}
                numbers = replace(numbers, weights=weights)
            for run_dtype in dict.fromkeys((dtype, "float64", "float32")):
                with recording() if draw == 0 else nullcontext() as trace:
                    run = replace(run_torch(case, variant, numbers, run_dtype), trace=trace)
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


def _by_name(module: torch.nn.Module, inputs: Any) -> dict[str, Any]:
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    names = list(inspect.signature(module.forward).parameters)
    if len(given) > len(names):
        raise ValueError(f"there are {len(given)} inputs, and the module takes {names}")
    return dict(zip(names, given, strict=False))


def _wide(x: Any) -> Any:
    """Make NumPy arrays of tensors, floats in float64."""
    if isinstance(x, tuple | list):
        return tuple(_wide(part) for part in x)
    array = None if x is None else to_numpy(x)
    return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


def _versions() -> dict[str, str]:
    try:
        own = version("jax-attn")
    except PackageNotFoundError:
        own = "not installed"
    return {"torch": torch.__version__, "python": platform.python_version(), "numpy": np.__version__, "jax-attn": own}


if __name__ == "__main__":
    sys.exit(main())

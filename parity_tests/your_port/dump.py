"""Write PyTorch's side of a comparison into a file, for a machine without PyTorch.
$ python -m parity_tests.your_port.dump model.py:build --out torch.npz
$ python -m parity_tests.your_port.dump model.py:build --out torch --large

The function `build` in model.py returns (module, inputs). The inputs are a tuple of positional arguments, or a dict of
keywords.

A large model is written with its own weights into a folder, tensor by tensor. It runs in its own dtype and in float64
(`--truth`), in which the same module is converted in place. So nothing is held twice.
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from parity_tests.your_port.command import call_builder, in_one_line
from parity_tests.your_port.golden import GoldenFolder, write_golden
from parity_tests.your_port.measure.arrays import to_numpy
from parity_tests.your_port.measure.case import DTYPES, TorchSide
from parity_tests.your_port.measure.numbers import make_numbers
from parity_tests.your_port.measure.taps import recording
from parity_tests.your_port.measure.torch_side import TORCH_DTYPES, run_module, state_in_dtype
from parity_tests.your_port.trained import most_common_dtype
from parity_tests.your_port.weights.original import Original, read_inputs
from parity_tests.your_port.weights.torch_program import describe_weights, integers_of, read_program, torch_side


@dataclass(frozen=True)
class Options:
    """What to write."""

    build: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py:FUNCTION")]
    """A file and a function in it, such as model.py:build."""
    out: Path
    """The file to write, with --large the folder; it must not exist."""
    weights: Literal["drawn", "own"] = "drawn"
    """Drawn weights show mistakes that zeros and ones hide; `own` are those of the module that was built."""
    dtype: tuple[Literal["float64", "float32", "bfloat16"], ...] = ()
    """The dtypes in which JAX will be compared; by default float64 and float32, of a large model its own."""
    large: bool = False
    """Write a folder, with the module's own weights and without gradients but those of --gradients."""
    gradients: tuple[str, ...] = ()
    """With --large: parameters whose gradients are compared, such as *.3.q_proj.weight."""
    truth: Literal["float64", "float32"] = "float64"
    """With --large: the dtype in which PyTorch's own rounding is measured; float32 takes half the memory, and is for
    bfloat16 alone."""


def main() -> int:
    """Run PyTorch, write the file, and return the exit status."""
    options = tyro.cli(Options, prog="python -m parity_tests.your_port.dump", description=__doc__)
    try:
        if options.out.exists() or not options.out.absolute().parent.is_dir():
            raise ValueError(f"{options.out} exists already, or its folder does not")
        torch.manual_seed(0)
        built = call_builder(options.build)
        if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
            raise ValueError(f"{options.build} must return (nn.Module, inputs); got {type(built).__name__}")
        module, inputs = built
        versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
        facts = {"versions": versions, "build": options.build}
        if options.large:
            written = dump_large(module, inputs, options.out, facts, options.dtype, options.gradients, options.truth)
        else:
            written = options.dtype or ("float64", "float32")
            write_golden(options.out, {**facts, **dump(module, inputs, options.weights == "own", written)})
    except Exception as error:  # also what the module raises
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    files = options.out.iterdir() if options.large else [options.out]
    print(f"{options.out}: {', '.join(written)}, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")
    return 0


def dump(module: torch.nn.Module, inputs: Any, own: bool, dtypes: tuple[str, ...]) -> dict[str, Any]:
    """Run a module in each dtype, on as many draws as a comparison needs, and return the record of everything."""
    original = read_program(module, inputs, weights=module.state_dict() if own else None)
    given: dict[str, Any] = {dtype: {} for dtype in dtypes}
    runs: dict[str, Any] = {dtype: {run: {} for run in (dtype, "float64", "float32")} for dtype in dtypes}
    for dtype in dtypes:
        first = original.draw(dtype)
        for drawn in islice(first.redrawn(), 1 if own else None):
            numbers, variant = drawn.numbers, drawn.variant
            for run_dtype, by_name in runs[dtype].items():
                by_name[variant.name] = drawn.in_torch(run_dtype, record=drawn is first)
            parts = {part: getattr(numbers, part) for part in ("inputs", "weights", "buffers", "differentiated")}
            given[dtype][variant.name] = {**parts, "directions": numbers.directions(runs[dtype][dtype][variant.name])}
    described = {name: getattr(original, name) for name in ("inputs", "weights", "integers")}
    return {"case": original.name, **described, "numbers": given, "runs": runs}


def dump_large(
    module: torch.nn.Module,
    inputs: Any,
    out: Path,
    facts: dict[str, Any],
    dtypes: Sequence[str] = (),
    gradients: Sequence[str] = (),
    truth: str = "float64",
) -> Sequence[str]:
    """Run a module in its own dtype and in the truth's, and write a folder tensor by tensor. The module is converted.

    Args:
        facts: what the folder says beside the runs.
        dtypes: one dtype; by default that of most of the module's numbers.
        gradients: patterns of the parameters that get one.

    Returns:
        the dtype.

    Raises:
        ValueError: the module cannot be run, or a pattern fits no parameter.
    """
    if len(dtypes) > 1:
        raise ValueError(f"--large takes one --dtype; got {' '.join(dtypes)}")
    given, described = read_inputs(inputs, module), describe_weights(module)
    (dtype,) = dtypes or [most_common_dtype(described) or "float32"]
    if dtype not in DTYPES:
        raise ValueError(f"the module is {dtype}, in which nothing is compared: give --dtype {' or '.join(DTYPES)}")
    if truth == "float32" and dtype != "bfloat16":
        raise ValueError(f"--truth float32 is for bfloat16 alone, and shows no rounding of {dtype}: leave it out")
    chosen = {name for name, _ in module.named_parameters() if any(fnmatchcase(name, each) for each in gradients)}
    if unknown := [each for each in gradients if not any(fnmatchcase(name, each) for name in chosen)]:
        raise ValueError(f"--gradients {unknown[0]} fits no parameter; they are called like {described[0].name}")
    for name, x in module.named_parameters():
        x.requires_grad_(name in chosen)
    side = torch_side(module, None, given, train=False, gradients=bool(gradients))
    integers = integers_of(module)
    original = Original(type(module).__name__, TorchSide(side.call), given, described, integers=integers)
    case = original.case()
    variant = case.variants[0]
    drawn = make_numbers(case, variant, dtype)
    with GoldenFolder(out) as folder:
        state = state_in_dtype(module.eval(), TORCH_DTYPES[dtype]).state_dict()
        kept = {weight.name: folder.keep(to_numpy(state[weight.name])) for weight in described if weight.is_first}
        del state  # it holds the numbers in this dtype
        weights, buffers = ({n: x for n, x in kept.items() if (n in chosen) is wanted} for wanted in (True, False))
        differentiated = drawn.differentiated if gradients else ()
        numbers = replace(drawn, weights=weights, buffers=buffers, differentiated=differentiated)
        runs: dict[str, Any] = {}
        for run_dtype in dict.fromkeys((dtype, truth, "float32" if dtype == "float64" else dtype)):
            state_in_dtype(module, TORCH_DTYPES[run_dtype])
            with recording(keep=folder.keep) as trace:
                run = run_module(case, variant, module, numbers, run_dtype)
            outputs, gradients_kept = (
                {name: None if x is None else folder.keep(x) for name, x in part.items()}
                for part in (run.outputs, run.gradients)
            )
            kept_run = replace(run, outputs=outputs, gradients=gradients_kept, trace=trace)
            kept_run.require_defined()
            runs[run_dtype] = {variant.name: kept_run}
        parts = {part: getattr(numbers, part) for part in ("inputs", "weights", "buffers", "differentiated")}
        parts["directions"] = numbers.directions(runs[truth][variant.name])
        record = {"case": original.name, "inputs": given, "weights": described, "integers": integers, "truth": truth}
        folder.finish({**facts, **record, "numbers": {dtype: {variant.name: parts}}, "runs": {dtype: runs}})
    return (dtype,)


if __name__ == "__main__":
    sys.exit(main())

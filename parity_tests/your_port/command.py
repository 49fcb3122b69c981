"""Compare a port from the command line, as continuous integration and agents do.
$ jax-attn compare port.py:build --json port.json --markdown port.md
$ jax-attn compare --compiled port.py:build
$ jax-attn compare --weights model.safetensors checkpoints/1000

The function `build` in port.py returns the arguments of `compare`: a tuple (torch_module, jax_module, inputs), or a
dict with any of them by name. With --compiled it returns (function or module, inputs). With --weights it is left out,
or returns a dict of names, layout, load and ignore.

The exit status is 0 if the two agree, 1 if they differ, and 2 if they cannot be compared: then one line says why, and
what to do. docs/porting.md says what each line of the verdict asks for.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jax_attn.compiler import require_device

if TYPE_CHECKING:
    from parity_tests.your_port.record import Record

MEMORY = ("can't allocate memory", "RESOURCE_EXHAUSTED", "out of memory", "Unable to allocate", "MemoryError")
"""What PyTorch, JAX and NumPy write into an error when the memory is full; they have no common class."""
REMEDY = "use smaller inputs or fewer layers, or compare less: dtypes=('float64',), gradients=False"


NO_FILES = (Path(), Path())
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class Options:
    """What to compare, and what to write."""

    build: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py:FUNCTION", help_behavior_hint="")] = ""
    """A file and a function in it, such as port.py:build."""
    weights: Annotated[tuple[Path, Path], tyro.conf.arg(metavar="TORCH JAX", help_behavior_hint="")] = (
        NO_FILES  # not None, with which tyro would take what stands behind the two, too
    )
    """Compare two checkpoints, PyTorch's and JAX's: files or folders of safetensors, torch.save, NumPy or Orbax."""
    json: OptionalFile = None
    """Write everything that was found to this file."""
    markdown: OptionalFile = None
    """Write a table for a pull request to this file."""
    compiled: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Hold a compiled JAX program to its own operations, without PyTorch, at the sizes that will run."""
    blind: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also say which known mistakes would not have been seen with these inputs and weights."""

    @property
    def name(self) -> str:
        """What a record of an error is called."""
        return self.build or " ".join(map(str, self.weights))


def main(arguments: Sequence[str] | None = None, isolated: bool = True) -> int:
    """Run the command line, and return the exit status.

    Args:
        isolated: compare in a process of its own, so that nothing that the builder does to it (an exit, a closed
            output) passes as a verdict.
    """
    options = tyro.cli(Options, prog="jax-attn compare", description=__doc__, args=arguments)
    if problem := _problem_of(options):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for file in (options.json, options.markdown):
        if file is not None and not file.absolute().parent.is_dir():
            print(f"error: the folder of {file} does not exist", file=sys.stderr)
            return 2
    status, lines = (_run_isolated if isolated else run)(options)
    print("\n".join(lines), file=sys.stderr if status == 2 else sys.stdout)
    return status


def _problem_of(options: Options) -> str:
    if options.compiled and options.blind:
        return "--compiled holds a JAX program to its own operations, without PyTorch: leave --blind out"
    if options.weights == NO_FILES:
        return "" if options.build else "give a file and a function in it, such as port.py:build, or --weights"
    return "--weights runs no program: leave --compiled and --blind out" if options.compiled or options.blind else ""


def _run_isolated(options: Options) -> tuple[int, list[str]]:
    """Do what `run` does in a new process."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "verdict.json"
        process = get_context("spawn").Process(target=_write_verdict, args=(options, file))
        process.start()
        process.join()
        if file.is_file():
            status, lines = json.loads(file.read_text("utf-8"))
            return status, lines
    code = process.exitcode or 0
    ended = f"ended the process with status {code}, before there was a verdict; let it return"
    if code < 0:
        ended = f"was killed by signal {-code}, as a system does when its memory is full: {REMEDY}"
    from parity_tests.your_port.record import Record

    lines = [f"error: {options.name} {ended}"]
    Record(options.name, lines).write(options.json, options.markdown)
    return 2, lines


def _write_verdict(options: Options, file: Path) -> None:
    verdict = json.dumps(run(options))
    file.write_text(verdict, encoding="utf-8")


def run(options: Options) -> tuple[int, list[str]]:
    """Compare, and write the files; return the exit status and the lines to print."""
    from parity_tests.your_port.record import Record, Verdict

    files = [file and file.absolute() for file in (options.json, options.markdown)]  # before the builder goes elsewhere
    try:
        record = _compare(options)
    except (Exception, SystemExit) as error:  # of the user's code too: the two were not compared
        record = Record(options.name, [f"error: {in_one_line(error)}"])
    try:
        record.write(*files)
    except OSError as error:
        return 2, [f"error: {error}"]
    return list(Verdict).index(record.verdict), [*record.lines]


def _compare(options: Options) -> Record:
    """Call the builder, and compare what it returns."""
    weights = [file.absolute() for file in options.weights]  # before the builder goes elsewhere
    if find_spec("torch") is not None:  # not where PyTorch's side is a file
        import torch

        torch.manual_seed(0)  # so that a builder that draws its inputs draws the same ones in every run
    try:
        built = call_builder(options.build) if options.build else {}
    except BuildError:
        require_device()  # without one, this is the reason
        raise
    require_device()  # after the builder, which may set flags before JAX starts
    if options.weights != NO_FILES:
        return _compare_weights(weights, options.build, built)
    if options.compiled:
        if not (isinstance(built, tuple) and len(built) == 2):
            raise BuildError(f"{options.build} must return (function or module, inputs); got {type(built).__name__}")
        from parity_tests.your_port.compiled import compare_compiled

        return compare_compiled(*built).record
    from parity_tests.your_port.compare import compare
    from parity_tests.your_port.dumped import compare_dump, is_dump

    if isinstance(built, tuple) and len(built) in (2, 3):
        built = dict(zip(("torch_module", "jax_module", "inputs"), built, strict=False))
    if not isinstance(built, Mapping):
        raise BuildError(
            f"{options.build} must return (torch_module, jax_module, inputs), or a dict of compare's arguments; "
            f"got {type(built).__name__}"
        )
    first = built.get("torch_module")
    if options.blind and isinstance(first, str | Path):
        raise BuildError(f"--blind makes mistakes in PyTorch's module, and {first} is a record of its runs")
    if "inputs" in built and is_dump(first):
        return compare_dump(**built).record
    report = compare(**built)
    if options.blind:
        report.blind  # noqa: B018 (it is kept, and the verdict then has its line)
    return report.record


def _compare_weights(weights: Sequence[Path], build: str, built: Any) -> Record:
    from rich.console import Console
    from rich.progress import track

    from parity_tests.your_port.checkpoint import compare_weights

    said = ("names", "layout", "load", "ignore")
    if not isinstance(built, Mapping) or not built.keys() <= set(said):
        raise BuildError(f"with --weights, {build} must return a dict of some of {', '.join(said)}; got {built!r:.200}")
    screen = Console(stderr=True)
    bar = partial(track, description="tensors", console=screen, transient=True, disable=not screen.is_terminal)
    return compare_weights(*weights, **built, track=bar).record


def in_one_line(error: BaseException) -> str:
    """Say what was raised; what was raised on purpose says what to do."""
    from parity_tests.your_port.record import printable

    on_purpose = isinstance(error, ValueError | OSError)
    text = " ".join(f"{error if on_purpose else f'{type(error).__name__}: {error}'}".split())
    return printable(f"out of memory: {REMEDY} ({text})" if any(sign in text for sign in MEMORY) else text)


class BuildError(ValueError):
    """A place that is no function in a file, or a function that raises."""


def call_builder(place: str) -> Any:
    """Import the file of `port.py:build`, call the function, and return what it returns.

    Raises:
        BuildError: there is no such file or function, or it raises; the message says where.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file).absolute()
    if not colon or path.suffix != ".py" or not path.is_file():
        raise BuildError(
            f"{place} must be a file and a function in it, such as port.py:build; there is no file {file!r}"
        )
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(f"_builder_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, such as Linen's modules, look their module up
    try:
        spec.loader.exec_module(module)
        build = getattr(module, name, None)
        if callable(build):
            return build()
    except BaseException as error:  # also an exit, and what skips a test
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise BuildError(f"{place} raised {type(error).__name__}{where}: {error}") from error
    raise BuildError(f"{file} has no function {name}")

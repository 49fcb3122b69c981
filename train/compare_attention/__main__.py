"""Is the attention right, and which scoring function? `python -m train.compare_attention [PRESET] [OPTIONS]`.

$ python -m train.compare_attention                             # every attention with seeds 0, 1 and 2
$ python -m train.compare_attention --attentions additive dot --seeds 0 1 --epochs 2
$ python -m train.compare_attention --exercises runs/exercises  # the book's exercises on scoring functions

Trains the same model with every attention and several seeds, each run by `python -m train.nmt` in a process of its own,
and prints one table. What stands on the command line beside the options below is handed on to it: a preset, --data,
--epochs, --model.num-hiddens and all the others. Stopped and started again, it goes on with the runs that are missing.

BLEU and the alignment error are means over the seeds. Their intervals hold 95 % of 2000 bootstrap samples, in each of
which as many seeds, and as many test sentences, are drawn with replacement (see `bootstrap`). Tokens a second of
training and peak memory are the median run's, and mean something on a quiet machine with --jobs 1.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from train.compare_attention import runs
from train.compare_attention.table import as_markdown, as_text, cells, notes, ranks
from train.config import AttentionName, ConfigError
from train.data.corpus import CorpusError

ATTENTIONS: tuple[str, ...] = get_args(AttentionName)

PICTURES = {"scores.png", "attention.png", *(f"attention-{name}.png" for name in ATTENTIONS)}


@dataclass(frozen=True)
class Options:
    """Options of the runs are those of `python -m train.nmt`."""

    attentions: tuple[str, ...] = ATTENTIONS
    """What is compared; differences are those from the first."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A run of each attention with each of them."""
    out: Path = Path("runs/compare-attention")
    """The folder of the runs, their table as comparison.json, and the pictures. What is there is not made again."""
    jobs: int = 1
    """Runs at a time; with more than one, their speeds mean nothing."""
    json: Path | None = None
    """Write the numbers into this file too, beside what else it holds."""
    page: Path | None = None
    """Renew the tables in this Markdown file, between `<!-- table: NAME -->` and `<!-- end -->`; needs --json."""
    exercises: Path | None = None
    """Train nothing: answer the book's exercises on scoring functions, with pictures, into this folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and say what was wrong on one line; the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    before = signal.signal(signal.SIGTERM, _interrupt)  # or the runs under way would go on alone
    try:
        options, rest = parse(sys.argv[1:] if arguments is None else list(arguments))
        if options.exercises is None:
            compare(options, rest)
        else:
            answer(options, options.exercises)
    except (ConfigError, CorpusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except runs.RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; started again in the same way, it goes on with the runs that are missing", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """The command line as options and what is left for the runs; ConfigError if it could not be used."""
    import tyro

    options, rest = tyro.cli(
        Options, prog="python -m train.compare_attention", description=__doc__, args=arguments, return_unknown_args=True
    )
    unknown = [name for name in options.attentions if name not in ATTENTIONS]
    wrong = [f"there is no attention {name!r}; there are: {', '.join(ATTENTIONS)}" for name in unknown]
    for name, given in (("--attentions", options.attentions), ("--seeds", options.seeds)):
        if not given or len(set(given)) < len(given):
            wrong.append(f"{name} must be one or more, each once; got {' '.join(map(str, given)) or 'none'}")
    if options.jobs < 1:
        wrong.append(f"--jobs must be at least 1; got {options.jobs}")
    for option, instead in (("--seed", "--seeds"), ("--model.attention", "--attentions")):
        if any(argument.split("=")[0] == option for argument in rest):
            wrong.append(f"{option} is for a single run; use {instead}")
    for path in (options.json, options.page):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            wrong.append(f"{path} cannot be written: it must be a file in a folder that exists")
    if options.page is not None and options.json is None:
        wrong.append("--page needs --json, where the tables' numbers are")
    if options.exercises is not None and rest:
        wrong.append(f"--exercises trains nothing, and takes no {rest[0]}")
    if wrong:
        raise ConfigError("; ".join(wrong))
    if options.json is not None:
        read_numbers(options.json)  # before hours of training
    return options, rest


def compare(options: Options, arguments: Sequence[str]) -> None:
    """Make the runs that are missing, and show what all come to."""
    require_own(options.out)
    planned = runs.plan(options.out, options.attentions, options.seeds, arguments)
    if planned[0].config.corpus.test < 1:
        raise ConfigError("corpus.test must be at least 1, or there is nothing to compare; got 0")
    runs.make_missing(planned, options.jobs, _say)

    from train.compare_attention import pictures, rank, results

    comparison = results.compare([results.read(run) for run in planned])
    comparison["bilinear_ranks"] = rank.of_bilinear([run for run in planned if run.attention == "bilinear"])
    write_json(options.out / "comparison.json", comparison)
    print(as_text(cells(comparison)), *notes(comparison), sep="\n")
    pictures.draw(comparison, planned, options.out)
    publish(options, "comparison", comparison)
    print(f"see {options.out}")


def require_own(out: Path) -> None:
    """ConfigError if the folder holds anything but what a comparison leaves, or is none."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no folder; name one with --out")
    run = re.compile(f"({'|'.join(ATTENTIONS)})-[0-9]+([.]log)?")
    files = {"comparison.json", "comparison.json.part", *PICTURES}
    for path in sorted(out.iterdir()) if out.exists() else []:
        if path.name not in files and not run.fullmatch(path.name):
            raise ConfigError(f"{out} holds something else ({path.name}); name another folder with --out")


def answer(options: Options, folder: Path) -> None:
    """The book's exercises: their pictures, and their numbers in exercises.json unless --json says where."""
    from train.compare_attention import exercises

    folder.mkdir(parents=True, exist_ok=True)
    answers = exercises.answer(folder)
    if options.json is None:
        write_json(folder / "exercises.json", answers)
    for name, rows in exercises.tables(answers).items():
        print(f"{name}:", as_text(rows), sep="\n", end="\n\n")
    publish(options, "exercises", answers)
    print(f"see {folder}")


def publish(options: Options, name: str, content: Mapping[str, Any]) -> None:
    """Put numbers into the file of --json, and renew the tables of --page."""
    if options.json is None:
        return
    held = read_numbers(options.json)
    held[name] = content
    write_json(options.json, held)
    if options.page is not None:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(renewed(page, held), encoding="utf-8")


def read_numbers(path: Path) -> dict[str, Any]:
    """What the file of --json holds already; ConfigError if it is another kind of file."""
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); name another file with --json") from error
    if not isinstance(held, dict):
        raise ConfigError(f"{path} holds something else than numbers by name; name another file with --json")
    return held


def renewed(page: str, numbers: Mapping[str, Any]) -> str:
    """A page with its tables as the numbers have them; one whose numbers are not there stays as it is."""
    from train.compare_attention import exercises

    tables: dict[str, Sequence[Sequence[str]]] = {}
    if "comparison" in numbers:
        tables |= {"comparison": cells(numbers["comparison"]), "bilinear ranks": ranks(numbers["comparison"])}
    if "exercises" in numbers:
        tables |= exercises.tables(numbers["exercises"])
    for name, rows in tables.items():
        marks = re.compile(rf"(<!-- table: {re.escape(name)} -->\n)(?:(?!<!--).)*(<!-- end -->)", re.DOTALL)
        page = marks.sub(partial(_with_table, as_markdown(rows)), page)
    return page


def _with_table(table: str, marks: re.Match[str]) -> str:
    return f"{marks[1]}{table}\n{marks[2]}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

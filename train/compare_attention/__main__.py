"""Compare scoring functions: train the same translator with every attention and several seeds.

$ python -m train.compare_attention                             # every attention, seeds 0, 1 and 2
$ python -m train.compare_attention --attentions additive dot --seeds 0 1 --epochs 2
$ python -m train.compare_attention book --data fra.txt         # another preset and other data
$ python -m train.compare_attention --exercises runs/exercises  # the book's exercises, without training

Each run is one `python -m train.nmt`. You can also give a preset, and all options of its --help; they go to every run.
If you stop the comparison, start it again with the same command: complete runs are kept, the others are trained.

The result is a table. BLEU and alignment error are means over the seeds, with 95 % intervals of a bootstrap over
seeds and test sentences. Speed and memory are medians; for a fair speed use an idle machine.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tyro

from train.command_line.terminal import set_encodings
from train.compare_attention import runs
from train.config import AttentionName, ConfigError

ATTENTIONS: tuple[str, ...] = get_args(AttentionName)


@dataclass(frozen=True)
class Options:
    """Options of the comparison. All others are those of `python -m train.nmt`."""

    attentions: tuple[str, ...] = ATTENTIONS
    """The attentions to compare. Differences are taken from the first one."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each attention is trained once with each seed."""
    out: Path = Path("runs/compare-attention")
    """The folder for the runs, comparison.json and the pictures. Complete runs in it are used again."""
    json: Path | None = None
    """Also write the results into this JSON file. Its other entries stay."""
    page: Path | None = None
    """Update the tables between `<!-- table: NAME -->` and `<!-- end -->` in this Markdown file. Needs --json."""
    exercises: Path | None = None
    """Train nothing; write the answers to the book's exercises on scoring functions into this folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, report errors on one line, and return the exit status."""
    set_encodings()
    try:
        options, rest = parse(sys.argv[1:] if arguments is None else list(arguments))
        if options.exercises is None:
            compare(options, rest)
        else:
            answer(options, options.exercises)
    except (ConfigError, OSError, runs.RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, runs.RunError) else 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the missing runs", file=sys.stderr)
        return 130
    return 0


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """Split the command line into the options here and the arguments for `train.nmt`.

    Raises:
        ConfigError: an option with a value that cannot be used.
    """
    options, rest = tyro.cli(
        Options, prog="python -m train.compare_attention", description=__doc__, args=arguments, return_unknown_args=True
    )
    unknown = [name for name in options.attentions if name not in ATTENTIONS]
    wrong = [f"there is no attention {name!r}; there are: {', '.join(ATTENTIONS)}" for name in unknown]
    for name, values in (("--attentions", options.attentions), ("--seeds", options.seeds)):
        if not values or len(set(values)) < len(values):
            wrong.append(f"{name} must be one or more, each once; got {' '.join(map(str, values)) or 'none'}")
    for option, instead in (("--seed", "--seeds"), ("--model.attention", "--attentions")):
        if any(argument.split("=")[0] == option for argument in rest):
            wrong.append(f"{option} is for a single run; use {instead}")
    for path in (options.json, options.page):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            wrong.append(f"{path} cannot be written: it must be a file in a folder that exists")
    if options.page is not None and options.json is None:
        wrong.append("--page needs --json: the numbers of its tables are there")
    if options.exercises is not None and rest:
        wrong.append(f"--exercises trains nothing and cannot be used with {rest[0]}")
    if (options.out.exists() and not options.out.is_dir()) or (options.out / "config.json").exists():
        wrong.append(f"{options.out} is not a folder for a comparison; name another one with --out")
    if wrong:
        raise ConfigError("; ".join(wrong))
    if options.json is not None:
        read_numbers(options.json)  # report a bad file before hours of training
    return options, rest


def compare(options: Options, arguments: Sequence[str]) -> None:
    """Train the missing runs, then print and write the comparison of all."""
    planned = runs.plan(options.out, options.attentions, options.seeds, arguments)
    if planned[0].config.corpus.test == 0:
        raise ConfigError("corpus.test must be at least 1: the test sentences are what is compared; got 0")
    runs.train_missing(planned)

    from train.compare_attention import exercises, pictures, results

    comparison = results.compare([results.read_outcome(run) for run in planned])
    comparison["bilinear_ranks"] = exercises.bilinear_ranks([run for run in planned if run.attention == "bilinear"])
    write_json(options.out / "comparison.json", comparison)
    print(results.as_markdown(results.table(comparison)), *results.notes(comparison), sep="\n")
    pictures.draw(comparison, planned, options.out)
    publish(options, "comparison", comparison)
    print(f"see {options.out}")


def answer(options: Options, folder: Path) -> None:
    """Print the answers to the book's exercises, and write them and their pictures into a folder."""
    from train.compare_attention import exercises, results

    folder.mkdir(parents=True, exist_ok=True)
    answers = exercises.answer(folder)
    write_json(folder / "exercises.json", answers)
    for name, rows in exercises.tables(answers).items():
        print(f"{name}:", results.as_markdown(rows), sep="\n", end="\n\n")
    publish(options, "exercises", answers)
    print(f"see {folder}")


def publish(options: Options, name: str, content: dict[str, Any]) -> None:
    """Write results under their name into the file of --json, and update the tables of --page."""
    if options.json is None:
        return
    numbers = read_numbers(options.json) | {name: content}
    write_json(options.json, numbers)
    if options.page is not None:
        options.page.write_text(update_tables(options.page.read_text(encoding="utf-8"), numbers), encoding="utf-8")


def read_numbers(path: Path) -> dict[str, Any]:
    """Read the file of --json; one that does not exist is empty.

    Raises:
        ConfigError: the file is not a JSON object.
    """
    try:
        numbers = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); name another file with --json") from error
    if not isinstance(numbers, dict):
        raise ConfigError(f"{path} is not a JSON object; name another file with --json")
    return numbers


def update_tables(page: str, numbers: dict[str, Any]) -> str:
    """Replace the tables of a page. A table without numbers stays as it is."""
    from train.compare_attention import exercises, results

    tables: dict[str, results.Table] = {}
    if "comparison" in numbers:
        tables["comparison"] = results.table(numbers["comparison"])
        tables["bilinear ranks"] = exercises.rank_table(numbers["comparison"]["bilinear_ranks"])
    if "exercises" in numbers:
        tables |= exercises.tables(numbers["exercises"])

    def replace(match: re.Match[str]) -> str:
        rows = tables.get(match["name"])
        return match[0] if rows is None else f"{match['start']}{results.as_markdown(rows)}\n{match['end']}"

    mark = r"(?P<start><!-- table: (?P<name>[^\n]*?) -->\n)(?:(?!<!--).)*(?P<end><!-- end -->)"
    return re.sub(mark, replace, page, flags=re.DOTALL)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

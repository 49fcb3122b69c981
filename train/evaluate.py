"""Score a trained model: `python -m train.evaluate RUN [--data FILE...] [--compare RUN2] [OPTIONS]`.
$ python -m train.evaluate runs/demo-1 --heads heads.png
$ python -m train.evaluate runs/mine --data test.de.gz test.en.gz --beam 5 --compare runs/other
$ python -m train.evaluate runs/mine --data multi30k:de-en --mirror folder

RUN is the folder that `python -m train.nmt` wrote. Without --data its own test set is scored.
"""

# Importing JAX takes a second, and a wrong option should be reported at once. So JAX is imported where it is needed.
from __future__ import annotations

import json
import math
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from train.command_line.terminal import answer
from train.command_line.translate_options import PICTURES, OptionalCode, Search, option_name, refusals
from train.data.corpus import CorpusError, Pair, counted
from train.data.download import is_name
from train.data.load_corpus import find_corpus, load_corpus, read_whole
from train.runs.run_folder import TEST
from train.setting import NUMBERS, ConfigError

if TYPE_CHECKING:
    from train.runs.run_folder import SavedRun
    from train.translating.heads import HeadErrors
    from train.translating.scoring import Evaluation
    from train.translating.translator import Translator


@dataclass(frozen=True)
class Options:
    """The command line; `--help` shows it in this order."""

    run: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """The run folder, from this machine or another."""
    data: Annotated[tuple[str, ...], arg(metavar="FILE [FILE]", help_behavior_hint="")] = ()
    """Pairs to score: a file with source<TAB>target on each line; two files, one sentence a line;
    a stem with --languages; or multi30k:de-en, which is its test set. Files may be gzipped."""
    languages: Annotated[tuple[str, ...], arg(metavar="SOURCE TARGET", help_behavior_hint="")] = ()
    """The endings of a stem: --data corpora/test --languages de en reads corpora/test.de and .en, or .gz."""
    mirror: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """A folder or an address with the files of multi30k, tatoeba or d2l, instead of the public address."""
    compare: Annotated[Path | None, arg(metavar="RUN2", help_behavior_hint="")] = None
    """Score another run on the same pairs, and test the difference."""
    heads: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Draw the alignment error of every layer and head into a .png, .svg or .pdf file, and print it. The pairs need
    gold alignments, as the embedded corpus has them."""
    json: bool = False
    """Write the scores as JSON."""
    source_language: OptionalCode = None
    """Of a model of several languages: the sources' language, as in eng_Latn."""
    target_language: OptionalCode = None
    """And that of the references."""
    search: Search = field(default_factory=dict)
    """Options of greedy search and of the beam. By default they are those of the training."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    program = "python -m train.evaluate"
    options = OmitArgPrefixes[Options]
    return answer(lambda: run(tyro.cli(options, prog=program, description=__doc__, args=arguments, registry=NUMBERS)))


def run(options: Options) -> None:
    """Score the run, and the one that it is compared with, and print the scores."""
    if options.languages and not options.data:
        raise ConfigError("--languages are the endings of the files of --data: give --data, too")
    if wrong := refusals("--heads", options.heads, PICTURES):
        raise ConfigError("; ".join(wrong))
    pairs: Sequence[Pair] = given_pairs(options) if options.data else ()

    from train.machine.devices import start_jax
    from train.runs.run_folder import RunFolder
    from train.translating.metrics import compare_texts, score_in_detail
    from train.translating.scoring import evaluate
    from train.translating.translator import Translator, configure

    start_jax()
    languages = options.source_language, options.target_language
    folders = [folder for folder in (options.run, options.compare) if folder is not None]
    runs = [RunFolder(folder).load().in_languages(*languages) for folder in folders]
    configs = [configure(saved, options.search, option_name) for saved in runs]
    if not options.data:
        pairs = own_test(runs[0], options.mirror)
    translators = [Translator.from_runs([saved], config) for saved, config in zip(runs, configs, strict=True)]
    errors = None if options.heads is None else draw_heads(options.heads, runs[0], translators[0], pairs)
    found = [evaluate(translator, pairs) for translator in translators]
    if options.data:
        for saved, evaluation in zip(runs, found, strict=True):
            warn_of_other_languages(saved, evaluation)
    lower_case = any(evaluation.lower_case for evaluation in found)
    report = []
    for saved, evaluation in zip(runs, found, strict=True):
        scores = score_in_detail(evaluation.texts, evaluation.references, evaluation.lower_case)
        report.append(as_report(saved, evaluation, {name: score._asdict() for name, score in scores.items()}))
    result: dict[str, Any] = report[0]
    if len(found) == 2:
        tests = compare_texts(found[0].texts, found[1].texts, found[0].references, lower_case)
        result |= {"compared_with": report[1], "tests": {name: test._asdict() for name, test in tests.items()}}
    if errors is not None:
        result["alignment_errors"] = {"heads": errors.heads.tolist(), "mean_of_heads": errors.means.tolist()}
    print(json.dumps(result, ensure_ascii=False, indent=2) if options.json else as_text(result))


def draw_heads(path: Path, saved: SavedRun, translator: Translator, pairs: Sequence[Pair]) -> HeadErrors:
    """Compute the alignment errors of all heads, and draw them; ConfigError without attention or gold alignments."""
    from jax_attn.plots import save
    from train.translating.heads import alignment_errors, show_head_errors

    if not saved.model.attends:
        raise ConfigError(f"--heads needs attention, and the model of {saved.folder} has none")
    if any(pair.alignment is None for pair in pairs):
        raise ConfigError("--heads needs gold alignments: leave out --data, with a run of the embedded corpus")
    errors = alignment_errors(translator, pairs)
    save(show_head_errors(errors), path)
    return errors


def given_pairs(options: Options) -> Sequence[Pair]:
    """Read the pairs of --data, of a public corpus its test set. A line that cannot be used is a warning.

    Raises:
        CorpusError: a file cannot be used.
    """
    found = find_corpus(options.data, options.languages, options.mirror, "--data")
    files = found.test if len(options.data) == 1 and is_name(options.data[0]) else found.train
    if files is None:
        raise CorpusError(f"{options.data[0]} has no test set of its own; name a file")
    report: Counter[str] = Counter()
    pairs = read_whole(files, report)
    for reason in counted(report):
        warnings.warn(reason, stacklevel=2)
    return pairs


def warn_of_other_languages(saved: SavedRun, evaluation: Evaluation) -> None:
    """Warn if the model guesses the tokens of the references worse than by chance."""
    if evaluation.nats_per_token > math.log(len(saved.target)):
        warnings.warn(
            f"the perplexity of the references is {evaluation.perplexity:.0f}: are they in the languages of this run?",
            stacklevel=2,
        )


def own_test(saved: SavedRun, mirror: str | None) -> Sequence[Pair]:
    """Make the run's own test set again.

    Raises:
        ConfigError, CorpusError: the run has no test set, or its data are not there, or others than in the training.
    """
    from train.translating.scoring import scored_step, words_of

    config = saved.config
    if not config.data and config.corpus.tokenizer == "pretrained":
        raise ConfigError(f"{saved.folder} was imported, and has no test set of its own; name one with --data")
    pairs = load_corpus(replace(config, mirror=mirror or config.mirror)).test
    if not pairs:
        raise ConfigError(f"{saved.folder} was trained without a test set; name one with --data")
    if (path := saved.folder / TEST).is_file():  # else the training has not ended
        with path.open(encoding="utf-8") as file:
            tested = [(record["source"], record["reference"]) for record in map(json.loads, file)]
        scored = pairs[:: scored_step(pairs)]
        if tested != [(words_of(saved.source, pair.source), words_of(saved.target, pair.target)) for pair in scored]:
            raise ConfigError(
                f"the sentence pairs have changed since {saved.folder} was trained, and some of them may have been "
                "trained on; name a test set with --data"
            )
    return pairs


def as_report(saved: SavedRun, evaluation: Evaluation, scores: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of one run."""
    return {
        "run": str(saved.folder),
        "pairs": len(evaluation.pairs),
        "lower_case": evaluation.lower_case,
        "scores": scores,
        "nats_per_token": evaluation.nats_per_token if math.isfinite(evaluation.nats_per_token) else None,
        "perplexity": evaluation.perplexity,
        "tokens": evaluation.tokens,
    }


def table_of_heads(heads: Sequence[Sequence[float]], mean_of_heads: Sequence[float]) -> str:
    """Format alignment errors as a table with a row for each layer, and name the best head."""
    lines = ["alignment error by layer and head (0 is best)"]
    lines.append("  layer   " + "".join(f"head {head:<4}" for head in range(len(heads[0]))) + "mean of heads")
    for layer, (errors, mean) in enumerate(zip(heads, mean_of_heads, strict=True)):
        lines.append(f"  {layer:<8}" + "".join(f"{error:<9.3f}" for error in errors) + f"{mean:.3f}")
    best = min((error, layer, head) for layer, errors in enumerate(heads) for head, error in enumerate(errors))
    is_one = len(heads) == len(heads[0]) == 1
    lines.append("  the model has no other head" if is_one else f"  best head: layer {best[1]}, head {best[2]}")
    return "\n".join(lines)


def as_text(report: dict[str, Any]) -> str:
    """Format a report as text."""
    lines = [f"{report['run']}: {report['pairs']} pairs"]
    for name, score in report["scores"].items():
        lines.append(f"  {name:<17}{score['score']:6.2f} ± {score['interval']:.2f}   {score['signature']}")
    if report["lower_case"]:
        lines.append("  The model writes lower case: take BLEU lower-cased. chrF is taken without case.")
    nats = "none" if report["nats_per_token"] is None else f"{report['nats_per_token']:.4f}"
    lines.append(
        f"  {'perplexity':<17}{report['perplexity']:6.2f}: {nats} nats a token, over {report['tokens']} tokens of the "
        "references"
    )
    if "alignment_errors" in report:
        lines.append(table_of_heads(**report["alignment_errors"]))
    if "tests" in report:
        lines.append(as_text(report["compared_with"]))
        lines.append("difference (p: how often equal systems differ as much)")
        for name, test in report["tests"].items():
            lines.append(
                f"  {name:<17}{test['score'] - test['other']:+6.2f}   p {test['p_bootstrap']:.4f} by paired bootstrap, "
                f"{test['p_randomisation']:.4f} by approximate randomisation"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

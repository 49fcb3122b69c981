"""Translate with a trained model: `python -m train.translate RUN [SENTENCE ...] [OPTIONS]`.
$ python -m train.translate runs/demo-1 "the cat sleeps ." "i am here ."
$ python -m train.translate runs/demo-1 --file source.txt --beam 5 > target.txt
$ python -m train.translate runs/demo-1 --file million.txt --out million.fr --mesh data=8 --resume

RUN is the folder that `python -m train.nmt` wrote. Each sentence, or line of the input, becomes a line of the output,
in the same order. At a terminal each line is answered at once.
"""

# Importing JAX takes a second, and a wrong option should be reported at once. So JAX is imported where it is needed.
from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from train.command_line.terminal import answer, printable
from train.command_line.translate_options import Options, Output, Picture, option_name, parse
from train.config import parse_mesh
from train.data.embedded import TOPICS
from train.data.vocabularies import FILES
from train.machine.whole_files import read_json, sha256
from train.runs.run_folder import WEIGHTS
from train.setting import ConfigError
from train.translating.lines import InputError, TextPosition, batched, read_every_line

if TYPE_CHECKING:
    from train.translating.translation import Hypothesis, Translation
    from train.translating.translator import Translator

__all__ = ["Translation", "Translator", "main"]

MAX_UNKNOWN = 10
"""Unknown words that are named."""
MAX_SHOWN = 40
"""Letters of each of them that are shown."""
MAX_IN_PICTURE, MAX_ON_PAGE = 24, 200
"""Sentences; a larger picture could not be read, and a larger page would be slow."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Report an error on one line, and return the exit status."""
    args = sys.argv[1:] if arguments is None else list(arguments)
    return answer(lambda: run(parse(args, __doc__)))


def run(options: Options) -> None:
    """Translate all lines, then draw."""
    picture = options.picture
    limit = max(MAX_ON_PAGE if picture.page else 0, MAX_IN_PICTURE if picture.heatmap else 0)
    shown: list[Translation] = []
    unknown = Counter[str]()
    interactive = not options.sentences and options.file is None and sys.stdin.isatty()
    with open_input(options) as (file, name), contextlib.ExitStack() as opened:
        alone = (interactive or len(options.sentences) == 1) and not options.output.split
        translator = load(options, alone)
        others = [load(compared_options(run, options), alone) for run in picture.compare]
        read = TextPosition()
        write = opened.enter_context(open_out(options, file, read))
        if interactive:
            print("one sentence a line; Ctrl-D ends", file=sys.stderr)
        lines = options.sentences or read_every_line(file, name, read)
        first, size = read.lines + 1, 1 if interactive else options.model.batch * translator.num_devices
        show = opened.enter_context(show_progress(options, file, read))
        for batch in batched(lines, size):
            translations = translate(translator, batch, first, options)
            write(as_text(translations, first, options.output))
            show(len(batch))
            unknown.update(word for t in translations for word in t.unknown)
            if interactive and unknown:
                warn_of_unknown(unknown, options.run)
                unknown.clear()
            shown += [t for t in translations if t.source][: limit + 1 - len(shown)]
            first += len(batch)
    if unknown:
        warn_of_unknown(unknown, options.run)
    if picture.heatmap:
        write_heatmap(translator, shown, picture.heatmap, picture.picks)
    if picture.page:
        names = [str(run) for run in (options.run, *picture.compare)]
        write_page(names, [translator, *others], shown, picture.page)


def warn_of_unknown(unknown: Counter[str], run: Path) -> None:
    """Say which words the model does not know, and where those are that it knows."""
    named = (printable(word) for word, _ in unknown.most_common(MAX_UNKNOWN))
    shown = ", ".join(word if len(word) <= MAX_SHOWN else word[:MAX_SHOWN] + "…" for word in named)
    more = len(unknown) - MAX_UNKNOWN
    words = f"{shown} and {more} more" if more > 0 else shown
    config = read_json(run / "config.json")
    is_embedded = not config["data"] and config["corpus"]["tokenizer"] != "pretrained"
    about = f". The embedded corpus has few words, about {TOPICS}" if is_embedded else ""
    warnings.warn(f"the model does not know {words}: it reads <unk>, and guesses the rest{about}", stacklevel=2)


@contextlib.contextmanager
def open_input(options: Options) -> Iterator[tuple[BinaryIO, str]]:
    """Yield the text to translate and its name; InputError if the file cannot be opened."""
    if options.file is None:
        yield sys.stdin.buffer, "standard input"
        return
    if options.file.is_fifo():
        print(f"reading {options.file}, a pipe, until its writer closes it", file=sys.stderr)
    try:
        file = options.file.open("rb")
    except OSError as error:
        raise InputError(f"{options.file} cannot be read: {error.strerror}") from error
    with file:
        yield file, str(options.file)


@contextlib.contextmanager
def open_out(options: Options, text: BinaryIO, read: TextPosition) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes translations, to --out or the standard output, and flushes them."""
    if options.out is None:
        yield lambda lines: (sys.stdout.write(lines), sys.stdout.flush())
        return
    from train.translating.output_file import open_output

    with open_output(options.out, settings_of(options), text, read, resume=options.resume) as output:
        yield output.write


def settings_of(options: Options) -> dict[str, Any]:
    """Return what the translations of a text depend on: the runs' files, and the options that change translations."""
    names = ("config.json", WEIGHTS, *dict.fromkeys(name for pair in FILES.values() for name in pair))
    runs = [
        {name: sha256(folder / name) for name in names if (folder / name).is_file()}
        for folder in (options.run, *options.model.ensemble)
    ]
    chosen = dataclasses.asdict(options.output) | {"sample": options.samples} | options.search | options.sampling
    chosen |= {name: getattr(options.model, name) for name in ("source_language", "target_language", "prefix")}
    named = {option_name(name): value for name, value in (chosen | options.picture.picks).items()}
    return {"run": runs} | named


@contextlib.contextmanager
def show_progress(options: Options, text: BinaryIO, read: TextPosition) -> Iterator[Callable[[int], object]]:
    """Yield a function that shows on stderr how far a text is when it gets the number of further lines."""
    if options.sentences or (options.out is None and sys.stdout.isatty()):
        yield lambda lines: None
        return
    from train.progress import Bar

    size, translated, started = size_of(text), 0, time.monotonic()

    def show(lines: int) -> None:
        nonlocal translated
        translated += lines
        share = f"{read.bytes / size:.1%}  " if size else ""
        speed = translated / max(time.monotonic() - started, 1e-9)
        bar.update(read.bytes, f"{share}{translated:,} lines  {speed:,.0f} lines/s")

    with Bar("translating", size, read.bytes) as bar:
        yield show


def size_of(file: BinaryIO) -> int | None:
    """Return the bytes of a regular file; None for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:  # it is no file of the system
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def load(options: Options, alone: bool) -> Translator:
    """Load the runs that the options name, to translate one sentence at a time or many together."""
    from train.machine.devices import make_mesh, start_jax
    from train.runs.run_folder import RunFolder
    from train.translating.translator import Translator, configure

    shape = None if options.model.mesh is None else parse_mesh(options.model.mesh)
    start_jax(num_devices=None if shape is None else shape.size)
    output = options.output
    model = options.model
    runs = [
        RunFolder(folder).load().in_languages(model.source_language, model.target_language)
        for folder in (options.run, *model.ensemble)
    ]
    changes = options.search | options.sampling
    if alone and shape is None:
        changes["batch_size"] = 1
    if options.samples or runs[0].config.search.sample:
        changes = {"beam_size": 1, "num_samples": output.nbest} | changes
    config = configure(runs[0], changes, option_name)
    if not config.sample and output.nbest > config.beam_size:
        raise ConfigError(f"--nbest must be at most --beam-size, which is {config.beam_size}; got {output.nbest}")
    if not any(run.model.attends for run in runs):
        needed = {"alignments": output.alignments, "replace_unknown": output.replace_unknown}
        for name, value in (needed | {"heatmap": options.picture.heatmap}).items():
            if value:
                raise ConfigError(f"{option_name(name)} needs attention, and the model of {options.run} has none")
    mesh = None if shape is None else make_mesh(shape)
    translator = Translator.from_runs(runs, config, output.pieces, mesh, model.prefix)
    if options.picture.picks:
        check_picks(translator, options.picture.picks)
    return translator


def check_picks(translator: Translator, picks: dict[str, Any]) -> None:
    """Raise ConfigError unless the model has this kind of attention, this layer and this head."""
    from train.translating.maps import sizes

    found = sizes(translator)
    layers, heads = found.get(picks.get("kind", "cross"), (0, 0))
    if not (0 <= picks.get("layer", 0) < layers and 0 <= picks.get("head", 0) < heads):
        given = " and ".join(f"{option_name(name)} {value}" for name, value in picks.items())
        has = ", ".join(f"{name} with {layers} layers of {heads} heads" for name, (layers, heads) in found.items())
        must = "--kind, --layer and --head must be what one model has, counted from 0"
        raise ConfigError(f"{must}: {has or 'nothing of an ensemble'}; got {given}")


def compared_options(run: Path, options: Options) -> Options:
    """Return the options of another run, which the page shows beside the first."""
    output = Output(nbest=options.output.nbest if options.samples else 1, pieces=options.output.pieces)
    model = dataclasses.replace(options.model, ensemble=())
    return dataclasses.replace(options, run=run, output=output, picture=Picture(), model=model)


def translate(translator: Translator, lines: Sequence[str], first: int, options: Options) -> list[Translation]:
    """Translate lines, the first of which has the number `first`."""
    from train.translating.alignments import replace_unknown
    from train.translating.maps import pick

    if options.output.split:
        return translate_parts(translator, lines, first)
    translations = translator(lines, first)
    if options.picture.picks and options.output.uses_weights:
        translations = pick(translator, translations, options.picture.layer, options.picture.head)
    if options.output.replace_unknown:
        return [replace_unknown(translation, translator.target) for translation in translations]
    return translations


def translate_parts(translator: Translator, lines: Sequence[str], first: int) -> list[Translation]:
    """Translate the sentences of each line one at a time; join the texts by spaces and add up the scores."""
    from train.data.tokens import split_sentences
    from train.translating.translator import split_languages

    parts = []
    for number, line in enumerate(lines, first):
        languages, text = split_languages(translator, line)
        parts += [(number, languages + sentence) for sentence in split_sentences(text)]
    numbers, texts = zip(*parts, strict=True)
    joined: dict[int, Translation] = {}
    for number, found in zip(numbers, translator(texts, numbers), strict=True):
        if before := joined.get(number):
            best = dataclasses.replace(
                before.best,
                text=" ".join(filter(None, (before.text, found.text))),
                score=before.score + found.score,
            )
            words, unknown = before.source + found.source, before.unknown + found.unknown
            found = dataclasses.replace(before, source=words, hypotheses=(best,), unknown=unknown)
        joined[number] = found
    return list(joined.values())


def as_text(translations: Sequence[Translation], first: int, output: Output) -> str:
    """Return a line for each hypothesis that is asked for."""
    return "".join(
        "\t".join(map(printable, columns(number, translation.source, hypothesis, output))) + "\n"
        for number, translation in enumerate(translations, first)
        for hypothesis in translation.hypotheses[: output.nbest]
    )


def columns(number: int, source: tuple[str, ...], hypothesis: Hypothesis, output: Output) -> Iterator[str]:
    """Yield the columns of a hypothesis."""
    from train.translating.alignments import as_json, as_pharaoh

    if output.nbest > 1:
        yield str(number)
    if output.scores:
        yield f"{hypothesis.score:.3f}"
    yield hypothesis.text
    if output.alignments:
        yield (as_pharaoh if output.alignments == "pharaoh" else as_json)(source, hypothesis)


LABELS = {"cross": ("source", "translation"), "source": ("source",) * 2, "target": ("translation",) * 2}
"""The names of a heatmap's columns and rows."""


def write_heatmap(
    translator: Translator, translations: Sequence[Translation], path: Path, picks: dict[str, Any]
) -> None:
    """Draw the attention of each sentence's best translation: what search kept, or what was picked of its maps."""
    from jax_attn.plots import save, show_alignments
    from train.translating.maps import attention_maps

    with_weights = [t for t in translations if t.weights is not None and t.weights.size]
    shown = [dataclasses.replace(t, hypotheses=(t.best,)) for t in up_to(MAX_IN_PICTURE, with_weights, path)]
    examples = [((*t.source, "<eos>"), t.best.tokens, t.weights) for t in shown]
    kind, at = picks.get("kind", "cross"), (picks.get("layer"), picks.get("head"))
    if picks:
        maps = [each for (of_best,) in attention_maps(translator, shown) for each in of_best if each.kind == kind]
        examples = [(each.columns, each.rows, each.matrix(*at)) for each in maps]
    if examples:
        xlabel, ylabel = LABELS[kind]
        save(show_alignments(examples, xlabel=xlabel, ylabel=ylabel), path)


def write_page(
    names: Sequence[str], translators: Sequence[Translator], translations: Sequence[Translation], path: Path
) -> None:
    """Write the page of the first translator's translations, with those of the others beside them."""
    from train.translating.maps import attention_maps
    from train.translating.page.page import MAX_WEIGHTS, Side, as_page, save

    shown = up_to(MAX_ON_PAGE, translations, path)
    if not shown:
        return
    maps = attention_maps(translators[0], shown)
    sizes = [sum(each.weights.size for of_hypothesis in found for each in of_hypothesis) for found in maps]
    fitting = sum(size <= MAX_WEIGHTS for size in accumulate(sizes)) or 1
    shown, maps = up_to(fitting, shown, path), maps[:fitting]
    sides = [Side(names[0], shown, translators[0].explain(shown), maps)]
    for name, translator in zip(names[1:], translators[1:], strict=True):
        same = translator([t.source_text for t in shown])
        sides.append(Side(name, same, translator.explain(same), attention_maps(translator, same)))
    save(as_page(sides), path)


def up_to(limit: int, sentences: Sequence[Any], path: Path) -> Sequence[Any]:
    """Return the sentences that a file can show; warn if there is none, or more."""
    if not sentences:
        warnings.warn(f"{path} is not written: there is no translation to show", stacklevel=2)
    elif len(sentences) > limit:
        warnings.warn(f"{path} shows the first {limit} sentences", stacklevel=2)
    return sentences[:limit]


def __getattr__(name: str) -> Any:
    """Import `Translator` and `Translation` when they are asked for, since they import JAX."""
    if name in ("Translation", "Translator"):
        from train.translating import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())

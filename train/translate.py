"""Translate with a trained model: `python -m train.translate RUN [SENTENCES] [OPTIONS]`.

$ python -m train.translate runs/demo-1 "the cat sleeps ." "i am here ."
$ python -m train.translate runs/demo-1 --file source.txt --beam 5 > target.txt
$ python -m train.translate runs/demo-1 --beam 5 --nbest 5 --scores < source.txt
$ python -m train.translate runs/demo-1 --alignments pharaoh < source.txt
$ python -m train.translate runs/demo-1 --sample --nbest 3 --temperature 0.8 --seed 1 "the cat sleeps ."
$ python -m train.translate runs/demo-1 --heatmap attention.png --page attention.html "the cat sleeps ."

Each source line becomes a line of output, an empty one an empty one, in their order. Options add columns, with tabs
between them: the line's number and a line for each hypothesis (--nbest), the score (--scores), the translation, the
alignment (--alignments). At a terminal a line is answered when it is typed.
"""

# JAX takes a second to import and a bad option should be answered at once, so what needs it is imported where the
# program comes to it.
from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from train.config import ConfigError, SearchConfig, outside
from train.translation.lines import InputError, batched, open_text, read_lines

if TYPE_CHECKING:
    from train.translation.translator import Hypothesis, Translation, Translator

__all__ = ["Translation", "Translator", "main"]

MOST_IN_A_PICTURE, MOST_ON_A_PAGE = 24, 200
"""Sentences; a picture of more could not be read, and a page of more not be loaded."""


@dataclass(frozen=True)
class Options:
    """Options of the search that are left out are those that the run was made with."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The run folder that `python -m train.nmt` left; it may come from another machine."""
    sentences: Annotated[Positional[tuple[str, ...]], arg(metavar="[SENTENCE ...]")]
    """What to translate; without any, --file or standard input, a sentence a line."""
    file: Path | None = None
    """A text in UTF-8 with a sentence a line."""
    scores: bool = False
    """Write each translation's score to three decimals: Σ log p in nats; of a beam, with its penalties."""
    nbest: int = 1
    """Write so many translations of each line: the best of the beam, or so many samples."""
    alignments: Literal["pharaoh", "json"] | None = None
    """Write what was attended to. pharaoh: `i-j` for each target word j and the source word i that it looked at most,
    counted from 0. json: the words and all weights."""
    replace_unknown: bool = False
    """Copy the source word that was attended to most in the place of each <unk>."""
    batch: int = 100
    """Lines that are read before they are written; it changes no translation."""
    beam_size: Annotated[int | None, arg(aliases=["--beam"])] = None
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: float | None = None
    """Hypotheses of a beam are ranked by log p / norm(length)^penalty."""
    length_norm: Literal["power", "gnmt"] | None = None
    """power: norm(length) is the length. gnmt: (5 + length) / 6."""
    coverage_penalty: float | None = None
    """How much a beam dislikes source words that nothing attended to; 0 is off."""
    min_len: int | None = None
    """The fewest tokens of a translation, its end counted in."""
    max_len: int | None = None
    """The most tokens of a translation, its end counted in."""
    no_repeat_ngram: int | None = None
    """So many tokens in a row never occur twice in a translation."""
    sample: bool = False
    """Draw translations at random instead of searching for likely ones."""
    temperature: float | None = None
    """Of --sample: below 1 the likely tokens become likelier still."""
    top_k: int | None = None
    """Of --sample: draw from so many tokens, the likeliest ones."""
    top_p: float | None = None
    """Of --sample: draw from the fewest likeliest tokens that have this probability together."""
    seed: int | None = None
    """Of --sample: the same seed draws the same."""
    ensemble: UseAppendAction[tuple[Path, ...]] = ()
    """A further run folder with the same vocabularies (again for each): their models decide together."""
    framework: Literal["jax", "torch"] = "jax"
    """torch: the plain PyTorch reference translates, one sentence at a time (needs the extra `torch`)."""
    heatmap: Path | None = None
    """Draw what was attended to, a .png, .svg or .pdf file."""
    page: Path | None = None
    """Write an interactive page of what was attended to and what was nearly said, an .html file of its own."""
    compare: UseAppendAction[tuple[str, ...]] = ()
    """Of --page: a run folder to stand beside (again for each); `torch` is the same run in PyTorch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, translate, and say what was wrong on one line; the exit status."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        try:
            prepare_streams()
            run(parse(sys.argv[1:] if arguments is None else list(arguments)))
        except (ConfigError, InputError, FloatingPointError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # whoever read the output has seen enough
            with contextlib.suppress(OSError, ValueError):  # the interpreter flushes once more when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:  # the page or the picture, or a full disk
            print(f"error: {error.filename or 'the output'} cannot be written: {error.strerror}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    return 0


def prepare_streams() -> None:
    """Translations are UTF-8, as their sources are; only a terminal has an encoding of its own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def parse(arguments: list[str]) -> Options:
    """The command line as options; ConfigError if they contradict each other or could not be used."""
    import tyro

    options = tyro.cli(Options, prog="python -m train.translate", description=__doc__, args=arguments)
    wrong = outside({"--batch": (options.batch, 1, 1_000_000), "--nbest": (options.nbest, 1, 10_000)})
    of_sampling = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "seed")}
    if not options.sample:
        wrong += [f"{as_option(name)} needs --sample" for name, given in of_sampling.items() if given is not None]
    if options.file is not None and options.sentences:
        wrong.append("either sentences or --file can be given, and not both")
    if options.heatmap is not None and options.heatmap.suffix not in (".png", ".svg", ".pdf"):
        wrong.append(f"--heatmap must end in .png, .svg or .pdf; got {options.heatmap}")
    if options.compare and options.page is None:
        wrong.append("--compare needs --page, where the runs stand side by side")
    for path in (options.heatmap, options.page):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            wrong.append(f"{path} cannot be written: it must be a file in a folder that exists")
    if wrong:
        raise ConfigError("; ".join(wrong))
    return options


def as_option(name: str) -> str:
    """What a field is called on the command line."""
    return "--" + name.replace("_", "-")


def run(options: Options) -> None:
    """From lines to lines, and to pictures at the end."""
    seen = max(MOST_ON_A_PAGE if options.page else 0, MOST_IN_A_PICTURE if options.heatmap else 0)
    kept: list[Translation] = []
    with open_sources(options) as lines:
        translator = load(options)
        compared = [load(compared_with(name, options)) for name in options.compare]
        interactive = not options.sentences and options.file is None and sys.stdin.isatty()
        if interactive:
            print("one sentence a line; Ctrl-D ends", file=sys.stderr)
        first = 1
        for batch in batched(lines, 1 if interactive else options.batch):
            translations = translate(translator, batch, first, options)
            write(translations, first, options)
            kept += [t for t in translations if t.source][: seen + 1 - len(kept)]
            first += len(batch)
    if options.heatmap:
        draw(kept, options.heatmap)
    if options.page:
        names = [str(options.run), *(f"{options.run} in PyTorch" if n == "torch" else n for n in options.compare)]
        write_page(list(zip(names, [translator, *compared], strict=True)), kept, options.page)


@contextlib.contextmanager
def open_sources(options: Options) -> Iterator[Iterator[str]]:
    """The sentences to translate; a file that cannot be read is told at once."""
    if options.sentences:
        yield iter(options.sentences)
    elif options.file is None:
        yield read_lines(sys.stdin.buffer, "standard input")
    else:
        with open_text(options.file) as file:
            yield read_lines(file, str(options.file))


def load(options: Options) -> Translator:
    """The translator that the options ask for."""
    from train.devices import start_jax
    from train.translation.saved_run import SavedRun
    from train.translation.translator import Translator, configure

    start_jax()
    runs = [SavedRun.load(folder) for folder in (options.run, *options.ensemble)]
    config = configure(runs[0], search_options(options), as_option)
    if not options.sample and options.nbest > config.beam_size:
        raise ConfigError(f"--nbest must be at most --beam-size, which is {config.beam_size}; got {options.nbest}")
    if all(run.model.attention == "none" for run in runs):
        needing = {name: getattr(options, name) for name in ("alignments", "replace_unknown", "heatmap")}
        for name in (name for name, wanted in needing.items() if wanted):
            raise ConfigError(f"{as_option(name)} needs attention, and the model of {options.run} has none")
    return Translator.of(runs, config, options.framework)


def compared_with(name: str, options: Options) -> Options:
    """The options by which another run translates for the page: `torch` is the same run in PyTorch."""
    if name == "torch":
        return dataclasses.replace(options, framework="torch")
    nbest = options.nbest if options.sample else 1
    alone = dataclasses.replace(options, run=Path(name), ensemble=(), nbest=nbest)
    return dataclasses.replace(alone, alignments=None, heatmap=None, replace_unknown=False)


def search_options(options: Options) -> dict[str, Any]:
    """Those of the search that were given."""
    given = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(SearchConfig)}
    search = {name: value for name, value in given.items() if value is not None}
    if options.sample:
        search |= {"num_samples": options.nbest, "beam_size": options.beam_size or 1}
    return search


def translate(translator: Translator, lines: Sequence[str], first: int, options: Options) -> list[Translation]:
    """The translations of lines, of which the first is number `first`."""
    from train.translation.alignments import replace_unknown

    translations = translator(lines, first)
    return [replace_unknown(t) for t in translations] if options.replace_unknown else translations


def write(translations: Sequence[Translation], first: int, options: Options) -> None:
    """The lines of output for sentences, of which the first is number `first`."""
    for number, translation in enumerate(translations, first):
        for hypothesis in translation.hypotheses[: options.nbest]:
            print(*columns(number, translation.source, hypothesis, options), sep="\t")
    sys.stdout.flush()


def columns(number: int, source: tuple[str, ...], hypothesis: Hypothesis, options: Options) -> Iterator[str]:
    """What is written of a hypothesis, and in which order."""
    from train.translation.alignments import pharaoh, soft

    if options.nbest > 1:
        yield str(number)
    if options.scores:
        yield f"{hypothesis.score:.3f}"
    yield hypothesis.text
    if options.alignments:
        yield (pharaoh if options.alignments == "pharaoh" else soft)(source, hypothesis)


def draw(translations: Sequence[Translation], path: Path) -> None:
    """The heatmap of each sentence's best translation."""
    from jax_attn.plots import save, show_alignments

    attended = [(t, t.weights) for t in translations if t.weights is not None and t.weights.size]
    examples = [((*t.source, "<eos>"), t.best.tokens, weights) for t, weights in attended]
    drawn = examples[:MOST_IN_A_PICTURE]
    if not drawn:
        warnings.warn(f"{path} is not written: there is no translation to be drawn", stacklevel=2)
        return
    if len(examples) > len(drawn):
        warnings.warn(f"{path} shows the first {len(drawn)} sentences", stacklevel=2)
    save(show_alignments(drawn), path)


def write_page(named: Sequence[tuple[str, Translator]], translations: Sequence[Translation], path: Path) -> None:
    """The interactive page of the first translator's translations, with those of the others beside them."""
    from train.data.tokens import detokenize
    from train.page.page import Side, as_page

    shown = translations[:MOST_ON_A_PAGE]
    if not shown:
        warnings.warn(f"{path} is not written: there is no sentence to be shown", stacklevel=2)
        return
    if len(translations) > len(shown):
        warnings.warn(f"{path} shows the first {len(shown)} sentences", stacklevel=2)
    sides: list[Side] = []
    for name, translator in named:
        of_side = translator([detokenize(list(t.source)) for t in shown]) if sides else shown
        sides.append(Side(name, of_side, translator.explain(of_side)))
    path.write_text(as_page(sides), encoding="utf-8")


def __getattr__(name: str) -> Any:
    """`from train.translate import Translator` goes on to work, and costs JAX's import only where it is asked for."""
    if name in ("Translation", "Translator"):
        from train.translation import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())

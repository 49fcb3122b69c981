"""The options of `python -m train.translate`. Their order and their texts are those of `--help`."""

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from jax_attn.ranges import Range, wrong_numbers
from train.config import SearchConfig, parse_mesh
from train.runs.run_folder import WEIGHTS
from train.setting import NUMBERS, ConfigError


def changes_of_search(*names: str) -> Any:
    """Return the type of a dict of those options of `SearchConfig` that are given, with their help."""
    hints = get_type_hints(SearchConfig, include_extras=True)
    types = {}
    for name in names:
        kinds = (hints[name].__origin__, *get_args(hints[name].__origin__))
        metavar = "N" if int in kinds else "X" if float in kinds else None
        shown = arg(metavar=metavar, help_behavior_hint="", aliases=["--beam"] if name == "beam_size" else None)
        types[name] = Annotated[hints[name], shown]
    make: Any = TypedDict
    return arg(constructor=make("Changes", types, total=False))


OF_SAMPLING = ("sample", "temperature", "top_k", "top_p", "seed")
OF_TRAINING = ("num_samples", "batch_size", "examples")
OF_SEARCH = [each.name for each in fields(SearchConfig) if each.name not in (*OF_SAMPLING, *OF_TRAINING)]

Search = Annotated[dict[str, Any], changes_of_search(*OF_SEARCH)]
Sampling = Annotated[dict[str, Any], changes_of_search(*OF_SAMPLING)]
Kind = Literal["cross", "source", "target"]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalFormat = Annotated[Literal["pharaoh", "json"] | None, arg(metavar="{pharaoh,json}", help_behavior_hint="")]
OptionalCode = Annotated[str | None, arg(metavar="CODE", help_behavior_hint="")]
OptionalMesh = Annotated[str | None, arg(metavar="data=N", help_behavior_hint="")]


@dataclass(frozen=True)
class Output:
    """What is written. Columns are separated by tabs.
    $ python -m train.translate runs/demo-1 --beam 5 --nbest 5 --scores < in.txt
    """

    scores: bool = False
    """Write the score before the translation: Σ log p in nats; for a beam, with its penalties."""
    nbest: Annotated[int, Range(1, 10_000), arg(metavar="N")] = 1
    """Write the N best translations of the beam, or N samples, each after the number of its line."""
    alignments: OptionalFormat = None
    """pharaoh: write `i-j` for each target word j and the source word i with the largest weight. json: all weights."""
    replace_unknown: bool = False
    """Replace each <unk> by the source word with the largest attention weight."""
    split: bool = False
    """Translate the sentences of a line one at a time, for lines that are longer than what the model reads."""
    pieces: bool = False
    """Show the pieces of subwords, and not words, in alignments, picture and page."""

    @property
    def uses_weights(self) -> bool:
        """Whether the attention weights change what is written."""
        return self.alignments is not None or self.replace_unknown


@dataclass(frozen=True)
class Picture:
    """Pictures of attention.
    $ python -m train.translate runs/demo-1 --page page.html "the cat sleeps ."
    """

    heatmap: OptionalFile = None
    """Draw the attention weights of each translation into a .png, .svg or .pdf file."""
    kind: Annotated[Kind | None, arg(metavar="{cross,source,target}", help_behavior_hint="")] = None
    """What --heatmap draws of a model with more than one kind of attention. cross: translation → source.
    source: source → source. target: translation → translation."""
    layer: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """The layer, counted from 0, whose attention --heatmap, --alignments and --replace-unknown use.
    By default it is that of the training, model.alignment_layer, or the last."""
    head: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """The head of the layer, counted from 0, instead of the mean of all."""
    page: OptionalFile = None
    """Write an interactive .html page: attention weights, and the most probable tokens at each step."""
    force: bool = False
    """Let --heatmap and --page overwrite a file of another kind."""
    compare: Annotated[UseAppendAction[tuple[Path, ...]], arg(metavar="RUN")] = ()
    """Show another run next to the first on the page."""

    @property
    def picks(self) -> dict[str, Any]:
        """The given ones among the options that choose a kind, a layer or a head."""
        picks = {"kind": self.kind, "layer": self.layer, "head": self.head}
        return {name: value for name, value in picks.items() if value is not None}


@dataclass(frozen=True)
class Model:
    """The model, and where it is computed.
    $ python -m train.translate runs/demo-1 --ensemble runs/demo-2 < in.txt
    """

    source_language: OptionalCode = None
    """Of a model of several languages: the sources' language, as in eng_Latn."""
    target_language: OptionalCode = None
    """And that of the translations. A line may name its own: `>>fra_Latn<< text` or `deu_Latn>>fra_Latn<< text`."""
    prefix: Annotated[str, arg(metavar="TEXT", help_behavior_hint="")] = ""
    """Begin every translation with this text, whose log p counts as 0."""
    ensemble: Annotated[UseAppendAction[tuple[Path, ...]], arg(metavar="RUN")] = ()
    """Average the probabilities with those of another run with the same vocabularies."""
    batch: Annotated[int, Range(1, 1_000_000), arg(metavar="N")] = 1000
    """Write after every N lines for each device; it changes no translation. With 1, each line is answered at once."""
    mesh: OptionalMesh = None
    """Search on N devices at once; it changes no translation. By default one device searches."""


@dataclass(frozen=True)
class Options:
    """The command line; `--help` shows it in this order."""

    run: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """The run folder, from this machine or another."""
    sentences: Annotated[Positional[tuple[str, ...]], arg(metavar="[SENTENCE ...]", help_behavior_hint="")]
    """Sentences to translate. Without any, --file or the standard input is read."""
    file: OptionalFile = None
    """Read a UTF-8 text, one sentence a line. `-`, and no --file at all, is the standard input."""
    out: OptionalFile = None
    """Write the translations into a new file, and how far they are into FILE.progress.json beside it."""
    resume: bool = False
    """Go on where the file of --out ends. The text, and all options that change translations, must be the same."""
    output: Output = Output()
    picture: Picture = Picture()
    search: Search = field(default_factory=dict)
    """Options of greedy search and of the beam. By default they are those of the training."""
    sampling: Sampling = field(default_factory=dict)
    """Random translations instead of a search. Every option needs --sample.
    $ python -m train.translate runs/demo-1 --sample --temperature 0.8 < in.txt
    """
    model: Model = Model()

    @property
    def samples(self) -> bool:
        """Whether translations are drawn at random."""
        return bool(self.sampling.get("sample"))


def parse(arguments: list[str], description: str | None) -> Options:
    """Parse the command line; ConfigError if options contradict each other or cannot be used."""
    options = tyro.cli(
        OmitArgPrefixes[Options],
        prog="python -m train.translate",
        description=description,
        args=arguments,
        registry=NUMBERS,
    )
    wrong = [*wrong_numbers(options.model, option_name), *wrong_numbers(options.output, option_name)]
    heatmap, page = options.picture.heatmap, options.picture.page
    if not options.samples:
        wrong += [f"{option_name(name)} needs --sample" for name in options.sampling if name != "sample"]
    if options.file is not None and options.sentences:
        wrong.append("either sentences or --file can be given, and not both")
    if any(sentence.encode(errors="replace").decode() != sentence for sentence in options.sentences):
        wrong.append("a sentence of the command line is not UTF-8; convert it with iconv")
    if options.out is not None and options.sentences:
        wrong.append("--out is for a text, by --file or from the standard input; leave out the sentences")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        wrong.append(f"{options.out} cannot be written: it must be a file in a folder that exists")
    if options.out is not None and options.out.exists() and not options.resume:
        wrong.append(f"{options.out} exists: name another file, or go on with --resume")
    if options.out is not None and options.out.resolve() in (path.resolve() for path in (heatmap, page) if path):
        wrong.append(f"--out and a picture or page are the same file, {options.out}")
    if options.resume and options.out is None:
        wrong.append("--resume needs --out, the file to go on with")
    if options.resume and (heatmap or page):
        wrong.append("--resume draws nothing: leave out --heatmap and --page")
    if options.model.mesh is not None and parse_mesh(options.model.mesh).model > 1:
        wrong.append(f"--mesh must be data=N, since each device holds the whole model; got {options.model.mesh}")
    if heatmap is None:
        picks, used = options.picture.picks, options.output.uses_weights
        wrong += ["--kind needs --heatmap"] * ("kind" in picks)
        needed = "--heatmap, --alignments or --replace-unknown"
        wrong += [f"{option_name(name)} needs {needed}" for name in picks if name != "kind" and not used]
    if options.picture.kind in ("source", "target") and options.output.uses_weights:
        wrong.append(
            f"--kind {options.picture.kind} is no attention to the source, which --alignments and --replace-unknown use"
        )
    if options.picture.compare and page is None:
        wrong.append("--compare needs --page, which shows the runs side by side")
    if options.output.pieces and options.output.replace_unknown:
        wrong.append("--replace-unknown replaces words, and cannot be given with --pieces")
    shown = {"nbest": options.output.nbest > 1, "alignments": options.output.alignments, "heatmap": heatmap}
    shown |= {"page": page, "replace_unknown": options.output.replace_unknown}
    if options.output.split:
        wrong += [
            f"{option_name(name)} is of one sentence, and cannot be given with --split" for name in shown if shown[name]
        ]
    text, force = Path("/dev/stdin") if options.file is None else options.file, options.picture.force
    wrong += refusals("--heatmap", heatmap, PICTURES, text, force) + refusals("--page", page, PAGES, text, force)
    if wrong:
        raise ConfigError("; ".join(wrong))
    return dataclasses.replace(options, file=None) if str(options.file) == "-" else options


PICTURES = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
PAGES = dict.fromkeys((".html", ".htm"), b"<title>What the translator looked at</title>")
"""What stands in the first bytes of a file of this kind, by its suffix."""


def refusals(
    option: str, path: Path | None, kinds: Mapping[str, bytes], given: Path | None = None, force: bool | None = None
) -> list[str]:
    """List why an option's picture or page must not be written to its path, if it has one.

    Args:
        option: its name.
        path: its value.
        kinds: `PICTURES` or `PAGES`.
        given: the file that the program reads.
        force: the option to overwrite a file of another kind; None if the program has none.
    """
    if path is None:
        return []
    if path.suffix not in kinds:
        return [f"{option} must end in {' or '.join(kinds)}; got {path}"]
    if path.is_dir() or not path.absolute().parent.is_dir():
        return [f"{path} cannot be written: it must be a file in a folder that exists"]
    if not path.exists():
        return []
    if given is not None and given.exists() and path.samefile(given):
        return [f"{path} is the file that is read: name another file"]
    if any((folder / WEIGHTS).exists() for folder in path.resolve().parents):
        return [f"{path} is a file of a run: name another file"]
    with contextlib.suppress(OSError):
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(4096)
        if not force and kinds[path.suffix] not in head:
            advice = "name another file" if force is None else "name another file, or add --force"
            return [f"{path} exists, and is no picture or page of this kind: {advice}"]
    return []


def option_name(field: str) -> str:
    """Return a field's name on the command line."""
    return "--" + field.replace("_", "-")

"""The settings of a run: frozen, typed dataclasses, of which the command line is made."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from typing_extensions import Doc
from tyro.conf import Fixed, OmitArgPrefixes, Suppress

from jax_attn.ranges import Range, wrong_numbers
from jax_attn.search_options import BeamSize, LengthPenalty, SearchOptions
from jax_attn.settings import ModelConfig, OptimizerName, RecurrentConfig, Size
from train.setting import ConfigError, Count, N, Seed, setting_name, without_default

Tokenizer = Literal["book", "words", "unigram", "bpe", "pretrained"]
SUBWORDS = ("unigram", "bpe", "pretrained")
"""The tokenizers of sentencepiece."""


class MeshShape(NamedTuple):
    """The devices that train together: `data` × `model` of them."""

    data: int
    """Groups of devices that share each batch, each with its rows."""
    model: int = 1
    """The devices of a group, which share the parameters."""

    @property
    def size(self) -> int:
        return self.data * self.model

    def __str__(self) -> str:
        return f"data={self.data}" + (f",model={self.model}" if self.model > 1 else "")


def parse_mesh(text: str) -> MeshShape:
    """Read a mesh as `data=4` or `data=4,model=2`; ConfigError for anything else."""
    found = re.fullmatch(r"data=([1-9]\d{0,5})(?:,model=([1-9]\d{0,5}))?", text)
    if found is None:
        raise ConfigError(f"the mesh must be data=N or data=N,model=M with N and M of 1 or more; got {text!r}")
    return MeshShape(int(found[1]), int(found[2] or 1))


BY_PAIRS = without_default("N", "by the number of pairs")
"""Show an option that the number of pairs chooses where it is None."""


@dataclass(frozen=True)
class CorpusConfig:
    """The sentence pairs, and how they are cut into words."""

    split: Literal["hash", "first"] = "hash"
    """hash: draw each part from all over the file, by a hash of the source. first: train on the first pairs."""
    train: Annotated[int | None, Range(1, 10_000_000), N] = None
    """Pairs for training; without it 20,000 of the embedded corpus, or all that are left of a file."""
    valid: Annotated[int | None, Range(0, 10_000_000), N] = None
    """Pairs for validation; without it 500 of the embedded corpus, or 2 % of a file but at most 1000."""
    test: Annotated[int | None, Range(0, 10_000_000), N] = None
    """Pairs that are translated and scored at the end; without it 500 of the embedded corpus, or 2 % of a file but at
    most 1000."""
    tokenizer: Tokenizer = "words"
    """How text is cut into tokens. unigram and bpe: subwords with case, by sentencepiece. words: lower case, cut at
    punctuation and after an apostrophe. book: lower case, cut only before , . and !
    pretrained: those of an imported run, with --init."""
    source_language: Annotated[str | None, without_default("CODE")] = None
    """With an imported model of several languages: the source's, as in eng_Latn."""
    target_language: Annotated[str | None, without_default("CODE")] = None
    """And the target's."""
    vocab_size: Annotated[int | None, Range(5, 1_000_000), BY_PAIRS] = None
    """With tokenizer unigram or bpe: subwords of a vocabulary."""
    joint: bool = True
    """With tokenizer unigram or bpe: learn one vocabulary for both languages."""
    sampling: Annotated[float, Range(0, 1)] = 0.0
    """With tokenizer unigram: cut words into other subwords in each epoch. 0.1 to 0.3 is usual, 0 is off."""
    min_freq: Annotated[int, Range(1, 10_000_000)] = 1
    """With tokenizer words or book: words that occur less often in training become <unk>."""
    max_len: Size = 100
    """Leave out training pairs with more tokens than this on a side."""
    steps: Annotated[int | None, Range(3, 65_536), N] = None
    """Pad every sentence to this many tokens, <bos> and <eos> included; without it what the longest pair needs."""

    @property
    def languages(self) -> tuple[str | None, str | None]:
        return self.source_language, self.target_language


@dataclass(frozen=True)
class TrainingConfig:
    """The optimiser, its learning rate, the loss, and what happens between the steps."""

    batch_size: Size = 64
    """Sentence pairs of a step."""
    batch_tokens: Annotated[int | None, Range(1, 10_000_000), N] = None
    """Form batches by this many target tokens, padding included, instead of by batch_size."""
    num_parts: Size = 1
    """Compute the gradients of a batch in this many parts, one after another, in less memory."""
    num_widths: Annotated[int | None, Range(1, 16), N] = None
    """How many widths sentences are padded to. More widths pad less, but each compiles the training step once.
    Without it 4 for a file, 1 for the embedded corpus or with loss sentences."""
    learning_rate: Annotated[float, Range(1e-30, 1e3)] = 0.005
    """The learning rate, at its highest."""
    schedule: Literal["constant", "cosine", "inverse_sqrt", "plateau"] = "cosine"
    """The course of the learning rate. cosine falls to zero at the last step, inverse_sqrt with 1/√step, plateau if
    the validation is no better."""
    warmup: Count = 0
    """Steps at the start in which the learning rate rises from zero."""
    plateau_factor: Annotated[float, Range(1e-6, 1)] = 0.5
    """With schedule plateau: multiply the learning rate by this."""
    plateau_patience: Count = 2
    """With schedule plateau: accept this many validations without a better one; the next lowers the learning rate."""
    optimizer: OptimizerName = "adam"
    """The optimiser, as in torch.optim. Its settings are at the end of this help."""
    loss: Literal["tokens", "sentences"] = "tokens"
    """tokens: the mean over all tokens of a batch.
    sentences: the book's, each sentence's mean over its padded length, summed over the batch."""
    label_smoothing: Annotated[float, Range(0, 1)] = 0.0
    """The share of the probability that the loss spreads over all words."""
    clip_norm: Annotated[float, Range(1e-30, 1e30)] = 1.0
    """Scale the gradients down if their norm is larger than this."""
    clip_epsilon: Annotated[float, Range(0, 1)] = 0.0
    """Added to the norm that clipping divides by: 0 in the book and Optax, 1e-6 in PyTorch."""
    average: Annotated[float, Range(0, 0.999999)] = 0.0
    """Validate and keep an exponential moving average of the parameters, with this decay; 0 is off."""
    valid_every: Annotated[int | None, Range(1, 1_000_000_000), N] = None
    """Validate after this many steps; the default is after each epoch."""
    best: Literal["loss", "bleu", "chrf", "last"] = "loss"
    """What chooses the parameters to keep. loss, bleu and chrf: the best validation. last: the last step."""
    patience: Annotated[int | None, Range(1, 1_000_000), N] = None
    """Stop after this many validations without a better one."""
    save_seconds: Annotated[float, Range(0, 1e9)] = 60.0
    """Seconds between two checkpoints. A run that was killed goes on from the last one."""
    optimizer_settings: Annotated[dict[str, Any], Suppress, Fixed] = field(default_factory=dict)
    """The optimiser's settings that differ from those in `jax_attn.optim.OPTIMIZERS`."""


@dataclass(frozen=True)
class SearchConfig(SearchOptions):
    """How sentences are translated: the options of the searches, and how the programs use them."""

    beam_size: BeamSize = 1
    length_penalty: LengthPenalty = 1.0
    max_len: Annotated[
        int | None,
        Range(1, 65_536),
        N,
        Doc("The largest number of tokens of a translation, <eos> included; by default that of the training."),
    ] = None
    sample: Annotated[bool, Doc("Draw translations at random instead of searching.")] = False
    seed: Annotated[Seed, Doc("Seed of sampling: the same seed draws the same translations.")] = 0
    batch_size: Size = 100
    """Sentences translated at a time, rounded up to a multiple of 8; it changes no translation."""
    examples: Annotated[tuple[str, ...], without_default("[SENTENCE ...]")] = ()
    """Sentences to translate at the end; without any the first 8 of the test set."""

    @property
    def function(self) -> str:
        """The name of the search function in `jax_attn.search`."""
        return "sample_search" if self.sample else "greedy_search" if self.beam_size == 1 else "beam_search"


@dataclass(frozen=True)
class DevicesConfig:
    """The devices and processes that train together. They are no settings of a run, which can go on with others."""

    mesh: Annotated[str | None, without_default("data=N")] = None
    """data=4: four devices share each batch. data=4,model=2: eight, and each two of them share the parameters.
    A CPU is divided into as many devices. The default is as many as divide the batch into 8 rows or more."""
    distributed: bool = False
    """Train in the processes that SLURM, Kubernetes or Open MPI has started. Elsewhere use coordinator and process."""
    coordinator: Annotated[str | None, without_default("HOST:PORT")] = None
    """HOST:PORT where process 0 listens, the same for all processes; needs process."""
    process: Annotated[str | None, without_default("I/N")] = None
    """I/N: this is process I of N, counted from 0."""
    timeout: Annotated[int, Range(1, 86_400)] = 120
    """Seconds that the processes wait for one another at the start.
    If a process gives no sign of life for as long, the training ends."""

    @property
    def is_distributed(self) -> bool:
        return self.distributed or self.coordinator is not None

    def shape(self) -> MeshShape | None:
        """Return the mesh that is asked for; ConfigError if its text has another form."""
        return None if self.mesh is None else parse_mesh(self.mesh)

    def place(self) -> tuple[int, int] | None:
        """Return this process's number and that of all; ConfigError unless they are such numbers."""
        if self.process is None:
            return None
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", self.process)
        if found is None or not int(found[1]) < int(found[2]):
            raise ConfigError(f"process must be I/N with I below N, as in 0/2 and 1/2; got {self.process!r}")
        return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Config:
    """All settings of `python -m train.nmt`."""

    data: Annotated[tuple[str, ...], without_default("FILE [FILE]")] = ()
    """A file with source<TAB>target on each line; two files with one sentence on each line; a stem with languages;
    or multi30k:de-en, tatoeba:eng-fra or d2l:eng-fra, which is downloaded once.
    Without it the embedded English-French corpus."""
    valid: Annotated[tuple[str, ...], without_default("FILE [FILE]")] = ()
    """Pairs for validation, given as for data; by default they are held out of data."""
    test: Annotated[tuple[str, ...], without_default("FILE [FILE]")] = ()
    """Pairs for the test, given as for data; by default they are held out of data."""
    languages: Annotated[tuple[str, ...], without_default("SOURCE TARGET")] = ()
    """The endings of the two files: data corpora/train with languages de en reads corpora/train.de and .en, or .gz."""
    mirror: Annotated[str | None, without_default("DIR")] = None
    """A folder or an address with the files of multi30k, tatoeba or d2l, instead of the public address."""
    init: Annotated[Path | None, without_default("RUN")] = None
    """Begin with the parameters and vocabularies of this run folder.
    Without a preset or --config its settings are the defaults too."""
    out: Annotated[Path | None, without_default("FOLDER")] = None
    """The run folder, which must not exist yet; the default is the next free one in runs/."""
    epochs: Annotated[int | None, Range(1, 1_000_000), BY_PAIRS] = 5
    """Passes over the training pairs."""
    max_steps: Annotated[int | None, Range(1, 1_000_000_000), N] = None
    """Stop after this many training steps, if that is before the last epoch."""
    seed: Seed = 0
    """Seed of the initial parameters, the order of examples and dropout."""
    model: ModelConfig = field(default_factory=RecurrentConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    devices: Annotated[DevicesConfig, OmitArgPrefixes] = field(default_factory=DevicesConfig)

    @property
    def num_epochs(self) -> int:
        """The epochs, which `train.presets.fit_to_pairs` has chosen if the configuration did not."""
        assert self.epochs is not None
        return self.epochs


def check(config: Config) -> None:
    """Raise ConfigError, with every setting that no run could use."""
    wrong = wrong_numbers(config, str)
    for section in ("corpus", "training"):
        wrong += wrong_numbers(getattr(config, section), partial(setting_name, section))
    wrong += wrong_search(config.search, partial(setting_name, "search"))
    wrong += config.model.wrong(partial(setting_name, "model"))
    if config.training.loss == "sentences" and num_widths(config) > 1:
        wrong.append(f"training.num-widths must be 1 with loss sentences; got {config.training.num_widths}")
    if config.training.batch_tokens is None and config.training.batch_size % max(config.training.num_parts, 1):
        wrong.append(
            f"training.batch-size must be a multiple of training.num-parts, {config.training.num_parts}; "
            f"got {config.training.batch_size}"
        )
    if not config.data and config.corpus.tokenizer == "book":
        wrong.append("the tokenizer book, and so the preset book, needs a file of pairs: --data fra.txt")
    tokenizer = config.corpus.tokenizer
    is_joint = tokenizer in SUBWORDS and (config.corpus.joint or tokenizer == "pretrained")
    if config.model.tie_embeddings in ("input", "all") and not is_joint:
        wrong.append(
            f"model.tie-embeddings {config.model.tie_embeddings} needs one vocabulary for both languages, which only "
            "corpus.tokenizer unigram or bpe learns, with corpus.joint; give model.tie-embeddings none or output"
        )
    if config.corpus.sampling and tokenizer != "unigram":
        wrong.append(f"corpus.sampling needs corpus.tokenizer unigram; got {tokenizer}")
    if not config.data and (config.valid or config.test):
        wrong.append("valid and test are files beside those of data; give data, too")
    if not config.data and config.languages:
        wrong.append("languages are the endings of the files of data; give data, too")
    wrong += _without_validation(config) + _wrong_devices(config)
    if wrong:
        raise ConfigError("; ".join(wrong))


NEEDED: tuple[tuple[str, str, Callable[[Config], bool]], ...] = (
    ("corpus.vocab_size corpus.joint", "corpus.tokenizer unigram or bpe", lambda c: c.corpus.tokenizer in SUBWORDS),
    ("corpus.min_freq", "corpus.tokenizer words or book", lambda c: c.corpus.tokenizer not in SUBWORDS),
    ("corpus.split", "data", lambda c: bool(c.data)),
    # a Transformer, which has no other attention, has no such setting
    (
        "model.num_heads",
        "model.attention multi_head",
        lambda c: getattr(c.model, "attention", "") in ("", "multi_head"),
    ),
    (
        "training.plateau_factor training.plateau_patience",
        "training.schedule plateau",
        lambda c: c.training.schedule == "plateau",
    ),
    ("search.temperature search.top_k search.top_p search.seed", "search.sample", lambda c: c.search.sample),
)
"""Settings that are read only with another one: that one in words, and whether it is so."""


def require_effect(config: Config, default: Config) -> None:
    """Raise ConfigError, with every setting that differs from the default and that this run does not read."""
    idle = [
        f"{path.replace('_', '-')} does nothing without {words}"
        for paths, words, is_met in NEEDED
        for path in paths.split()
        if not is_met(config) and attrgetter(path)(config) != attrgetter(path)(default)
    ]
    if idle:
        raise ConfigError("; ".join(idle))


def _wrong_devices(config: Config) -> list[str]:
    """List what is wrong with the mesh and the processes."""
    devices, training = config.devices, config.training
    wrong = wrong_numbers(devices, str)
    if (devices.coordinator is None) != (devices.process is None):
        wrong.append("coordinator HOST:PORT and process I/N belong together; give both")
    if devices.coordinator is not None and not re.fullmatch(r".+:\d{1,5}", devices.coordinator):
        wrong.append(f"coordinator must be HOST:PORT; got {devices.coordinator!r}")
    try:
        place, shape = devices.place(), devices.shape()
    except ConfigError as error:
        return [*wrong, str(error)]
    if shape is not None and place is not None and shape.size % place[1]:
        wrong.append(f"mesh {shape} has {shape.size} devices, which {place[1]} processes cannot share evenly")
    if (
        shape is not None
        and training.batch_tokens is None
        and training.batch_size % (shape.data * max(training.num_parts, 1))
    ):
        rows = f"{shape.data} × {training.num_parts}" if training.num_parts > 1 else f"{shape.data}"
        wrong.append(
            f"training.batch-size must be a multiple of the mesh's data{' × num-parts' * (training.num_parts > 1)}, "
            f"{rows}; got {training.batch_size}"
        )
    return wrong


def _without_validation(config: Config) -> list[str]:
    """List the settings that ask for a validation which the run does not have."""
    training = config.training
    if training.best != "last" and (config.valid or config.corpus.valid != 0):
        return []
    pairs = "needs validation pairs"
    both = f"{pairs}, and training.best loss, bleu or chrf"
    needed = {
        f"training.schedule {training.schedule} {both}": training.schedule == "plateau",
        f"training.patience {training.patience} {both}": training.patience is not None,
        f"training.best {training.best} {pairs}; without them: training.best last": training.best in ("bleu", "chrf"),
    }
    return [message for message, is_asked in needed.items() if is_asked]


def num_widths(config: Config) -> int:
    """Return the number of widths that sentences are padded to."""
    default = 1 if not config.data or config.training.loss == "sentences" else 4
    return config.training.num_widths or default


def wrong_search(search: SearchConfig, option_name: Callable[[str], str]) -> list[str]:
    """List the settings that no search could use; `option_name` turns a field's name into that of the message."""
    wrong = wrong_numbers(search, option_name)
    if search.max_len is not None and search.min_len > search.max_len >= 1:
        wrong.append(
            f"{option_name('min_len')} must be at most {search.max_len}, the most tokens; got {search.min_len}"
        )
    if search.sample and search.beam_size > 1:
        wrong.append(f"{option_name('beam_size')} must be 1 where translations are drawn; got {search.beam_size}")
    return wrong

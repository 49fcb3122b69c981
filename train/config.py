"""Everything that a run can be told. Frozen, typed, and the command line itself: each field is an option."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from train.data.tokens import Tokenizer

AttentionName = Literal[
    "additive", "dot", "scaled_dot", "bilinear", "scaled_bilinear", "gaussian", "multi_head", "sum", "none"
]
OptimizerName = Literal["adam", "adamw", "sgd", "momentum", "rmsprop", "adagrad"]


class ConfigError(ValueError):
    """A setting that cannot be used; the message says which, what it must be, and what it is."""


@dataclass(frozen=True)
class CorpusConfig:
    """Which sentence pairs are used, and what a word is."""

    train: int | None = None
    """Pairs for training. By default 20,000 of the embedded corpus, and of a file all but those for validation and
    test, which are drawn from the whole of it; with a number, a file's first pairs, and then the next ones."""
    valid: int = 500
    """Pairs for validation: the loss that is shown after each epoch."""
    test: int = 500
    """Pairs for test: the BLEU, chrF and alignment error rate at the end."""
    seed: int = 0
    """The same seed, the same sentences: of the embedded corpus, and of what is drawn from a file."""
    tokenizer: Tokenizer = "words"
    """words: punctuation and what stands before an apostrophe split off. book: only , . and ! split off."""
    min_freq: int = 1
    """Words that occur less often in training are <unk>."""
    max_words: int = 30
    """Of a file: pairs with a longer side are left out, and counted."""
    steps: int | None = None
    """Ids that either side is padded to, <bos> and <eos> counted in; by default as many as the longest pair needs."""


@dataclass(frozen=True)
class ModelConfig:
    """The attention seq2seq; see `jax_attn.models`."""

    attention: AttentionName = "additive"
    """The scoring function. multi_head: scaled_dot in several subspaces; sum: additive without its tanh, which is there
    to be compared, since every query then gets the same weights; none: every step sees the encoder's final state."""
    num_heads: int = 4
    """Of attention multi_head: subspaces, which share num_hiddens among them."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell of encoder and decoder."""
    embed_size: int = 64
    """Features of a word's embedding."""
    num_hiddens: int = 96
    """Hidden units of the decoder, and of the encoder's directions together."""
    num_layers: int = 1
    """Layers of encoder and decoder."""
    dropout: float = 0.0
    """Between layers and on the attention weights."""
    bidirectional: bool = True
    """The encoder reads each sentence from both ends."""
    query: Literal["previous", "new"] = "new"
    """What attends: the state before the step (Bahdanau, the book) or after it (Luong)."""
    input_feeding: bool = True
    """The attentional vector of a step is part of the next step's input; needs query new."""
    bridge: bool = True
    """A Dense layer leads from the encoder's final state to the decoder's first."""
    tie_embeddings: bool = False
    """The output layer is the embedding transposed; needs embed_size = num_hiddens."""
    stop_at_length: bool = True
    """The encoder stops at each sentence's end; False runs through the padding, as the book does."""
    decoder_bias: bool = True
    """Whether the decoder's cell has biases."""


@dataclass(frozen=True)
class TrainingConfig:
    """How the parameters are found."""

    batch_size: int = 64
    """Sentence pairs a step."""
    num_widths: int | None = None
    """Widths that sentences are padded to. More widths mean less padding, and each compiles the training step once.
    By default 4 for a file; 1 for the embedded corpus and for the loss sentences."""
    optimizer: OptimizerName = "adam"
    """adam: steps of about the learning rate, whatever the gradients' size; adamw: with decay beside the moments; sgd:
    along the gradient; momentum: along a running sum of gradients; rmsprop: over their running size; adagrad: over
    their size so far, so that steps grow shorter. Each means what it means in torch.optim."""
    learning_rate: float = 0.005
    """At the start. PyTorch's own default is 0.001, for rmsprop and adagrad 0.01; sgd wants more, 0.1 to 1."""
    decay: bool = True
    """Lower the learning rate to zero along half a cosine."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    clip_epsilon: float = 0.0
    """Added to the norm before dividing by it: 0 as in the book and in Optax, 1e-6 as in PyTorch's clip_grad_norm_."""
    weight_decay: float | None = None
    """Pull the parameters towards 0: by this times the parameter, added to the gradient (L2), or with adamw to the
    step. By default PyTorch's: 0.01 for adamw, 0 for the others."""
    betas: tuple[float, float] | None = None
    """Of adam and adamw: how much of the running means of gradients and of squares stays; by default 0.9 0.999."""
    eps: float | None = None
    """Of adam, adamw, rmsprop and adagrad: added to the root that is divided by; by default 1e-8, for adagrad 1e-10."""
    momentum: float | None = None
    """How much of the running sum of steps stays: by default 0.9 for momentum, 0 for rmsprop."""
    dampening: float | None = None
    """Of momentum: the share of each gradient that is left out of the sum, after the first; by default 0."""
    nesterov: bool = False
    """Of momentum: look one step ahead (Nesterov)."""
    alpha: float | None = None
    """Of rmsprop: how much of the running mean of squares stays; by default 0.99."""
    centered: bool = False
    """Of rmsprop: divide by the standard deviation of the gradients instead of their size."""
    lr_decay: float | None = None
    """Of adagrad: the learning rate at step t is divided by 1 + (t - 1) times this; by default 0."""
    initial_accumulator_value: float | None = None
    """Of adagrad: what the sum of squares begins with; by default 0, and in Optax 0.1."""
    loss: Literal["tokens", "sentences"] = "tokens"
    """tokens: the mean over the tokens that count. sentences: the book's, each sentence's mean over all positions,
    padding counted in, summed over the batch."""


@dataclass(frozen=True)
class SearchConfig:
    """How sentences are translated."""

    beam_size: int = 1
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: float = 1.0
    """Hypotheses of a beam are ranked by log p / norm(length)^penalty."""
    length_norm: Literal["power", "gnmt"] = "power"
    """power: norm(length) is the length. gnmt: (5 + length) / 6."""
    coverage_penalty: float = 0.0
    """How much a beam dislikes source words that nothing attended to; 0 is off."""
    min_len: int = 0
    """The fewest tokens of a translation, <eos> counted in."""
    max_len: int | None = None
    """The most tokens of a translation, <eos> counted in; by default as many as the longest that training saw."""
    no_repeat_ngram: int | None = None
    """So many tokens in a row never occur twice in a translation."""
    sample: bool = False
    """Draw translations at random instead of searching for likely ones."""
    num_samples: int = 1
    """How many are drawn of each sentence."""
    temperature: float = 1.0
    """Of sampling: below 1 the likely tokens become likelier still."""
    top_k: int | None = None
    """Of sampling: draw from so many tokens, the likeliest ones."""
    top_p: float | None = None
    """Of sampling: draw from the fewest likeliest tokens that have this probability together."""
    seed: int = 0
    """Of sampling: the same seed draws the same."""
    batch_size: int = 100
    """Rows of the one program that translates; sentences fill them, and their number changes nothing else."""
    examples: tuple[str, ...] = ()
    """Sentences to translate at the end; by default the first of the test set."""


@dataclass(frozen=True)
class Config:
    """Train a translator, test it on sentences it never saw, and leave a run folder."""

    data: Path | None = None
    """A text file with one source<TAB>target a line; without it, the embedded English-French corpus."""
    out: Path | None = None
    """The run folder, which must not exist yet; by default the next free one in runs/."""
    seed: int = 0
    """Of the initial parameters, of the order of examples and of dropout."""
    epochs: int = 5
    """Passes over the training pairs."""
    framework: Literal["jax", "torch"] = "jax"
    """torch: the plain PyTorch reference learns from the same batches (the preset book and its like)."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


def check(config: Config) -> None:
    """Raise ConfigError on a number that no run could use; all of them are listed."""
    pairs, width = 10_000_000, 65_536  # beyond these, memory ends before the error could say why
    bounds = {
        "seed": (config.seed, 0, 2**32 - 1),
        "epochs": (config.epochs, 1, 1_000_000),
        "corpus.train": (config.corpus.train, 1, pairs),
        "corpus.valid": (config.corpus.valid, 0, pairs),
        "corpus.test": (config.corpus.test, 0, pairs),
        "corpus.seed": (config.corpus.seed, 0, 2**32 - 1),
        "corpus.min-freq": (config.corpus.min_freq, 1, pairs),
        "corpus.max-words": (config.corpus.max_words, 1, width),
        "corpus.steps": (config.corpus.steps, 3, width),
        "model.embed-size": (config.model.embed_size, 1, width),
        "model.num-hiddens": (config.model.num_hiddens, 1, width),
        "model.num-layers": (config.model.num_layers, 1, 64),
        "model.num-heads": (config.model.num_heads, 1, width),
        "training.batch-size": (config.training.batch_size, 1, width),
        "training.num-widths": (config.training.num_widths, 1, 16),
        "training.learning-rate": (config.training.learning_rate, 1e-30, 1e3),
        "training.clip-norm": (config.training.clip_norm, 1e-30, 1e30),
        "training.clip-epsilon": (config.training.clip_epsilon, 0, 1),
        "training.weight-decay": (config.training.weight_decay, 0, 1e3),
        "training.eps": (config.training.eps, 1e-30, 1),
        "training.momentum": (config.training.momentum, 0, 1),
        "training.dampening": (config.training.dampening, 0, 1),
        "training.alpha": (config.training.alpha, 0, 1),
        "training.lr-decay": (config.training.lr_decay, 0, 1e3),
        "training.initial-accumulator-value": (config.training.initial_accumulator_value, 0, 1e30),
    }
    wrong = outside(bounds) + wrong_search(config.search, lambda name: "search." + name.replace("_", "-"))
    if not 0 <= config.model.dropout < 1:
        wrong.append(f"model.dropout must be in [0, 1); got {config.model.dropout}")
    if config.model.attention == "multi_head" and config.model.num_hiddens % max(config.model.num_heads, 1):
        wrong.append(
            f"model.num-hiddens must be a multiple of model.num-heads; got {config.model.num_hiddens} for "
            f"{config.model.num_heads} heads"
        )
    wrong += _wrong_optimizer_settings(config.training)
    plain = SearchConfig(
        length_penalty=config.search.length_penalty,  # of a beam
        batch_size=config.search.batch_size,
        examples=config.search.examples,
    )
    if config.search.beam_size > 1 and config.framework == "torch":
        wrong.append("search.beam-size must be 1 with framework torch, which searches greedily")
    elif config.search != plain and config.framework == "torch":
        wrong.append("the options of the search must be left out with framework torch, which searches greedily")
    if config.training.loss == "sentences" and num_widths(config) > 1:
        wrong.append(f"training.num-widths must be 1 with loss sentences; got {config.training.num_widths}")
    if config.data is None and config.corpus.tokenizer != "words":
        wrong.append("corpus.tokenizer must be words for the embedded corpus, which is written in them")
    if wrong:
        raise ConfigError("; ".join(wrong))


_OPTIMIZER_SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"weight_decay": None, "betas": None, "eps": None},
    "adamw": {"weight_decay": None, "betas": None, "eps": None},
    "sgd": {"weight_decay": None},
    "momentum": {"weight_decay": None, "momentum": 0.9, "dampening": None, "nesterov": None},
    "rmsprop": {"weight_decay": None, "eps": None, "momentum": None, "alpha": None, "centered": None},
    "adagrad": {"weight_decay": None, "eps": None, "lr_decay": None, "initial_accumulator_value": None},
}
"""What each optimiser can be told, and its value where nobody did; None: PyTorch's default."""


def optimizer_settings(training: TrainingConfig) -> dict[str, Any]:
    """What the optimiser is told besides its learning rate."""
    known = _OPTIMIZER_SETTINGS[training.optimizer]
    settings = {name: default for name, default in known.items() if default is not None}
    return settings | {name: value for name, value in _given(training).items() if name in known}


def _given(training: TrainingConfig) -> dict[str, Any]:
    """The optimisers' settings that are not as they are when nobody speaks of them."""
    names = dict.fromkeys(name for known in _OPTIMIZER_SETTINGS.values() for name in known)
    values = {name: getattr(training, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _wrong_optimizer_settings(training: TrainingConfig) -> list[str]:
    wrong = []
    for name in _given(training):
        takers = [optimizer for optimizer, known in _OPTIMIZER_SETTINGS.items() if name in known]
        if training.optimizer not in takers:
            option = f"training.{name.replace('_', '-')}"
            wrong.append(f"{option} belongs to optimizer {' or '.join(takers)}; got {training.optimizer}")
    if training.betas is not None and not all(0 <= beta < 1 for beta in training.betas):
        wrong.append(f"training.betas must be in [0, 1); got {training.betas}")
    if training.nesterov and (training.momentum == 0 or training.dampening):
        wrong.append("training.nesterov needs training.momentum > 0 and training.dampening 0")
    return wrong


def num_widths(config: Config) -> int:
    """Return the number of widths that sentences are padded to."""
    default = 1 if config.data is None or config.training.loss == "sentences" else 4
    return config.training.num_widths or default


def outside(bounds: Mapping[str, tuple[float | None, float, float]]) -> list[str]:
    """A message for each name whose (value, lowest, highest) says that it is out of bounds; NaN always is."""
    return [
        f"{name} must be in [{lowest}, {highest}]; got {value}"
        for name, (value, lowest, highest) in bounds.items()
        if value is not None and not lowest <= value <= highest
    ]


def wrong_search(search: SearchConfig, called: Callable[[str], str]) -> list[str]:
    """A message for each setting of a search that could not be used; `called` turns a field into what users call it."""
    longest = 65_536
    bounds = {
        "beam_size": (search.beam_size, 1, 10_000),
        "length_penalty": (search.length_penalty, 0, 10),
        "coverage_penalty": (search.coverage_penalty, 0, 1e3),
        "min_len": (search.min_len, 0, longest),
        "max_len": (search.max_len, 1, longest),
        "no_repeat_ngram": (search.no_repeat_ngram, 1, longest),
        "num_samples": (search.num_samples, 1, 10_000),
        "temperature": (search.temperature, 1e-3, 1e3),
        "top_k": (search.top_k, 1, 10_000_000),
        "top_p": (search.top_p, 1e-9, 1),
        "seed": (search.seed, 0, 2**32 - 1),
        "batch_size": (search.batch_size, 1, longest),
    }
    wrong = outside({called(name): bound for name, bound in bounds.items()})
    if search.max_len is not None and search.min_len > search.max_len >= 1:
        wrong.append(f"{called('min_len')} must be at most {search.max_len}, the most tokens; got {search.min_len}")
    if search.sample and search.beam_size > 1:
        wrong.append(f"{called('beam_size')} must be 1 where translations are drawn; got {search.beam_size}")
    return wrong


def search_settings(search: SearchConfig) -> tuple[str, dict[str, Any]]:
    """The function of `functional` that searches so, in either framework, and its options."""
    settings: dict[str, Any] = {"min_len": search.min_len, "no_repeat_ngram": search.no_repeat_ngram}
    if search.sample:
        names = ("num_samples", "temperature", "top_k", "top_p")
        return "sample_search", settings | {name: getattr(search, name) for name in names}
    if search.beam_size == 1:
        return "greedy_search", settings
    names = ("beam_size", "length_penalty", "length_norm", "coverage_penalty")
    return "beam_search", settings | {name: getattr(search, name) for name in names}

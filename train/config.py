"""Everything that a run can be told. Frozen, typed, and the command line itself: each field is an option."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from train.tokens import Tokenizer


@dataclass(frozen=True)
class CorpusConfig:
    """Which sentence pairs are used, and what a word is."""

    train: int | None = 10_000
    """Pairs for training; None: all of the file but those for validation and test."""
    valid: int = 500
    """Pairs for validation: the loss that is shown after each epoch."""
    test: int = 500
    """Pairs for test: the BLEU, chrF and alignment error rate at the end."""
    seed: int = 0
    """Of the embedded corpus: the same seed, the same sentences."""
    tokenizer: Tokenizer = "words"
    """words: punctuation and what stands before an apostrophe split off. book: only , . and ! split off."""
    min_freq: int = 1
    """Words that occur less often in training are <unk>."""
    max_words: int = 30
    """Pairs with a longer side are left out, and counted. Also the longest translation."""


@dataclass(frozen=True)
class ModelConfig:
    """The attention seq2seq; see `jax_attn.models`."""

    attention: Literal["additive", "dot", "scaled_dot", "bilinear", "gaussian", "none"] = "additive"
    """The scoring function; none: every step sees the encoder's final state instead."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell of encoder and decoder."""
    embed_size: int = 64
    """Features of a word's embedding."""
    num_hiddens: int = 128
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
    learning_rate: float = 0.005
    """Adam's, at the start."""
    decay: bool = True
    """Lower the learning rate to zero along half a cosine."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    loss: Literal["tokens", "sentences"] = "tokens"
    """tokens: the mean over the tokens that count. sentences: the book's, each sentence's mean over all positions,
    padding counted in, summed over the batch."""


@dataclass(frozen=True)
class SearchConfig:
    """How sentences are translated."""

    beam_size: int = 1
    """Hypotheses kept at each step; 1 is greedy search."""
    length_penalty: float = 1.0
    """Hypotheses are ranked by log p / length^penalty."""
    batch_size: int = 125
    """Sentences translated at once."""
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
    epochs: int = 12
    """Passes over the training pairs."""
    framework: Literal["jax", "torch"] = "jax"
    """torch runs the plain PyTorch reference on the same batches (only the preset book)."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

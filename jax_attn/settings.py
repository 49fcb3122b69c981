"""The settings of models as one record for each family, and the names of all that can be chosen.

Programs derive their options, presets, imports and exports from it; `models.build_model` makes the model. It imports no
JAX, so that a program can answer a wrong option at once. A test holds the names equal to those of the registries.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from jax_attn.ranges import Range, wrong_numbers

Family = Literal["recurrent", "transformer"]
AttentionName = Literal[
    "additive", "dot", "scaled_dot", "bilinear", "scaled_bilinear", "cosine", "gaussian", "multi_head", "sum", "none"
]
OptimizerName = Literal["adam", "adamw", "sgd", "momentum", "rmsprop", "adagrad"]
Activation = Literal["relu", "gelu", "silu"]
Query = Literal["previous", "new", "between"]
Norm = Literal["post", "pre"]
Sinusoids = Literal["interleaved", "halves", "opennmt", "fairseq"]
Positions = Literal[Sinusoids, "learnt"]
Ties = Literal["none", "output", "input", "all"]

Size = Annotated[int, Range(1, 65_536)]  # with larger ones, memory ends before an error could say why
Layers = Annotated[int, Range(1, 64)]


class ModelConfig:
    """The base class of the families' records."""

    family: Family
    num_hiddens: int
    tie_embeddings: str
    dtype: str
    source_end: bool = True
    """Whether the model reads the `<eos>` of each source. If not, the source lengths do not count it."""

    @property
    def fixed_settings(self) -> list[str]:
        """The names of the settings that a run has to share with the one that it begins with."""
        others = ("dtype", "variational", "alignment_layer", "alignment_head")
        return [name for name in vars(self) if name not in others and not name.startswith("dropout")]

    @property
    def attends(self) -> bool:
        """Whether the model gives attention weights."""
        return True

    @property
    def longest(self) -> int | None:
        """The most tokens that the model can read on a side, `<eos>` or `<bos>` included; None for any number."""
        return None

    def wrong(self, setting_name: Callable[[str], str] = str) -> list[str]:
        """List what is out of its range, and what contradicts each other.

        Args:
            setting_name: turns the name of a field into that of the message.
        """
        own = next(family for family, settings in FAMILIES.items() if isinstance(self, settings))
        wrong = [f"{setting_name('family')} must be {own} in {type(self).__name__}; got {self.family}"]
        wrong = wrong_numbers(self, setting_name) + wrong * (self.family != own)
        rates = {setting_name(name): rate for name, rate in vars(self).items() if name.startswith("dropout")}
        return wrong + [f"{name} must be in [0, 1); got {rate}" for name, rate in rates.items() if not 0 <= rate < 1]

    def state_size(self, max_len: int) -> int:
        """Return how many numbers of state a hypothesis needs at a time."""
        raise NotImplementedError


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """The recurrent encoder and decoder with attention."""

    family: Family = "recurrent"
    """The family of the model. recurrent: an attention RNN. transformer: the Transformer, whose settings are others."""
    attention: AttentionName = "additive"
    """The scoring function. sum: additive without its tanh. none: each step reads the encoder's final state instead."""
    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell of encoder and decoder."""
    num_hiddens: Size = 96
    """Hidden units of the decoder."""
    encoder_hiddens: Annotated[int | None, Range(1, 65_536)] = None
    """Hidden units of each direction of the encoder. By default the directions share num_hiddens.
    If they do not add up to num_hiddens, bridge must be set."""
    embed_size: Size = 64
    """Features of a word's embedding."""
    dropout: float = 0.0
    """Dropout between layers and on the attention weights."""
    dropout_words: float = 0.0
    """Dropout of whole tokens of source and target: their embeddings become zero."""
    dropout_embedding: float = 0.0
    """Dropout of the embeddings' entries."""
    dropout_output: float = 0.0
    """Dropout of the features that the output layer reads."""
    variational: bool = False
    """Use one dropout mask for all steps of a sentence. Those of words and attention weights change each step."""
    num_layers: Layers = 1
    """Layers of the encoder, and of the decoder."""
    num_heads: Size = 4
    """Heads of the attention, if it is multi_head."""
    bidirectional: bool = True
    """Read each source sentence in both directions."""
    query: Query = "new"
    """The decoder's state that is the query. previous: before the step (Bahdanau, the book).
    new: after it (Luong). between: a token takes two steps, and it is between them (the conditional GRU of Nematus)."""
    input_feeding: bool = True
    """Feed a step's context and state, projected together, to the next step; needs query new or between."""
    bridge: bool = True
    """Put a dense layer between the encoder's final state and the decoder's first."""
    tie_embeddings: Literal["none", "output", "all"] = "none"
    """output: use the target embedding as the output layer too. all: use it as the source embedding as well, which
    needs one vocabulary for both languages."""
    stop_at_length: bool = True
    """Stop the encoder at the end of each sentence. The book runs it through the padding."""
    decoder_bias: bool = True
    """Give the decoder's cell biases."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of number that the model computes in. Parameters and optimiser stay in float32."""

    @property
    def attends(self) -> bool:
        return self.attention != "none"

    @property
    def directions(self) -> int:
        """In how many directions the encoder reads."""
        return 2 if self.bidirectional else 1

    def wrong(self, setting_name: Callable[[str], str] = str) -> list[str]:
        wrong, hiddens = super().wrong(setting_name), setting_name("num_hiddens")
        in_all = (self.encoder_hiddens or 0) * self.directions
        if in_all not in (0, self.num_hiddens) and not self.bridge:
            wrong.append(
                f"{setting_name('encoder_hiddens')} must be {hiddens} in all directions together, or "
                f"{setting_name('bridge')} be set; got {in_all} and {self.num_hiddens}"
            )
        if self.encoder_hiddens is None and self.num_hiddens % self.directions:
            wrong.append(f"{hiddens} must be even for two directions; got {self.num_hiddens}")
        if self.query == "previous" and self.input_feeding:
            wrong.append(f"{setting_name('input_feeding')} needs {setting_name('query')} new or between; got previous")
        if self.query == "previous" and self.tie_embeddings != "none" and self.embed_size != self.num_hiddens:
            wrong.append(
                f"{setting_name('tie_embeddings')} with {setting_name('query')} previous needs "
                f"{setting_name('embed_size')} and {hiddens} to be equal; got {self.embed_size} and {self.num_hiddens}"
            )
        if self.attention == "multi_head" and self.num_hiddens % max(self.num_heads, 1):
            heads = f"{self.num_hiddens} for {self.num_heads} heads"
            wrong.append(f"{hiddens} must be a multiple of {setting_name('num_heads')}; got {heads}")
        return wrong

    def state_size(self, max_len: int) -> int:
        return 4 * self.num_layers * self.num_hiddens  # h and c, before and after a step


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The Transformer."""

    family: Family = "transformer"
    """The family of the model. recurrent: an attention RNN, whose settings are others. transformer: the Transformer."""
    embed_size: Size = 64
    """Features of an embedding and of every layer's result."""
    num_hiddens: Size = 128
    """Features within the feed-forward networks."""
    num_layers: Layers = 2
    """Layers of the decoder, and of the encoder unless encoder_layers is given."""
    encoder_layers: Annotated[int | None, Range(1, 64)] = None
    """Layers of the encoder; the default is num_layers."""
    num_heads: Size = 4
    """Heads of every attention; they must divide embed_size."""
    dropout: float = 0.0
    """Dropout of the embeddings and of each sublayer's result."""
    dropout_attention: float = 0.0
    """Dropout of the attention weights."""
    dropout_hidden: float = 0.0
    """Dropout of the features within the feed-forward networks."""
    activation: Activation = "relu"
    """The activation of the feed-forward networks."""
    norm: Norm = "post"
    """Normalise after each sublayer's sum (post, the paper), or before each sublayer (pre)."""
    norm_epsilon: Annotated[float, Range(1e-12, 1)] = 1e-5
    """Added to the variance of a normalisation."""
    positions: Positions = "interleaved"
    """interleaved: sines and cosines in turn (the book). halves: sines in the first half, cosines in the second
    (Marian). opennmt: halves with positions from 1, and D - 2 instead of D in the frequencies. fairseq: the same
    from 2 (M2M100, NLLB). learnt: parameters."""
    max_len: Size = 512
    """With positions learnt: their number, and so the most tokens of a sentence, <bos> or <eos> included."""
    scale_embedding: bool = True
    """Multiply the embeddings by the root of embed_size."""
    use_bias: bool = True
    """Give the dense layers of attention and feed-forward networks biases; that of the output layer is output_bias."""
    tie_embeddings: Ties = "none"
    """output: use the target embedding as the output layer too. input: use it as the source embedding, which needs one
    vocabulary for both languages. all: use it as both."""
    output_bias: bool = True
    """Give the output layer a bias."""
    start_token: int | None = None
    """The id that the decoder reads first; the default is <bos>. In fairseq's models it is that of <eos>."""
    fixed_start: bool = False
    """Leave the embedding of the decoder's first token as it is (Marian)."""
    never: tuple[int, ...] = ()
    """Ids of tokens that are never produced."""
    renormalize: bool = True
    """With never: let the probabilities of the other tokens sum to 1."""
    source_end: bool = True
    """Read the <eos> of each source."""
    alignment_layer: int = -1
    """The decoder's layer whose attention to the source is shown, counted from 0; -1 is the last."""
    alignment_head: int | None = None
    """The head that is shown; the default is the mean of all."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of number that the model computes in. Parameters and optimiser stay in float32."""

    @property
    def longest(self) -> int | None:
        return self.max_len if self.positions == "learnt" else None

    def wrong(self, setting_name: Callable[[str], str] = str) -> list[str]:
        wrong, size, positions = super().wrong(setting_name), setting_name("embed_size"), setting_name("positions")
        if self.embed_size % max(self.num_heads, 1):
            heads = f"{self.embed_size} for {self.num_heads} heads"
            wrong.append(f"{size} must be a multiple of {setting_name('num_heads')}; got {heads}")
        if self.positions != "learnt" and self.max_len != TransformerConfig.max_len:
            wrong.append(
                f"{setting_name('max_len')} is the number of learnt positions, and {positions} is {self.positions}"
            )
        if self.positions in ("opennmt", "fairseq") and self.embed_size < 3:
            wrong.append(f"{size} must be at least 3 with {positions} {self.positions}; got {self.embed_size}")
        if self.positions == "fairseq" and self.embed_size % 2:
            wrong.append(f"{size} must be even with {positions} fairseq; got {self.embed_size}")
        layers, layer, head = max(self.num_layers, 1), self.alignment_layer, self.alignment_head
        if not -layers <= layer < layers:
            wrong.append(
                f"{setting_name('alignment_layer')} must be one of {layers} layers, counted from 0; got {layer}"
            )
        if head is not None and not 0 <= head < max(self.num_heads, 1):
            wrong.append(
                f"{setting_name('alignment_head')} must be one of {self.num_heads} heads, counted from 0; got {head}"
            )
        return wrong

    def state_size(self, max_len: int) -> int:
        return 2 * self.num_layers * self.embed_size * max_len


FAMILIES: dict[str, type[Any]] = {"recurrent": RecurrentConfig, "transformer": TransformerConfig}


def other_family(name: str, family: str) -> str | None:
    """Return the family that has a setting which this one does not have."""
    names = {each: {setting.name for setting in fields(settings)} for each, settings in FAMILIES.items()}
    return next((each for each in names if name in names[each] - names[family]), None)

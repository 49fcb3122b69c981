"""Named configurations, each with its command, its time on two cores and the scores to expect."""

from dataclasses import replace

from jax_attn.settings import RecurrentConfig, TransformerConfig
from train.config import SUBWORDS, Config, CorpusConfig, SearchConfig, TrainingConfig

DEMO = Config()
"""The embedded corpus: a minute or two, BLEU 97 and an alignment error of 0.08 on 500 sentences never seen.

    python -m train.nmt
"""

BOOK = Config(
    epochs=500,
    corpus=CorpusConfig("first", train=1000, valid=0, test=100, tokenizer="book", min_freq=3, max_len=8, steps=10),
    model=RecurrentConfig(
        cell="lstm",
        embed_size=32,
        num_hiddens=32,
        num_layers=2,
        bidirectional=False,
        query="previous",
        input_feeding=False,
        bridge=False,
    ),
    training=TrainingConfig(schedule="constant", loss="sentences", best="last"),
    search=SearchConfig(examples=("go .", "i'm ok .", "i won !")),
)
"""d2l.ai's translator: the first 1000 pairs of its English-French corpus, 500 epochs. About a minute, a loss of 0.020
by the book's measure, and the book's three translations.

    python -m train.nmt book --data fra.txt
"""

_SUBWORDS = RecurrentConfig(
    embed_size=256,
    num_hiddens=512,
    dropout_words=0.1,
    dropout_embedding=0.2,
    dropout_output=0.3,
    tie_embeddings="all",
)

MULTI30K = Config(
    data=("multi30k:de-en",),
    epochs=20,
    corpus=CorpusConfig(tokenizer="unigram", vocab_size=6000),
    model=_SUBWORDS,
    training=TrainingConfig(
        learning_rate=0.002,
        warmup=400,
        num_widths=6,
        label_smoothing=0.1,
        average=0.998,
        best="bleu",
    ),
    search=SearchConfig(beam_size=5),
)
"""Multi30k, German to English: half an hour, BLEU 42.6 on the test set of 2016 (13a, cased, beam 5).

    python -m train.nmt multi30k
"""

DEMO_TRANSFORMER = Config(model=TransformerConfig(), training=TrainingConfig(learning_rate=0.002, warmup=300))
"""The embedded corpus with a Transformer: BLEU 98.5 and an alignment error of 0.110 on 500 sentences never
seen. Its sentences follow strict rules, which leaves nothing to overfit: with dropout 0.1 and label smoothing 0.1, BLEU
is 94.8.

    python -m train.nmt --model.family transformer
"""

SUBWORDS_TRANSFORMER = replace(
    MULTI30K,
    model=TransformerConfig(
        embed_size=128,
        num_hiddens=512,
        num_layers=4,
        num_heads=4,
        norm="pre",
        dropout=0.3,
        tie_embeddings="all",
    ),
    training=replace(MULTI30K.training, learning_rate=0.003, warmup=1000),
)
"""The settings of `--model.family transformer` with a preset that cuts words into subwords."""

MULTI30K_TRANSFORMER = replace(SUBWORDS_TRANSFORMER, epochs=36)
"""Multi30k, German to English, with a Transformer: an hour, BLEU 41.6 on the test set of 2016 (13a, cased, beam 5).

    python -m train.nmt multi30k-transformer
"""

TATOEBA = Config(
    data=("tatoeba:eng-fra",),
    epochs=10,
    corpus=CorpusConfig(tokenizer="unigram", vocab_size=8000),
    model=_SUBWORDS,
    training=MULTI30K.training,
    search=SearchConfig(beam_size=5),
)
"""The English-French pairs of Tatoeba, with the settings of Multi30k.

On the book's file of 76,038 pairs: BLEU 44.2 on the test part (13a, cased, beam 5), after an hour on two cores.
Today's archive is larger and takes longer.

    python -m train.nmt tatoeba
"""

OWN = replace(MULTI30K, data=(), epochs=None, corpus=CorpusConfig(tokenizer="unigram"))
"""Your own pairs, when `--data` is given without a preset: Multi30k's settings, with as many epochs as `fit_to_pairs`
chooses, and as many pieces as `train.data.subwords.vocab_size_for`.

    python -m train.nmt --data pairs.txt
"""


def fit_to_pairs(config: Config, pairs: int) -> Config:
    """Choose the epochs by the number of training pairs, where they are None."""
    return replace(config, epochs=config.epochs or min(20, max(5, 600_000 // pairs)))


OF_FAMILY = {"recurrent": (DEMO, MULTI30K), "transformer": (DEMO_TRANSFORMER, SUBWORDS_TRANSFORMER)}
"""The settings of each family for the presets that cut a corpus into words, and for those that cut it into subwords."""


def in_family(config: Config, family: str) -> Config:
    """Return a preset with a model of another family, and with the training that suits it."""
    if family == config.model.family:
        return config
    of_words, of_subwords = OF_FAMILY[family]
    other = of_subwords if config.corpus.tokenizer in SUBWORDS else of_words
    return replace(config, model=other.model, training=other.training)


PRESETS = {
    "own": OWN,
    "demo": DEMO,
    "book": BOOK,
    "multi30k": MULTI30K,
    "multi30k-transformer": MULTI30K_TRANSFORMER,
    "tatoeba": TATOEBA,
}

ABOUT = {
    "own": "your own pairs, by the settings of multi30k, scaled by their number (the default with --data)",
    "demo": "the embedded English-French corpus: a minute or two, BLEU 97 (the default without --data)",
    "book": "the translator of d2l.ai; needs --data fra.txt: a minute, the book's three translations",
    "multi30k": "Multi30k, German to English: 30 minutes, BLEU 42.6",
    "multi30k-transformer": "the same with a Transformer: an hour, BLEU 41.6",
    "tatoeba": "the English-French pairs of Tatoeba, cased subwords: BLEU 44.2 from 76,038 pairs, an hour",
}
"""What `--help` says of each preset."""

"""Named configurations, each with its command, its time on two cores and the scores to expect."""

from train.config import Config, CorpusConfig, ModelConfig, SearchConfig, TrainingConfig

DEMO = Config()
"""The embedded corpus: within a minute, BLEU 97 and an alignment error of 0.08 on 500 sentences never seen.

    python -m train.nmt
"""

BOOK = Config(
    epochs=500,
    corpus=CorpusConfig("first", train=1000, valid=0, test=100, tokenizer="book", min_freq=3, max_len=8, steps=10),
    model=ModelConfig(
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
"""d2l.ai's translator: the first 1000 pairs of its English-French corpus, 500 epochs. About a minute (five with
`--framework torch`), a loss of 0.020 by the book's measure, and the book's three translations.

    python -m train.nmt book --data fra.txt
"""

PRESETS = {"demo": DEMO, "book": BOOK}

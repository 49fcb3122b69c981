"""The names as the edition of 2020 means them, in JAX: `from book import jax_2020 as d2l`.

Encoder and decoder have an LSTM, and `load_data_nmt` returns `src_vocab, tgt_vocab, train_iter`. All other names are
those of `book.jax`.
"""

from functools import partial
from typing import Any

from book import jax

Seq2SeqEncoder = partial(jax.Seq2SeqEncoder, cell="lstm")
Seq2SeqAttentionDecoder = partial(jax.Seq2SeqAttentionDecoder, cell="lstm")
load_data_nmt = partial(jax.load_data_nmt, edition="2020")


def __getattr__(name: str) -> Any:
    return getattr(jax, name)

"""What a user's type checker has to see. Each line marked "type: ignore" is wrong on purpose: mypy must say so."""

from typing import assert_type

import jax
import jax.numpy as jnp
from flax import linen as nn

import jax_attn
from jax_attn import AdditiveAttention, Attention, EncoderDecoder, SearchResult, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from jax_attn.optim import Adam
from jax_attn.weights import from_torch
from parity_tests import Report, compare
from train.config import Config

scores = jnp.ones((2, 2, 4))
assert_type(jax_attn.__version__, str)
assert_type(jax_attn.masked_softmax(scores, jnp.array([2, 3])), jax.Array)
jax_attn.masked_softmax(scores, empty_row="unifrom")  # type: ignore[arg-type]

attention: Attention = AdditiveAttention(num_hiddens=8, dropout=0.1)
assert_type(attention.prepare(scores, scores).mask, jax.Array | None)
AdditiveAttention(num_hidden=8)  # type: ignore[call-arg]

encoder = Seq2SeqEncoder(10, embed_size=8, num_hiddens=16)
decoder = Seq2SeqAttentionDecoder(10, embed_size=8, num_hiddens=16, attention=attention)
Seq2SeqAttentionDecoder(10, embed_size=8, num_hiddens=16, query="newest")  # type: ignore[arg-type]
model: nn.Module = EncoderDecoder(encoder, decoder)

Adam(betas=0.9)  # type: ignore[arg-type]
from_torch([], {})  # type: ignore[arg-type]
compare()  # type: ignore[call-arg]


def first_ids(found: SearchResult, report: Report, config: Config) -> jax.Array:
    assert_type(report.agrees, bool)
    assert_type(config.epochs, int | None)
    assert_type(config.num_epochs, int)
    return found.ids[:, 0]

import jax
import numpy as np
import pytest

from jax_attn.models import build_model
from jax_attn.settings import RecurrentConfig, TransformerConfig
from jax_attn.weights import to_torch


def test_the_encoder_may_have_a_size_of_its_own_behind_a_bridge():
    config = RecurrentConfig(embed_size=4, num_hiddens=6, encoder_hiddens=5)
    token = np.zeros((1, 1), np.int32)
    weights = to_torch(jax.jit(build_model(config, 9, 9).init)(jax.random.key(0), token, token))
    assert weights["encoder.rnn.weight_hh_l0_reverse"].shape == (15, 5)
    assert weights["decoder.bridge_h.weight"].shape == (6, 10)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RecurrentConfig(family="transformer"), "family must be recurrent in RecurrentConfig; got transformer"),
        (TransformerConfig(family="recurrent"), "family must be transformer in TransformerConfig; got recurrent"),
        (TransformerConfig(num_heads=5), "embed_size must be a multiple of num_heads; got 64 for 5 heads"),
        (RecurrentConfig(encoder_hiddens=5, bridge=False), "or bridge be set; got 10 and 96"),
        (RecurrentConfig(num_hiddens=5), "num_hiddens must be even for two directions; got 5"),
        (RecurrentConfig(query="previous"), "input_feeding needs query new or between; got previous"),
        (
            RecurrentConfig(query="previous", input_feeding=False, tie_embeddings="output"),
            "query previous needs embed_size and num_hiddens to be equal; got 64 and 96",
        ),
        *(
            (RecurrentConfig(**{name: 1.0}), rf"{name} must be in \[0, 1\); got 1.0")
            for name in ("dropout", "dropout_words", "dropout_embedding", "dropout_output")
        ),
        (TransformerConfig(dropout_attention=-0.5), r"dropout_attention must be in \[0, 1\); got -0.5"),
        (TransformerConfig(num_layers=65), r"num_layers must be in \[1, 64\]; got 65"),
    ],
)
def test_settings_that_no_model_can_have_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        build_model(config, 9, 9)

"""The Flax models that transformers had, against its PyTorch ones: `python -m parity_tests.zoo.flax_models`.

They were removed in version 5, so this needs `pip install 'transformers<5'`, in an environment of its own. Each line is
a first try with a small model of drawn weights. The page on parity has the table that this prints.
"""

import sys
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import transformers
from transformers import BartConfig, BertConfig, GPT2Config, MarianConfig, RobertaConfig, T5Config

from parity_tests.zoo.pairs import Pair, compare_all

RNG = np.random.default_rng(0)
BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
GPT = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
BART: dict[str, Any] = {"vocab_size": 40, "d_model": 16, "max_position_embeddings": 32, "pad_token_id": 1}
for part in ("encoder", "decoder"):
    BART |= {f"{part}_layers": 2, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 24}
CONFIGS: dict[str, Any] = {
    "BertModel": BertConfig(**BERT),
    "BertForMaskedLM": BertConfig(**BERT),
    "BertForSequenceClassification": BertConfig(**BERT),
    "RobertaModel": RobertaConfig(**BERT),
    "GPT2Model": GPT2Config(**GPT),
    "GPT2LMHeadModel": GPT2Config(**GPT),
    "T5Model": T5Config(**T5),
    "T5ForConditionalGeneration": T5Config(**T5),
    "BartModel": BartConfig(**BART),
    "BartForConditionalGeneration": BartConfig(**BART),
    "MarianModel": MarianConfig(**BART, decoder_start_token_id=1),
    "MarianMTModel": MarianConfig(**BART, decoder_start_token_id=1),
}
AGREE = ("BertForSequenceClassification", "GPT2Model", "GPT2LMHeadModel")
jax_numpy: Any = jnp
clip = jnp.clip
# T5 has names that newer versions of JAX lack.
jax_numpy.clip = lambda x, *, a_min=None, a_max=None, **given: clip(x, **{"min": a_min, "max": a_max} | given)


def inputs_of(config: Any) -> dict[str, np.ndarray]:
    """Draw ids with padding at the end of one sentence, and the mask that says so."""
    ids, mask = RNG.integers(2, 40, (3, 7)), np.ones((3, 7), int)
    ids[1, 4:], mask[1, 4:] = config.pad_token_id or 0, 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"decoder_input_ids": RNG.integers(2, 40, (3, 5))} if config.is_encoder_decoder else {})


def pairs() -> Iterator[Pair]:
    """Yield each model of both frameworks, and its inputs."""
    for name, config in CONFIGS.items():
        config.use_cache = False  # a cache is no tensor
        in_torch, in_flax = getattr(transformers, name), getattr(transformers, f"Flax{name}")
        inputs = inputs_of(config)
        yield Pair(name, in_torch(config), in_flax(config), inputs, agrees=name in AGREE)
        if name.startswith("T5") or name == "MarianModel":
            narrow, agrees = {"inside": "float32"}, name.startswith("T5")
            yield Pair(f"{name}, float32 inside", in_torch(config), in_flax(config), inputs, narrow, agrees)


def main() -> int:
    """Compare all; return 1 if a verdict is another one than expected."""
    return 0 if compare_all("Flax", pairs()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Make a run folder of a checkpoint that another program wrote, so that it can be translated with."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_attn.checkpoints import load, read_safetensors
from jax_attn.models import EncoderDecoder
from jax_attn.weights import from_torch, to_torch
from train.config import Config, CorpusConfig
from train.data.vocabulary import SPECIAL
from train.data.words import WordVocabulary
from train.model_config import RecurrentConfig
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.training.model import build_model


def import_checkpoint(
    file: Path | str, out: Path | str, source: Sequence[str], target: Sequence[str], *, steps: int = 10
) -> RunFolder:
    """Make a run folder of a model that `jax_attn.checkpoints` can read.

        import_checkpoint("translator.safetensors", "runs/book", src_vocab.idx_to_token, tgt_vocab.idx_to_token)

    Args:
        file: the weights as a safetensors file.
        out: the run folder, a new one.
        source, target: the words of the two languages in the order of their ids, with <pad>, <bos>, <eos> and <unk>
            at any place. The rows of the weights are put in this program's order.
        steps: the ids of a sentence in training, `<eos>` included.

    Raises:
        OSError, KeyError, ValueError, TypeError: the file cannot be read, or holds no known model.
        ConfigError: words and weights do not fit together, the folder exists, or this program has no such model.
    """
    module, params = load(read_safetensors(file))
    assert isinstance(module, EncoderDecoder), "every format holds translators"
    weights = to_torch(params)
    vocabularies = list[WordVocabulary]()
    for name, words, layers in (
        ("source", source, ("encoder.embedding",)),
        ("target", target, ("decoder.embedding", "decoder.dense")),
    ):
        rows = len(weights[f"{layers[0]}.weight"])
        if len(words) != rows or set(SPECIAL) - set(words):
            raise ConfigError(f"{name} must be {rows} words, {', '.join(SPECIAL)} among them; got {len(words)} words")
        rest = [i for i, word in enumerate(words) if word not in SPECIAL]
        order = [*map(list(words).index, SPECIAL), *rest]
        for key in [key for key in weights if key.rpartition(".")[0] in layers]:
            weights[key] = weights[key][order]
        vocabularies.append(WordVocabulary(tuple(words[i] for i in order), "book"))
    config = Config(corpus=CorpusConfig(tokenizer="book", steps=steps), model=_settings(module))
    _require_same(build_model(config.model, len(source), len(target)), module, weights)
    folder = RunFolder.create(Path(out), "imported")
    facts = {"max_source_len": steps - 1, "max_target_len": steps, "data_sha256": ""}
    folder.save_inputs("demo", config, (vocabularies[0], vocabularies[1]), facts)
    folder.save_weights({name: weight.astype(np.float32) for name, weight in weights.items()})
    return folder


def _settings(module: EncoderDecoder) -> RecurrentConfig:
    """Return the settings of the model, as far as there are such settings."""
    encoder: Any = module.encoder
    decoder: Any = module.decoder
    same = {field.name for field in fields(RecurrentConfig)} & {field.name for field in fields(decoder)}
    settings = {name: getattr(decoder, name) for name in same - {"attention", "dtype"}}
    settings |= {"bidirectional": encoder.bidirectional, "stop_at_length": encoder.stop_at_length}
    attention = "additive" if getattr(decoder.attention, "use_tanh", True) else "sum"
    settings |= {"attention": attention, "decoder_bias": decoder.use_bias, "encoder_hiddens": encoder.num_hiddens}
    settings["tie_embeddings"] = "output" if decoder.tie_embeddings else "none"
    return RecurrentConfig(**settings)


def _require_same(ours: EncoderDecoder, theirs: EncoderDecoder, weights: dict[str, np.ndarray]) -> None:
    """Raise ConfigError unless both models give the same logits for drawn sentences."""
    rng = np.random.default_rng(0)
    sizes = theirs.encoder.vocab_size, theirs.decoder.vocab_size  # type: ignore[attr-defined]
    sources, targets = (jnp.asarray(rng.integers(0, size, (4, 7)), jnp.int32) for size in sizes)
    lengths = jnp.array([7, 5, 2, 1])
    logits = list[jax.Array]()
    for model in (ours, theirs):
        like = jax.eval_shape(model.init, jax.random.key(0), sources, targets)
        try:
            logits.append(model.apply(from_torch(weights, like), sources, targets, lengths)[0])
        except (KeyError, ValueError) as error:
            raise ConfigError(f"this program has no model with these weights: {error}") from error
    if not jnp.allclose(logits[0], logits[1], rtol=1e-4, atol=1e-4):
        raise ConfigError("this program has no model that gives the same logits as the checkpoint")

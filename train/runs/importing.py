"""Make a run folder of a checkpoint that another program wrote, so that it can be translated with."""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_attn.checkpoints import Pretrained, load, m2m100, marian, read_folder, read_safetensors
from jax_attn.checkpoints.hugging_face import find_weights
from jax_attn.checkpoints.pretrained import Language
from jax_attn.models import EncoderDecoder, build_model
from jax_attn.settings import RecurrentConfig, TransformerConfig
from jax_attn.weights import from_torch, to_torch
from train.config import Config, CorpusConfig, SearchConfig, TrainingConfig, check
from train.data.foreign import ForeignVocabulary
from train.data.subwords import PieceVocabulary
from train.data.vocabulary import BOS, EOS, SPECIAL, UNKNOWN, Vocabulary
from train.data.word_vocabulary import WordVocabulary
from train.machine import memory
from train.runs.run_folder import RunFolder
from train.setting import ConfigError

FINE_TUNING = Config(
    epochs=None, training=TrainingConfig(batch_size=32, learning_rate=2e-5, schedule="inverse_sqrt", warmup=100)
)
"""The settings by which an imported model is trained on with --init."""

BATCH_SIZE = 32
"""Sentences of one search. Even a single sentence runs in a program with so many rows, and these models are large."""


def import_checkpoint(
    file: Path | str, out: Path | str, source: Sequence[str], target: Sequence[str], *, steps: int = 10
) -> RunFolder:
    """Make a run folder of a translator of the d2l.ai book, see `jax_attn.checkpoints.load`.

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
    weights = to_torch(params)
    vocabularies, orders = list[WordVocabulary](), list[list[int]]()
    for name, words, part in (("source", source, "encoder"), ("target", target, "decoder")):
        rows = len(weights[f"{part}.embedding.weight"])
        if len(words) != rows or set(SPECIAL) - set(words):
            raise ConfigError(f"{name} must be {rows} words, {', '.join(SPECIAL)} among them; got {len(words)} words")
        rest = [i for i, word in enumerate(words) if word not in SPECIAL]
        orders.append([*map(list(words).index, SPECIAL), *rest])
        vocabularies.append(WordVocabulary(tuple(words[i] for i in orders[-1]), "book"))
    weights = _reorder(weights, *orders)
    config = Config(corpus=CorpusConfig(tokenizer="book", steps=steps), model=_settings(module))
    _require_same(build_model(config.model, len(source), len(target)), module, weights)
    folder = RunFolder.create(Path(out), "imported")
    facts = {"max_source_len": steps - 1, "max_target_len": steps, "data_sha256": ""}
    folder.save_inputs("demo", config, (vocabularies[0], vocabularies[1]), facts)
    folder.save_weights({name: weight.astype(np.float32) for name, weight in weights.items()})
    return folder


def import_pretrained(
    folder: Path, out: Path | str, *, origin: Mapping[str, Any] | None = None, moses: bool = True
) -> RunFolder:
    """Make a run folder of a translator's folder that `jax_attn.checkpoints` can read, such as Marian's.

    Args:
        folder: where the model is.
        out: the run folder, a new one.
        origin: what the run folder says of the source, beside its licence.
        moses: normalise punctuation as in the model's training, by sacremoses.

    Raises:
        ConfigError: the folder holds no such model, a damaged one, or one that does not fit together; or the run folder
            exists. Nothing is left of it.
    """
    RunFolder.require_free(Path(out))
    _require_memory(folder)
    try:
        model = read_folder(folder)
        model.check()
        source, target = (
            ForeignVocabulary(side if moses else replace(side, moses=None)) for side in (model.source, model.target)
        )
        never, start = (tuple(map(target.order.index, ids)) for ids in _ids_of(model.settings))
        config = replace(
            FINE_TUNING,
            corpus=CorpusConfig(tokenizer="pretrained", max_len=model.max_len - 1 - bool(source.languages)),
            model=replace(model.settings, never=never, start_token=next(iter(start), None)),
            search=SearchConfig(**model.search, batch_size=BATCH_SIZE),
        )
        check(config)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{folder} cannot be imported: {error}") from error
    created = RunFolder.create(Path(out), "imported")
    try:
        facts = {"max_source_len": model.max_len - 1, "max_target_len": model.search["max_len"], "data_sha256": ""}
        created.save_inputs("own", config, (source, target), facts)
        created.save_weights(_reorder(model.weights, source.order, target.order))
        created.save_origin({"source": str(folder), "licence": _read_licence(folder), **(origin or {})})
    except BaseException:
        shutil.rmtree(created.path, ignore_errors=True)
        raise
    return created


def _require_memory(folder: Path) -> None:
    """Raise ConfigError unless this machine can hold the weights twice: as they are read, and in the order of a run."""
    files = [folder / "model.bin"]
    if not files[0].is_file():
        with suppress(OSError, ValueError):  # which the reader explains
            files = find_weights(folder)
    needed, available = 2 * sum(path.stat().st_size for path in files if path.is_file()), memory.total()
    if available is not None and needed > available:
        raise ConfigError(
            f"{folder} cannot be imported: it needs at least {needed / 1e9:.1f} GB of memory, and this machine has "
            f"{available / 1e9:.1f} GB"
        )


def export_pretrained(run: Path | str, out: Path | str) -> None:
    """Write the Transformer of a run as a folder of Marian's or M2M100's; see `checkpoints.marian.write`.

    The run was imported and perhaps trained on, or it was trained here with subwords.

    Raises:
        ConfigError: the run cannot be loaded, or they have no such model; or the folder exists.
        OSError: the folder cannot be written. Nothing is left of it.
    """
    saved = RunFolder(run).load()
    RunFolder.require_free(Path(out))
    config = saved.model
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"{run} cannot be exported: Marian has no model with model.family {config.family}")
    (source, of_source), (target, of_target) = (_foreign(run, side) for side in (saved.source, saved.target))
    never, start = (tuple(of_target[i] for i in ids) for ids in _ids_of(config))
    settings = replace(config, never=never, start_token=next(iter(start), None))
    write = m2m100.write if source.languages else marian.write
    weights = _reorder(saved.weights, *(np.argsort(order).tolist() for order in (of_source, of_target)))
    longest, search = max(saved.max_source_len + 1, saved.max_target_len), asdict(saved.config.search)
    search["max_len"] = search["max_len"] or saved.max_target_len
    try:
        write(Pretrained(settings, weights, source, target, longest, search), Path(out))
    except ValueError as error:
        raise ConfigError(f"{run} cannot be exported: {error}") from error
    except OSError as error:  # which names the temporary folder, or none
        error.filename = str(out)
        raise


def _ids_of(settings: TransformerConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids among the settings: those that are never produced, and the first, if one is given."""
    return settings.never, () if settings.start_token is None else (settings.start_token,)


def _foreign(run: Path | str, vocabulary: Vocabulary) -> tuple[Language, Sequence[int]]:
    """Return the tokens of a run as a folder has them, and the folder's id for each id of the run."""
    if isinstance(vocabulary, ForeignVocabulary):
        return vocabulary.side, vocabulary.order
    if not isinstance(vocabulary, PieceVocabulary):
        raise ConfigError(f"{run} cannot be exported: Marian has no vocabulary of words; corpus.tokenizer unigram has")
    names = ["<none>", "<pad>", "</s>", "<unk>"]  # Marian's decoder begins with <pad>
    special = BOS, EOS, UNKNOWN
    return Language([*names, *vocabulary.tokens[len(names) :]], special, vocabulary.model), range(len(vocabulary))


def _reorder(weights: Mapping[str, np.ndarray], source: Sequence[int], target: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the weights with the rows of tokens in another order: the old row for each new one."""
    of_target = ("decoder.embedding.weight", "decoder.dense.weight", "decoder.dense.bias", "decoder.dense_bias")
    orders = {"encoder.embedding.weight": list(source)} | {name: list(target) for name in of_target}
    return {name: array[orders[name]] if name in orders else array for name, array in weights.items()}


def _read_licence(folder: Path) -> str | None:
    """Return the licence that the head of README.md names."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"^license:[ \t]*([^\s].*?)\s*$", text[:10_000], re.MULTILINE)
    return found[1] if found else None


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

"""Check that a search can be done with a model, before anything is computed."""

from collections.abc import Callable

from jax_attn.settings import ModelConfig
from train.config import SearchConfig, wrong_search
from train.machine import memory
from train.setting import ConfigError


def check_search(
    search: SearchConfig,
    model: ModelConfig,
    vocab_size: int,
    max_source_len: int,
    max_target_len: int,
    option_name: Callable[[str], str] = str,
) -> None:
    """Raise ConfigError with every setting that the search could not use. Errors name an option as `option_name` does.

    Args:
        vocab_size: the tokens of the target vocabulary.
        max_source_len: the most tokens of a source, without `<eos>`.
        max_target_len: the most tokens of a target of the training, `<eos>` included.
    """
    wrong = wrong_search(search, option_name)
    if search.beam_size > vocab_size:
        wrong.append(
            f"{option_name('beam_size')} must be at most {vocab_size}, the size of the target vocabulary; "
            f"got {search.beam_size}"
        )
    wrong += wrong_length(search, model, max_target_len, option_name)
    if search.coverage_penalty and not model.attends:
        wrong.append(f"{option_name('coverage_penalty')} needs attention, and the model has none")
    if not wrong:
        needed, available = search_bytes(search, model, vocab_size, max_source_len, max_target_len), memory.total()
        if available is not None and needed > available:
            several = option_name("num_samples" if search.sample else "beam_size")
            wrong.append(
                f"the search needs about {needed / 1e9:.1f} GB, and this machine has {available / 1e9:.1f} GB: lower "
                f"{several}, {option_name('max_len')} or the search's batch_size"
            )
    if wrong:
        raise ConfigError("; ".join(wrong))


def wrong_length(
    search: SearchConfig, model: ModelConfig, max_target_len: int, option_name: Callable[[str], str] = str
) -> list[str]:
    """Say whether translations may become longer than the model can read, or must become longer than they may."""
    most, least = option_name("max_len"), option_name("min_len")
    if search.max_len is None:
        if search.min_len <= max_target_len:
            return []
        longest = f"{max_target_len}, the longest target in the training, unless {most} is given"
        return [f"{least} must be at most {longest}; got {search.min_len}"]
    if model.longest is None or search.max_len <= model.longest:
        return []
    return [f"{most} must be at most {model.longest}, the learnt positions; got {search.max_len}"]


def search_bytes(
    search: SearchConfig, model: ModelConfig, vocab_size: int, max_source_len: int, max_target_len: int
) -> int:
    """Estimate the memory of one batch: each row's scores of the vocabulary, state, and attention of every step."""
    rows = search.batch_size * (search.num_samples if search.sample else search.beam_size)
    steps = search.max_len or max_target_len
    scores = vocab_size * (5 if search.sample else 3)  # logits, log p, noise and a sorted copy
    states = model.state_size(steps)
    history = steps * (2 * (max_source_len + 1) + 6)  # kept once by step and once by sentence
    return 4 * rows * (scores + states + history)

"""Download a model by its name on the Hugging Face hub."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from train.setting import ConfigError

FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "source.spm", "target.spm", "vocab.json",
    "target_vocab.json", "sentencepiece.bpe.model", "special_tokens_map.json", "README.md",
)  # fmt: skip
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights; the first that there is."""


def download(name: str, revision: str | None = None) -> tuple[Path, str]:
    """Download a model once, into the cache of huggingface_hub; return its folder and the commit.

    Raises:
        ConfigError: there is no such model, no network, or no huggingface_hub; the message says what to fetch by hand.
    """
    by_hand = (
        f"or fetch {', '.join((*FILES[:-1], WEIGHTS[0]))} (or {WEIGHTS[1]}), those that there are, from "
        f"https://huggingface.co/{name}/tree/main into a folder, and give the folder's name"
    )
    if name.count("/") != 1 or not all(name.split("/")) or name.startswith("."):
        raise ConfigError(f"there is no folder {name}, and a name on the hub is OWNER/MODEL")
    from jax_attn.checkpoints.hugging_face import find_weights

    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        message = f"{name} is no folder; to download it run: pip install 'jax-attn[pretrained]'; {by_hand}"
        raise ConfigError(message) from None

    def find(**options: Any) -> tuple[Path, str]:
        for weights in WEIGHTS:
            stem, suffix = weights.split(".")
            of_weights = [weights, f"{weights}.index.json", f"{stem}-*-of-*.{suffix}"]
            found = Path(snapshot_download(name, revision=revision, allow_patterns=[*FILES, *of_weights], **options))
            with suppress(ValueError):  # not of this kind
                find_weights(found)
                return found, found.name
        raise FileNotFoundError(f"it has no {' and no '.join(WEIGHTS)}")

    with suppress(Exception):  # whatever is wrong with the cache, the hub has it
        return find(local_files_only=True)
    try:
        return find()
    except Exception as error:  # the network, the hub and several libraries raise their own
        raise ConfigError(f"{name} cannot be downloaded ({' '.join(str(error).split())}); {by_hand}") from error

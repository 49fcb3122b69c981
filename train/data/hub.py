"""Download a model by its name on the Hugging Face hub."""

from pathlib import Path

from train.setting import ConfigError

FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "source.spm", "target.spm", "vocab.json",
    "target_vocab.json", "README.md",
)  # fmt: skip
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The files of weights; the first that there is."""


def download(name: str, revision: str | None = None) -> tuple[Path, str]:
    """Download a model once, into the cache of huggingface_hub; return its folder and the commit.

    Raises:
        ConfigError: there is no such model, no network, or no huggingface_hub; the message says what to fetch by hand.
    """
    by_hand = (
        f"or fetch {', '.join((*FILES[:6], WEIGHTS[0]))} (or {WEIGHTS[1]}) from "
        f"https://huggingface.co/{name}/tree/main into a folder, and give the folder's name"
    )
    if name.count("/") != 1 or not all(name.split("/")) or name.startswith("."):
        raise ConfigError(f"there is no folder {name}, and a name on the hub is OWNER/MODEL")
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise ConfigError(f"{name} is no folder; to download it run: pip install huggingface_hub; {by_hand}") from None
    try:
        there = HfApi().list_repo_files(name, revision=revision)
        weights = next((file for file in WEIGHTS if file in there), WEIGHTS[0])
        folder = snapshot_download(name, revision=revision, allow_patterns=[*FILES, weights])
    except Exception as error:  # of the network, of the hub and of several libraries
        try:
            folder = snapshot_download(name, revision=revision, local_files_only=True)
        except Exception:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{name} cannot be downloaded ({reason}); {by_hand}") from error
    return Path(folder), Path(folder).name

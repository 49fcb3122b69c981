"""Begin a training with what another run has learnt."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from train.config import Config
from train.runs.run_folder import RunFolder
from train.setting import ConfigError, setting_name

OF_VOCABULARIES = ("tokenizer", "vocab_size", "joint", "min_freq")
"""Settings of a corpus that its vocabularies depend on."""


def load_weights(run: Path, config: Config) -> Mapping[str, np.ndarray]:
    """Read the parameters that a training begins with, by PyTorch's names.

    Raises:
        ConfigError: the folder holds no run, a damaged one, or one whose model or vocabularies are not those of the
            configuration; the message names the settings.
    """
    saved = RunFolder(run).load()
    theirs = saved.config
    fixed = {
        "model": config.model.fixed_settings,
        "corpus": OF_VOCABULARIES,
    }
    if theirs.model.family != config.model.family:
        raise ConfigError(f"a training with --init {run} must have its --model.family {theirs.model.family}")
    differing = [
        f"--{setting_name(section, name)} {old}, not {new}"
        for section, names in fixed.items()
        for name in names
        if (old := getattr(getattr(theirs, section), name)) != (new := getattr(getattr(config, section), name))
    ]
    if differing:
        raise ConfigError(f"a training with --init {run} must have its {'; '.join(differing)}")
    return saved.weights

"""Damaged folders, and folders of other versions."""

import json
import os
import shutil

import numpy as np
import pytest

from train.config import Config
from train.runs.run_folder import RunFolder
from train.setting import ConfigError

FILES = ("config.json", "model.safetensors", "source.json", "target.json", "test.jsonl", "summary.json")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoint", "tensorboard"))


def test_metrics_are_on_the_disk_before_a_checkpoint_counts_on_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_ino, path.read_text())))
    path = tmp_path / "metrics.jsonl"
    RunFolder(tmp_path).append_metrics({"step": 1})
    assert synced == [(path.stat().st_ino, '{"step": 1}\n')]


def test_every_flipped_bit_is_found_and_the_file_named(copy):
    rng = np.random.default_rng(0)
    assert RunFolder(copy).load().config.corpus.tokenizer == "words"
    for path in [copy / name for name in (*FILES, "manifest.json")]:
        whole = path.read_bytes()
        for place in rng.integers(0, 8 * len(whole), 6):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << (place % 8)
            path.write_bytes(flipped)
            with pytest.raises(ConfigError) as error:
                RunFolder(copy).load()
            assert path.name == "manifest.json" or path.name in str(error.value)
        path.write_bytes(whole)
    for name in ("test.jsonl", "summary.json"):  # a copy to translate with needs no results
        (copy / name).unlink()
    RunFolder(copy).load()


def test_a_file_may_be_any_that_the_manifest_announces_and_needed_ones_must_be_listed(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["model.safetensors"].insert(0, "0" * 64)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    RunFolder(copy).load()
    del manifest["files"]["target.json"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: it does not list target.json"):
        RunFolder(copy).load()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"num_hiddens": 32', '"num_hiddens": "32"', "model.num_hiddens must be int; got '32'"),
        ('"num_hiddens": 32', '"num_hiddens": 32, "num_hiddens": 32', "it has 'num_hiddens' twice"),
        ('"num_layers": 1', '"num_layers": 0', r"model.num_layers must be in \[1, 64\]; got 0"),
        ('"bidirectional": true', '"bidirectional": 1', "model.bidirectional must be bool; got 1"),
        ('"attention": "additive"', '"attention": "bahdanau"', "model.attention must be additive or dot or"),
        (
            '"tokenizer": "words"',
            '"tokenizer": "sentences"',
            "corpus.tokenizer must be book or words or unigram or bpe",
        ),
        ('"format": 1', '"format": true', "config.json has format True"),
    ],
)
def test_a_broken_configuration_is_an_error_with_the_reason(copy, old, new, message):
    text = (copy / "config.json").read_text()
    assert old in text
    (copy / "config.json").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        RunFolder(copy).load()


def test_a_folder_without_a_manifest_is_refused_since_nothing_would_find_damage(copy):
    (copy / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no run that can be loaded: manifest.json is missing"):
        RunFolder(copy).load()


def test_the_whole_configuration_is_read_back(copy):
    config = RunFolder(copy).load().config
    assert isinstance(config, Config)
    assert (config.corpus.train, config.model.num_hiddens, config.out.name) == (600, 32, "small")

"""Damaged folders, folders of older versions, and settings that are none."""

import json
import shutil

import numpy as np
import pytest

from train.config import Config, ConfigError, ModelConfig, SearchConfig
from train.config_file import read_settings
from train.translation.check_search import check_search, search_bytes
from train.translation.saved_run import SavedRun

FILES = ("config.json", "model.safetensors", "source.json", "target.json")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoint", "tensorboard"))


def test_every_flipped_bit_is_found_and_the_file_named(copy):
    rng = np.random.default_rng(0)
    assert SavedRun.load(copy).tokenizer == "words"
    for path in [copy / name for name in (*FILES, "manifest.json")]:
        whole = path.read_bytes()
        for place in rng.integers(0, 8 * len(whole), 6):
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << (place % 8)
            path.write_bytes(flipped)
            with pytest.raises(ConfigError) as error:
                SavedRun.load(copy)
            assert path.name == "manifest.json" or path.name in str(error.value)
        path.write_bytes(whole)
    SavedRun.load(copy)


def test_a_file_may_be_any_that_the_manifest_announces_and_needed_ones_must_be_listed(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["model.safetensors"].insert(0, "0" * 64)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    SavedRun.load(copy)
    del manifest["files"]["target.json"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"manifest.json is damaged: it does not list target.json"):
        SavedRun.load(copy)


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
            "corpus.tokenizer must be one of book, words, unigram, bpe",
        ),
        ('"format": 1', '"format": true', "has format True"),
    ],
)
def test_a_broken_configuration_is_an_error_with_the_reason(copy, old, new, message):
    (copy / "manifest.json").unlink()
    text = (copy / "config.json").read_text()
    assert old in text
    (copy / "config.json").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        SavedRun.load(copy)


def test_a_folder_that_calls_lengths_as_older_versions_did_is_read(copy):
    (copy / "manifest.json").unlink()
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace("max_source_len", "max_source_words"))
    assert SavedRun.load(copy).max_source_len == json.loads(text)["max_source_len"]


def test_the_whole_configuration_is_read_back(copy):
    config = SavedRun.load(copy).config()
    assert isinstance(config, Config)
    assert (config.corpus.train, config.model.num_hiddens, config.out.name) == (600, 32, "run")
    with pytest.raises(ValueError, match=r"there is no setting model\.flux"):
        read_settings(Config, {"model": {"flux": 1}})
    with pytest.raises(ValueError, match="model must be settings; got 3"):
        read_settings(Config, {"model": 3})


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (SearchConfig(beam_size=101), "beam_size must be at most 100, the size of the target vocabulary; got 101"),
        (SearchConfig(coverage_penalty=1.0), "coverage_penalty needs attention, and the model has none"),
        (SearchConfig(min_len=21), "min_len must be at most 20, the longest target in the training"),
        (SearchConfig(max_len=65_536, beam_size=100, batch_size=60_000), r"the search needs about \d+\.\d GB"),
        (SearchConfig(sample=True, num_samples=10_000, batch_size=60_000), "lower num_samples, max_len"),
    ],
)
def test_a_search_that_cannot_be_done_is_refused(search, message):
    check_search(SearchConfig(min_len=20), ModelConfig(attention="none"), 100, 30, 20)
    with pytest.raises(ConfigError, match=message):
        check_search(search, ModelConfig(attention="none"), 100, 30, 20)


def test_ten_thousand_samples_of_a_hundred_sentences_are_counted_in_gigabytes():
    search = SearchConfig(sample=True, num_samples=10_000)
    assert 5e9 < search_bytes(search, ModelConfig(), 500, 13, 14) < 40e9
    assert search_bytes(SearchConfig(beam_size=5), ModelConfig(), 8000, 60, 60) < 1e9

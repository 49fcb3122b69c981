import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest

from jax_attn.modules.attention import ATTENTIONS
from jax_attn.settings import AttentionName
from torch_ref.modules import attention as torch_attention
from train.command_line.train_options import parse
from train.data.subwords import vocab_size_for
from train.presets import BOOK, DEMO, DEMO_TRANSFORMER, OWN, SUBWORDS_TRANSFORMER, fit_to_pairs
from train.setting import ConfigError


def test_without_arguments_the_demo_runs():
    assert parse([]) == ("demo", DEMO, None)


@pytest.mark.parametrize("arguments", ["--data a.txt", "--data=a.txt", "--seed 3 --data a.de a.en"])
def test_ones_own_data_without_a_preset_are_cut_into_subwords(arguments):
    preset, config, _ = parse(arguments.split())
    assert preset == "own"
    assert replace(config, data=(), seed=0) == OWN
    assert config.corpus.tokenizer == "unigram"
    with pytest.raises(ConfigError, match="own needs --data FILE"):
        parse(["own"])
    assert parse(["demo", "--data", "a.txt"]).config == replace(DEMO, data=("a.txt",))


@pytest.mark.parametrize(
    ("pairs", "epochs", "vocab_size"), [(100, 20, 500), (5_000, 20, 1000), (29_000, 20, 5800), (10**6, 5, 8000)]
)
def test_epochs_and_vocabulary_of_ones_own_data_follow_the_number_of_pairs(pairs, epochs, vocab_size):
    assert (fit_to_pairs(OWN, pairs).epochs, vocab_size_for(pairs)) == (epochs, vocab_size)
    chosen = parse(["--data", "a.txt", "--epochs", "3"]).config
    assert fit_to_pairs(chosen, pairs) == chosen


def test_options_change_the_preset():
    preset, config, _ = parse(["book", "--data", "fra.txt", "--model.num-hiddens", "8"])
    assert preset == "book"
    assert config.model.num_hiddens == 8
    assert config.corpus == BOOK.corpus


@pytest.mark.parametrize(
    ("arguments", "name", "settings"),
    [
        ("--training.optimizer adamw --training.learning-rate 0.001", "adamw", {}),
        ("--training.optimizer adamw --training.weight-decay 0.1 --epochs 3", "adamw", {"weight_decay": 0.1}),
        ("--training.weight_decay=0.0 --training.betas 0.5 0.75", "adam", {"betas": (0.5, 0.75)}),
        ("--training.optimizer momentum --training.nesterov", "momentum", {"nesterov": True}),
        ("--training.momentum 0.0 --training.optimizer momentum", "momentum", {"momentum": 0.0}),
        ("--training.optimizer sgd --training.momentum 0.5", "sgd", {"momentum": 0.5}),
    ],
)
def test_an_optimiser_has_its_own_options(arguments, name, settings):
    config = parse(arguments.split()).config
    assert (config.training.optimizer, config.training.optimizer_settings) == (name, settings)


def test_an_optimisers_option_changes_that_of_a_file(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"training": {"optimizer_settings": {"weight_decay": 0.1}}}))
    for given, settings in (("0.0", {"weight_decay": 0.0}), ("0.2", {"weight_decay": 0.2})):
        command = parse(["--config", str(tmp_path / "a.json"), "--training.weight-decay", given])
        assert command.config.training.optimizer_settings == settings
    command = parse(["--config", str(tmp_path / "a.json"), "--training.optimizer", "adagrad"])
    assert command.config.training.optimizer_settings == {}  # they were those of the other optimiser


@pytest.mark.parametrize("arguments", ["--data fra.txt book", "--data fra.txt book --epochs 3"])
def test_a_preset_after_options_is_said_to_come_first(arguments):
    words = arguments.split()
    words.remove("book")
    with pytest.raises(ConfigError, match=f"the preset comes first: python -m train.nmt book {' '.join(words)}$"):
        parse(arguments.split())


def test_init_takes_the_settings_of_the_run_unless_there_is_a_preset(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"preset": "book", "epochs": 7, "model": {"cell": "gru"}}))
    preset, config, _ = parse(["--init", str(tmp_path), "--data", "fra.txt", "--epochs", "9"])
    assert (preset, config.epochs, config.model.cell) == ("book", 9, "gru")
    assert config.model.num_hiddens == BOOK.model.num_hiddens
    config = parse(["book", "--init", str(tmp_path), "--data", "fra.txt"]).config
    assert config == replace(BOOK, init=tmp_path, data=("fra.txt",))


def test_parts_need_not_divide_a_batch_size_that_is_not_used():
    training = parse(["--training.batch-tokens", "4000", "--training.num-parts", "3"]).config.training
    assert (training.batch_tokens, training.num_parts) == (4000, 3)


def test_a_presets_name_may_be_a_value():
    assert parse(["--search.examples", "go .", "book"])[1].search.examples == ("go .", "book")


@pytest.mark.parametrize("arguments", [["--help"], ["book", "-h"], ["own", "-h"]])
def test_help_shows_every_day_options_with_their_values(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    text = capsys.readouterr().out
    config = {"book": BOOK, "own": OWN}.get(arguments[0], DEMO)
    assert ended.value.code == 0
    assert len(text.splitlines()) < 55
    assert "  --model.attention additive       The scoring function (additive, dot," in text
    for line in text.splitlines():
        if line.startswith("  --"):
            option, value = line.split()[:2]
            setting = config
            for name in option.removeprefix("--").replace("-", "_").split("."):
                setting = getattr(setting, name)
            assert value == str(setting) or (value in ("FILE", "FOLDER", "RUN", "N") and not setting)


def test_all_help_shows_the_settings_of_every_optimiser(capsys):
    with pytest.raises(SystemExit):
        parse(["--help-all"])
    text = capsys.readouterr().out
    for option in (
        "--corpus.min-freq",
        "--training.clip-norm",
        "--training.lr-decay 0.0",
        "--training.betas 0.9 0.999",
    ):
        assert option in text


@pytest.mark.parametrize(
    ("preset", "shown"),
    [
        ("book", "20,000 of the embedded corpus, or all that are left of a file. (default: 1000)"),
        ("multi30k", "Without it the embedded English-French corpus. (default: multi30k:de-en)"),
        ("own", "1 for the embedded corpus or with loss sentences. (default: 6)"),
        ("own", "Passes over the training pairs. (default: by the number of pairs)"),
        ("demo", "1 for the embedded corpus or with loss sentences. --training.learning-rate"),
    ],
)
def test_all_help_shows_the_defaults_that_the_preset_sets(preset, shown, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # one column
    with pytest.raises(SystemExit):
        parse([preset, "--help-all"])
    assert shown in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--training.batchsize 3", "--training.batch-size"),
        ("--batch-size 3", "Perhaps you meant"),
        ("--lr 0.01", "Unrecognized options: --lr, 0.01"),
        ("--training.optimizer foo", "invalid choice"),
        ("--epochs three", "it must be a whole number, or None to leave it unset; got 'three'"),
        ("--model.dropout high", "it must be a number; got 'high'"),
    ],
)
def test_an_unknown_option_ends_the_program_with_a_message(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == 2
    assert message in " ".join("".join(capsys.readouterr()).split())


def test_help_and_wrong_settings_are_answered_without_importing_jax():
    program = "import sys; from train import nmt; nmt.main(['--epochs', '0']); sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "epochs must be in [1, 1000000]; got 0" in done.stderr


def test_the_command_line_knows_every_attention():
    assert set(get_args(AttentionName)) == {*ATTENTIONS, "none"} == {*torch_attention.ATTENTIONS, "none"}


ONE_VOCABULARY = (
    "needs one vocabulary for both languages, which only corpus.tokenizer unigram or bpe learns, with corpus.joint; "
    "give model.tie-embeddings none or output"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.norm pre", "--model.norm needs --model.family transformer; the model's family is recurrent"),
        (
            "--model.family transformer --model.no-bridge",
            "--model.no-bridge needs --model.family recurrent; the model's family is transformer",
        ),
        (
            "--model.family transformer --model.num-heads 3",
            "model.embed-size must be a multiple of model.num-heads; got 64 for 3 heads",
        ),
        (
            "--model.family transformer --model.alignment-layer 2",
            "model.alignment-layer must be one of 2 layers, counted from 0; got 2",
        ),
        ("--model.family transformer --model.num-layers 0", "model.num-layers must be in [1, 64]; got 0"),
        (
            "--model.family transformer --model.num-heads 0 --model.alignment-head 0",
            "model.num-heads must be in [1, 65536]; got 0",
        ),
        (
            "--model.family transformer --model.positions opennmt --model.embed-size 2 --model.num-heads 1",
            "model.embed-size must be at least 3 with model.positions opennmt; got 2",
        ),
        (
            "--model.family transformer --model.max-len 40",
            "model.max-len is the number of learnt positions, and model.positions is interleaved",
        ),
        ("--model.num-heads 2", "model.num-heads does nothing without model.attention multi_head"),
        (
            "--corpus.vocab-size 50 --search.top-k 3",
            "corpus.vocab-size does nothing without corpus.tokenizer unigram or bpe; "
            "search.top-k does nothing without search.sample",
        ),
        ("multi30k --corpus.min-freq 2", "corpus.min-freq does nothing without corpus.tokenizer words or book"),
        ("--model.tie-embeddings all", f"model.tie-embeddings all {ONE_VOCABULARY}"),
        ("multi30k --corpus.no-joint", f"model.tie-embeddings all {ONE_VOCABULARY}"),
        ("multi30k-transformer --corpus.no-joint", f"model.tie-embeddings all {ONE_VOCABULARY}"),
        (
            "--model.family transformer --model.tie-embeddings input",
            f"model.tie-embeddings input {ONE_VOCABULARY}",
        ),
    ],
)
def test_a_setting_of_the_other_family_or_that_cannot_be_is_named(options, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        parse(options.split())


def test_another_family_has_the_settings_that_suit_the_preset():
    def model(options):
        return parse(options.split()).config.model

    assert model("--model.family transformer") == DEMO_TRANSFORMER.model
    assert model("--model.family transformer --corpus.tokenizer unigram") == DEMO_TRANSFORMER.model
    assert model("--data a b --model.family transformer") == SUBWORDS_TRANSFORMER.model


def test_a_value_that_one_family_alone_has_is_read_with_that_family():
    options = "--model.family transformer --corpus.tokenizer unigram --model.tie-embeddings input"
    assert parse(options.split()).config.model.tie_embeddings == "input"


def test_the_preset_of_the_transformer_is_the_other_family_s_with_more_epochs():
    given = parse(["multi30k-transformer"]).config
    assert given == parse(["multi30k", "--model.family", "transformer", "--epochs", "36"]).config

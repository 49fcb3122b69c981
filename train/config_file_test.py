import dataclasses
import json

import pytest

from jax_attn.settings import RecurrentConfig, TransformerConfig
from train.command_line.train_options import parse
from train.presets import DEMO_TRANSFORMER, PRESETS
from train.setting import ConfigError

CHANGED = "--data x --epochs 7 --model.num-layers 4 --training.optimizer adamw --training.betas 0.5 0.75"
CHANGED += " --search.examples a b"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_configuration_of_a_run_gives_the_run_again_and_options_change_it(tmp_path, preset):
    config = parse([preset, *CHANGED.split()]).config
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"format": 1, "preset": preset} | dataclasses.asdict(config), default=str))
    assert parse(["--config", str(path)]) == (preset, config, None)
    changed = parse(["--config", str(path), "--epochs", "9", "--model.num-layers", "5"]).config
    assert changed == dataclasses.replace(config, epochs=9, model=dataclasses.replace(config.model, num_layers=5))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'preset = "book"\ndata = "x"\nepochs = 3\n[model]\nnum_hiddens = 8\n'),
        ("a.json", '{"preset": "book", "data": "x", "epochs": 3, "model": {"num_hiddens": 8}}'),
    ],
)
def test_json_and_toml_mean_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    preset, config, _ = parse(["--config", str(tmp_path / name)])
    book = PRESETS["book"]
    assert preset == "book"
    assert config == dataclasses.replace(
        book, data=("x",), epochs=3, model=dataclasses.replace(book.model, num_hiddens=8)
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "is no valid JSON"),
        ("a.yaml", "epochs: 3", "a.yaml is no valid JSON"),
        ("a.toml", "=", "is no valid TOML"),
        ("a.json", '{"epochs": 3, "epochs": 4}', "it has 'epochs' twice"),
        ("a.json", "[1]", "must hold settings by name; got list"),
        ("a.json", '{"preset": "x"}', "there is no preset 'x'"),
        ("a.json", '{"model": {"flux": 1}}', r"there is no setting model\.flux"),
        ("a.json", '{"model": 3}', "model must be settings; got 3"),
        ("a.json", '{"model": {"family": "rnn"}}', "model.family must be recurrent or transformer; got 'rnn'"),
        ("a.json", '{"model": {"family": []}}', r"model.family must be recurrent or transformer; got \[\]"),
        (
            "a.json",
            '{"model": {"family": "transformer", "cell": "lstm"}}',
            "model.cell needs model.family recurrent; the model's family is transformer",
        ),
        ("a.json", '{"model": {"norm": "pre"}}', "model.norm needs model.family transformer"),
        (
            "a.json",
            '{"model": {"family": "transformer", "activation": "tanh"}}',
            "model.activation must be relu or gelu or silu; got 'tanh'",
        ),
        (
            "a.json",
            '{"model": {"family": "transformer", "num_heads": 5}}',
            "model.embed-size must be a multiple of model.num-heads; got 64 for 5 heads",
        ),
        ("a.json", '{"epochs": 0}', r"epochs must be in \[1, 1000000\]; got 0"),
        ("a.json", '{"languages": ["de", "en"]}', "languages are the endings of the files of data; give data, too"),
        ("a.json", '{"corpus": {"tokenizer": "pretrained"}}', "corpus.tokenizer pretrained needs --init"),
        *(
            ("a.json", json.dumps({"training": {"optimizer_settings": settings}}), message)
            for settings, message in (
                ({"weight_decay": "x"}, "training.weight_decay must be float; got 'x'"),
                ({"eps": True}, "training.eps must be float; got True"),
                ({"betas": 0.9}, "training.betas must be 2 values; got 0.9"),
                ({"betas": [0.9]}, r"training.betas must be 2 values; got \(0.9,\)"),
                ({"momentum": 0.9}, "training.momentum belongs to optimizer sgd or momentum or rmsprop; got adam"),
            )
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        parse(["--config", str(tmp_path / name)])


def test_a_file_changes_the_preset_of_the_command_line_and_may_not_name_another(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"epochs": 3}')
    assert parse(["multi30k", "--config", str(path)]) == parse(["multi30k", "--epochs", "3"])
    path.write_text('{"preset": "multi30k", "epochs": 3}')
    assert parse(["multi30k", "--config", str(path)]) == parse(["multi30k", "--epochs", "3"])
    with pytest.raises(ConfigError, match="changes the preset multi30k, and not book: name multi30k, or leave"):
        parse(["book", "--config", str(path), "--data", "fra.txt"])


def test_a_file_without_a_family_is_of_a_recurrent_model_and_another_family_has_its_own_defaults(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"model": {"num_hiddens": 8}}')
    assert parse(["--config", str(path)]).config.model == RecurrentConfig(num_hiddens=8)
    path.write_text('{"model": {"family": "transformer", "num_hiddens": 8}}')
    config = parse(["--config", str(path)]).config
    assert config.model == TransformerConfig(num_hiddens=8)
    assert config.training == DEMO_TRANSFORMER.training
    assert config == parse(["--model.family", "transformer", "--model.num-hiddens", "8"]).config
    config = parse(["--config", str(path), "--model.family", "recurrent"]).config
    assert config == parse(["--model.num-hiddens", "8"]).config
    path.write_text('{"training": {"batch_size": 32}}')
    config = parse(["--config", str(path), "--model.family", "transformer"]).config
    assert config.training == dataclasses.replace(DEMO_TRANSFORMER.training, batch_size=32)

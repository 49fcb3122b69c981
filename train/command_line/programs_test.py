import re

import pytest

from train.command_line.programs import main


def test_a_command_runs_its_program(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert "--data FILE" in capsys.readouterr().out
    assert main(["translate", "no-such-run", "hello"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no folder no-such-run")


def test_help_lists_the_commands_and_another_one_is_an_error(capsys):
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        assert "jax-attn evaluate" in capsys.readouterr().out
    assert main(["tain"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no command 'tain'; there are:\n  jax-attn train ")


@pytest.mark.parametrize("command", ["train --out {}/run", "translate run x", "evaluate run", "import {} --out {}/run"])
def test_a_device_that_is_not_there_is_one_line_of_each_program(command, tmp_path, capsys, monkeypatch):
    def fail():
        raise AssertionError

    monkeypatch.setattr("jax.devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert main(command.format(*[tmp_path] * 2).split()) == 2
    assert re.fullmatch("error: there is no device for JAX_PLATFORMS=cuda: [^\n]*\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())

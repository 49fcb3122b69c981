import re
import subprocess
import sys
from pathlib import Path

import pytest

from jax_attn.commands import main


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


TRAIN = "train --corpus.train 50 --corpus.valid 5 --corpus.test 5 --out {}/run"


@pytest.mark.parametrize("command", [TRAIN, "translate run x", "evaluate run", "import {} --out {}/run"])
def test_a_device_that_is_not_there_is_one_line_of_each_program(command, tmp_path, capsys, monkeypatch):
    def fail():
        raise AssertionError

    monkeypatch.setattr("jax.devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert main(command.format(*[tmp_path] * 2).split()) == 2
    assert re.fullmatch("error: there is no device for JAX_PLATFORMS=cuda: [^\n]*\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def without(*modules: str) -> list[str]:
    """Return the beginning of a command that runs as if these were not installed."""
    code = f"""
import sys
from importlib.machinery import PathFinder
def find_spec(name, *rest, found=PathFinder.find_spec):
    return None if name.partition(".")[0] in {modules} else found(name, *rest)
PathFinder.find_spec = find_spec
from jax_attn.commands import main
sys.exit(main(sys.argv[1:]))
"""
    return [sys.executable, "-c", code]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_to_compare_needs_no_extra_but_torch():
    done = run([*without("sacrebleu", "orbax", "jinja2"), "compare", "none.py:build"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: none.py:build must be a file and a function in it")


def test_an_extra_that_is_missing_is_named_on_one_line():
    for command, module, extra in (("translate", "sacrebleu", "train"), ("compare", "tyro", "torch")):
        done = run([*without(module), command, "x"])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: jax-attn {command} needs {module}; run: {sys.executable} -m pip install 'jax-attn[{extra}]'\n"
        )

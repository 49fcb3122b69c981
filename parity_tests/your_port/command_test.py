"""The command: what it prints and writes, and with which status it ends."""

import json
import os
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import yaml

from parity_tests.your_port import command
from parity_tests.your_port.record import SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
PAGE, LOOP = ((DOCS / name).read_text("utf-8") for name in ("parity.md", "porting.md"))
JAX_ATTN = str(Path(sys.executable).with_name("jax-attn"))
main = partial(command.main, isolated=False)  # most need no process of their own
PORT = """
import os, sys
import jax, numpy as np, torch

X = np.random.default_rng(0).normal(size=(3, 4))
LINEAR = torch.nn.Linear(4, 2)

def pair(jax_module, inputs=(X,), **options):
    return {"torch_module": LINEAR, "jax_module": jax_module, "inputs": inputs, "dtypes": ("float64",), **options}

def right(): return pair(lambda weights, input: input @ weights["weight"].T + weights["bias"])
def wrong(): return pair(lambda weights, input: input @ weights["weight"].T)
def nan_in_jax(): return pair(lambda weights, input: input @ weights["weight"].T * jax.numpy.nan)
def three(): return torch.tanh, jax.numpy.tanh, X
def raises(): return 1 / 0
def ends(): sys.exit(0)
def skips(): import pytest; pytest.skip("no model here")
def number(): return 3
def nan_in_torch(): return torch.log, jax.numpy.log, -X
def unknown_option(): return pair(None, model=3)
def too_large(): return torch.zeros(2**50), None, X
def too_large_inside(): return (lambda x: x * torch.zeros(2**50)), jax.numpy.tanh, X
def no_file(): return "none.npz", jax.numpy.tanh
def elsewhere(): os.chdir("/"); return right()
def vanishes(): os._exit(0)
def closes(): sys.stdout.close(); os.close(1); return right()
def is_killed(): os.kill(os.getpid(), 9)
def both(x): return {"a|b": x, "`c`": x, "d\\ne": x, chr(27) + "[2Jf": x}
def names(): return {**pair(both), "torch_module": both, "name": "a\\n# b | `c` <d>"}
def weights_of_a_file(): return {**right(), "weights": "model.pt"}
def nan_bound(): return {**right(), "bound": float("nan")}
def empty(): return (lambda x: {}), (lambda x: {}), X
"""


@pytest.fixture
def port(tmp_path: Path) -> Path:
    (tmp_path / "port.py").write_text(PORT, "utf-8")
    return tmp_path / "port.py"


@pytest.mark.parametrize(("build", "status"), [("right", 0), ("three", 0), ("wrong", 1), ("nan_in_jax", 1)])
def test_the_status_and_the_first_line_say_whether_the_two_agree(port, build, status, capsys) -> None:
    assert main([f"{port}:{build}"]) == status
    assert (" DIFFERS in " if status else " agrees (") in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("port.py:raises", "raised ZeroDivisionError in line 15: division by zero"),
        ("port.py:ends", "raised SystemExit in line 16"),
        ("port.py:skips", "raised Skipped in line 17: no model here"),
        ("port.py:nan_bound", "bound must be a relative error, from 0 to below 1; got nan"),
        ("port.py:empty", "return the tensors to be compared"),
        ("port.py:number", "must return (torch_module, jax_module, inputs), or a dict of compare's arguments; got int"),
        ("port.py:nothing", "has no function nothing"),
        ("none.py:build", "there is no file"),
        ("port.py", "must be a file and a function in it, such as port.py:build"),
        ("port.py:nan_in_torch", "Choose inputs without it"),
        ("port.py:unknown_option", "unexpected keyword argument 'model'"),
        ("port.py:too_large", "out of memory: use smaller inputs"),
        ("port.py:too_large_inside", "out of memory: use smaller inputs"),
        ("port.py:no_file --blind", "--blind makes mistakes in PyTorch's module, and none.npz is a record of its runs"),
        (
            "port.py:weights_of_a_file",
            "weights must be a state dict of the PyTorch module; got 'model.pt': read the file",
        ),
        ("port.py:no_file", "No such file or directory: 'none.npz'"),
    ],
)
def test_what_cannot_be_compared_is_a_line_that_says_why(port, build, message, capsys) -> None:
    out = port.parent / "port.json"
    assert main([*f"{port.parent}/{build}".split(), "--json", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"error: [^\n]*\n", printed.err)
    assert message in printed.err
    record = json.loads(out.read_text("utf-8"))
    assert (record["verdict"], record["lines"]) == ("not compared", [printed.err.strip()])


def test_a_device_that_is_not_there_is_one_line(port, capsys, monkeypatch) -> None:
    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr("jax.devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    for build in ("right", "raises"):  # a builder may be the first that asks for a device
        assert main([f"{port}:{build}"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: there is no device for JAX_PLATFORMS=cuda: JAX's plugin for it")


@pytest.mark.slow  # processes that import both frameworks
@pytest.mark.parametrize(
    ("build", "status", "words"),
    [
        ("vanishes", 2, "ended the process with status 0, before there was a verdict"),
        ("is_killed", 2, "was killed by signal 9, as a system does when its memory is full"),
        ("closes", 0, "Linear agrees (1 output, 3 gradients; float64)"),
        ("elsewhere", 0, "Linear agrees (1 output, 3 gradients; float64)"),
    ],
)
def test_nothing_but_a_verdict_says_that_the_two_agree(port, build, status, words) -> None:
    arguments = [JAX_ATTN, "compare", "port.py:" + build, "--json", "port.json"]
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(arguments, cwd=port.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    assert words in (done.stderr if status else done.stdout)
    record = json.loads((port.parent / "port.json").read_text("utf-8"))
    assert record["verdict"] == ("not compared" if status else "agrees")


def test_names_do_not_break_the_lines_or_the_markdown(port, capsys) -> None:
    out = port.parent / "port.md"
    assert main([f"{port}:names", "--markdown", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("a�# b | `c` <d> agrees (4 outputs")
    text = out.read_text("utf-8")
    assert chr(27) not in printed + text
    assert text.splitlines()[0] == r"### a�\# b | \`c\` \<d\>: agrees".replace("b |", r"b \|")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [7] * len(rows)
    names = {row.split(" | ")[0] for row in rows if "gradient" not in row}
    assert names == {"| `d�e`", r"| \`c\`", r"| a\|b", "| `�[2Jf`"}


def test_help_names_the_command_of_the_documentation(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith("usage: jax-attn compare [-h] [OPTIONS] FILE.py:FUNCTION\n")


def test_a_folder_that_is_missing_is_said_before_anything_runs(port, capsys) -> None:
    assert main([f"{port}:raises", "--json", f"{port.parent}/none/port.json"]) == 2
    assert "the folder of" in capsys.readouterr().err


def test_the_files_hold_what_was_found_in_the_fields_of_the_documentation(port, capsys) -> None:
    files = [port.parent / "port.json", port.parent / "port.md"]
    assert main([f"{port}:wrong", "--json", str(files[0]), "--markdown", str(files[1])]) == 1
    record = json.loads(files[0].read_text("utf-8"))
    assert (record["schema"], record["name"], record["verdict"]) == (SCHEMA, "Linear", "differs")
    assert record["lines"] == capsys.readouterr().out.splitlines()
    by_name = {tensor["tensor"]: tensor for tensor in record["tensors"]}
    assert by_name["result"]["error"] > by_name["result"]["bound"] > 0
    assert [name for name, tensor in by_name.items() if not tensor["failed"]] == [
        "gradient of input", "gradient of weight",
    ]  # fmt: skip
    assert record["first_place"]["tensor"] == "result"
    (cause,) = record["causes"]
    explains = "explains outputs and gradients on fresh draws"
    assert cause == {"words": "bias is missing in JAX", "confirmed": True, "explains": explains}
    assert {"jax": "weight", "shape": "[2, 4]", "torch": "weight", "layout": "as it is"} in record["weights"]
    assert {"jax", "torch", "numpy", "python"} <= record["versions"].keys()
    rows = re.findall(r"^\| `(.*?)` \|.*?(\S+) \|$", files[1].read_text("utf-8"), re.MULTILINE)
    assert [row[1] for row in rows] == ["**DIFFERS**", "**DIFFERS**", "agrees", "agrees"]
    parts = [record, record["tensors"][0], record["first_place"], record["causes"][0], record["weights"][0]]
    table = PAGE[PAGE.index("| field of the JSON |") :].partition("\n\n")[0]
    assert [name for part in parts for name in part if f"`{name}`" not in table] == []


@pytest.mark.slow  # a process that imports both frameworks
def test_the_command_of_the_documentation_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(# port\.py\n.*?)```", PAGE, re.DOTALL)
    assert example is not None
    (tmp_path / "port.py").write_text(example[1], "utf-8")
    done = subprocess.run(
        [JAX_ATTN, "compare", f"{tmp_path}/port.py:build"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "Linear agrees (1 output, 3 gradients; float64 and float32)",
    )


@pytest.mark.slow
def test_the_port_of_the_loop_gives_the_verdict_of_the_page_and_agrees_once_it_is_mended(tmp_path, capsys) -> None:
    example = re.search(r"```python\n( *# port\.py\n.*?)```", LOOP, re.DOTALL)
    promised = re.search(r"```\n(   Sequential DIFFERS.*?)   ```", LOOP, re.DOTALL)
    assert example is not None
    assert promised is not None
    port = tmp_path / "port.py"
    port.write_text(textwrap.dedent(example[1]), "utf-8")
    assert main([str(port) + ":build"]) == 1
    said, expected = capsys.readouterr().out.splitlines(), textwrap.dedent(promised[1]).splitlines()
    number = re.compile(r"[\d.]+(e[-+]\d+)?")
    assert [number.sub("#", line) for line in said] == [number.sub("#", line) for line in expected]
    port.write_text(port.read_text("utf-8").replace("nnx.gelu,", "lambda x: nnx.gelu(x, approximate=False),"), "utf-8")
    assert main([str(port) + ":build", "--blind"]) == 0
    assert re.search(r"^  blind: each of \d+ known mistakes would be seen$", capsys.readouterr().out, re.MULTILINE)


def test_the_page_says_what_every_line_of_a_verdict_asks_for() -> None:
    source = (Path(__file__).parent / "report.py").read_text("utf-8")
    lines = re.findall(r'f?"  (\w[\w ]*):? ', source)
    assert len(lines) >= 10
    table = LOOP[LOOP.index("## What each line asks for") :]
    assert [line for line in lines if f"`{line}" not in table] == []


def test_the_workflow_to_copy_runs_the_command_and_keeps_its_files() -> None:
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    steps = yaml.safe_load(text[1])["jobs"]["compare"]["steps"]
    (command,) = [step["run"] for step in steps if "compare" in step.get("run", "")]
    assert f"    {command}" in PAGE
    assert [step["if"] for step in steps if "port.md" in step.get("run", "") and "if" in step] == ["always()"]

"""The file for agents: its front matter, and that it names nothing that is not there."""

import re
from pathlib import Path

import yaml

import parity_tests

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "skills" / "port-pytorch-to-jax" / "SKILL.md").read_text("utf-8")


def test_the_front_matter_is_that_of_a_skill() -> None:
    _, front, body = TEXT.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert set(fields) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", fields["name"])
    assert 0 < len(fields["description"]) <= 1024
    assert len(body.splitlines()) < 100


def test_what_it_names_is_there() -> None:
    called = set(re.findall(r"\b(compare_\w+)", TEXT))
    assert len(called) >= 4
    assert [name for name in called if not hasattr(parity_tests, name)] == []
    pages = re.findall(r"docs/\w+\.md", TEXT)
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    options = set(re.findall(r"--[a-z]+", TEXT))
    source = (ROOT / "parity_tests" / "your_port" / "command.py").read_text("utf-8")
    assert [option for option in options if f"    {option[2:]}: " not in source] == []
    lines = re.findall(r"`((?:left over in|weights: …|cause: the compiler|precision:)[^`]*)`", TEXT)
    report = "".join(
        (ROOT / "parity_tests" / "your_port" / name).read_text("utf-8") for name in ("report.py", "compiled.py")
    )
    assert [line for line in lines if line.split(":")[0].split(" in ")[0] not in report] == []

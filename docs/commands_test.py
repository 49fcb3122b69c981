"""Each command of the pages has options that its program knows."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from train import nmt

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PROGRAM = r"python -m train\.(nmt|translate|evaluate)"
LINE = re.compile(rf"^ *(?:\$ )?(?:\.venv/bin/)?{PROGRAM}\b(.*)$", re.MULTILINE)
IN_PROSE = re.compile(rf"`{PROGRAM} ([^`]+)`")
FORMS = re.compile(r"\[--|\$|…|--help")
"""What shows the form of a command (options in brackets, variables of the shell), or that it only prints its help."""


def _commands():
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text("utf-8"))
        for program, rest in [*LINE.findall(text), *IN_PROSE.findall(text)]:
            if not FORMS.search(rest):
                arguments = shlex.split(re.split(r" {3,}| [<>] ", rest)[0], comments=True)
                yield pytest.param(program, arguments, id=f"{page.relative_to(ROOT)}: {program} {' '.join(arguments)}")


COMMANDS = list(_commands())


@pytest.mark.parametrize(("program", "arguments"), COMMANDS)
def test_a_command_has_options_that_its_program_knows(program, arguments, monkeypatch):
    if "--resume" in arguments and program == "nmt":
        pytest.skip("a run folder of that name would be needed")
    if program == "nmt":
        if "--init" in arguments:  # its run folder gives the settings
            place = arguments.index("--init")
            arguments = arguments[:place] + arguments[place + 2 :]
        assert nmt.parse(arguments).config
    else:
        ran = []
        module = import_module(f"train.{program}")
        monkeypatch.setattr(module, "run", ran.append)
        assert module.main(arguments) == 0
        assert len(ran) == 1


def test_the_pages_hold_commands():
    assert len(COMMANDS) > 30

"""The README's Python blocks run as they stand, each alone, and print what they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = [
    (page, block)
    for page in ("README.md", "docs/index.md")
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_a_block_runs_as_it_stands_and_prints_what_it_says(page, block, capsys, own_checks):
    if "torch" in block:
        pytest.importorskip("torch")
    exec(compile(block, page, "exec"), {"__name__": "__main__"})
    printed = "".join(capsys.readouterr().out.split())
    promised = re.findall(r"^print\(.*\)  # (.*)", block, re.MULTILINE)
    assert promised
    for said in promised:
        assert "".join(said.split()) in printed

"""The notebooks of the tutorials, and the check of links."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext")
pytest.importorskip("sphinx")

EXTENSIONS = Path(__file__).parent / "extensions"
TUTORIALS = sorted((EXTENSIONS.parent / "tutorials").glob("*.md"))


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXTENSIONS), *sys.path])


@pytest.mark.parametrize("repository", [None, "somebody/something"])
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_folds_what_its_page_folds(tutorial, repository):
    from notebooks import to_notebook

    text = tutorial.read_text("utf-8")
    cells = to_notebook(text, repository, "docs/tutorials").cells
    texts = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert "{admonition}" not in texts
    assert texts.count("<details>") == text.count("```{admonition}") > 0
    folded = [cell for cell in cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert len(folded) == text.count(":tags: [hide-cell]")
    assert all(cell.source.startswith("# @title ") for cell in folded)
    assert "](../" not in texts
    assert cells[0].source.startswith("%pip install") == (repository is not None)


def test_links_that_lead_nowhere_are_found(tmp_path):
    from links import dead_links

    (tmp_path / "a.html").write_text('<p id="here"><a class="x" href="#here">a</a> <a href="b.html#there">b</a>')
    (tmp_path / "b.html").write_text('<a href="a.html#gone">c</a> <a href="c.txt">d</a> <a href="https://x.org">e</a>')
    assert dead_links(tmp_path) == [
        "a.html: b.html#there leads nowhere", "b.html: a.html#gone leads nowhere", "b.html: c.txt leads nowhere",
    ]  # fmt: skip

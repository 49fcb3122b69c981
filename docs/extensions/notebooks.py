"""Make a notebook of each tutorial, to download from its page, and to open in Colab.

Where GITHUB_REPOSITORY names the repository, as in GitHub's Actions, a notebook begins by installing this project from
there, and each page links to Colab. The workflow site.yml publishes the site, with the folder `notebooks`, as the
branch gh-pages.
"""

import os
import re
from pathlib import Path

import jupytext
import nbformat
from sphinx.application import Sphinx

REPOSITORY = os.environ.get("GITHUB_REPOSITORY")

FOLDED = re.compile(r"^```{admonition} (.*)\n(?::\w+:.*\n)+((?:.*\n)*?)```$", re.MULTILINE)
"""What is folded away in MyST. Notebooks show HTML's <details>."""

LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)]+)\)")
"""A link to another page."""


def is_tutorial(name: str) -> bool:
    return name.startswith("tutorials/")


def add_links(app: Sphinx, name: str, content: list[str]) -> None:
    """Put the links to its notebook under the title of a tutorial."""
    if not is_tutorial(name):
        return
    file = f"{Path(name).name}.ipynb"
    links = f'<a href="../notebooks/{file}" download>Download as a notebook</a>'
    if REPOSITORY:
        links += (
            f" · [Open in Colab](https://colab.research.google.com/github/{REPOSITORY}/blob/gh-pages/notebooks/{file})"
        )
    content[0] = re.sub(r"^(# .*)$", rf"\1\n\n{links}", content[0], count=1, flags=re.MULTILINE)


def to_notebook(text: str, repository: str | None, folder: str) -> nbformat.NotebookNode:
    """Convert a MyST notebook; with a repository, a cell in front installs this project from there.

    Cells that the page folds away, as the answers of exercises, are folded in JupyterLab and in Colab too.
    """
    address = f"https://github.com/{repository}"
    notebook = jupytext.reads(text, "md:myst")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = FOLDED.sub(r"<details><summary>\1</summary>\n\n\2\n</details>", cell.source)
            cell.source = LINK.sub(rf"[\1]({address}/blob/HEAD/{folder}/\2)" if repository else r"\1", cell.source)
        elif "hide-cell" in cell.metadata.get("tags", ()):
            cell.metadata |= {"jupyter": {"source_hidden": True, "outputs_hidden": True}, "cellView": "form"}
            cell.source = f"# @title Folded: run this cell to see what it does\n{cell.source}"
    if repository:
        install = f'%pip install -q "jax-attn[train,torch] @ git+{address}"'
        notebook.cells.insert(0, nbformat.v4.new_code_cell(install))
    return notebook


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "notebooks"
    folder.mkdir(exist_ok=True)
    for name in filter(is_tutorial, app.env.found_docs):
        text = Path(app.env.doc2path(name)).read_text(encoding="utf-8")
        nbformat.write(to_notebook(text, REPOSITORY, "docs/tutorials"), folder / f"{Path(name).name}.ipynb")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_links)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

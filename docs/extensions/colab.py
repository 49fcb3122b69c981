"""Make notebooks of the tutorials for Colab, and link each page to its own.

They are written only where GITHUB_REPOSITORY names the repository, as it does in GitHub's Actions: a notebook begins by
installing this project from there. The workflow site.yml publishes the site, with the folder `notebooks`, as the branch
gh-pages.
"""

import os
import re
from pathlib import Path

import jupytext
import nbformat
from sphinx.application import Sphinx

REPOSITORY = os.environ.get("GITHUB_REPOSITORY")

FOLDED = re.compile(r"^```{admonition} (.*)\n(?::\w+:.*\n)+((?:.*\n)*?)```$", re.MULTILINE)
"""What is folded away in MyST. Colab shows HTML's <details>."""

LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
"""A link to another page."""


def is_tutorial(name: str) -> bool:
    return name.startswith("tutorials/")


def add_link(app: Sphinx, name: str, content: list[str]) -> None:
    """Put the link to Colab under the title of a tutorial."""
    if REPOSITORY and is_tutorial(name):
        address = (
            f"https://colab.research.google.com/github/{REPOSITORY}/blob/gh-pages/notebooks/{Path(name).name}.ipynb"
        )
        content[0] = re.sub(r"^(# .*)$", rf"\1\n\n[Open in Colab]({address})", content[0], count=1, flags=re.MULTILINE)


def to_notebook(text: str, repository: str, folder: str) -> nbformat.NotebookNode:
    """Convert a MyST notebook, with a cell in front that installs this project."""
    address = f"https://github.com/{repository}"
    notebook = jupytext.reads(text, "md:myst")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = FOLDED.sub(r"<details><summary>\1</summary>\n\n\2\n</details>", cell.source)
            cell.source = LINK.sub(rf"]({address}/blob/HEAD/{folder}/\1)", cell.source)
    install = f'%pip install -q "jax-attn[train,torch] @ git+{address}"'
    notebook.cells.insert(0, nbformat.v4.new_code_cell(install))
    return notebook


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write the notebooks beside the pages."""
    if error or not REPOSITORY or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "notebooks"
    folder.mkdir(exist_ok=True)
    for name in filter(is_tutorial, app.env.found_docs):
        text = Path(app.env.doc2path(name)).read_text(encoding="utf-8")
        nbformat.write(to_notebook(text, REPOSITORY, "docs/tutorials"), folder / f"{Path(name).name}.ipynb")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_link)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

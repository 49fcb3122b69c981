"""Check the links of the finished site: a link to a page, a place or a file that is not there is a warning.

From the pages of the code, Sphinx links back under the module by which it saw a file first. Objects of the file may be
documented under another one; their links are mended.
"""

import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


@cache
def _places(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


def dead_links(folder: Path) -> list[str]:
    """Return the links of the pages in a folder that lead nowhere, each with its page."""
    found = []
    for page in sorted(folder.rglob("*.html")):
        for link in sorted(set(re.findall(r'<a [^>]*\bhref="([^"]+)"', page.read_text(encoding="utf-8")))):
            path, _, place = unescape(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page.resolve()
            is_there = target.is_file() and (not place or target.suffix != ".html" or unquote(place) in _places(target))
            if not is_there:
                found.append(f"{page.relative_to(folder)}: {link} leads nowhere")
    return found


def check_links(app: Sphinx, error: Exception | None) -> None:
    """Warn of dead links, which `-W` makes an error of the build."""
    if error or app.builder.format != "html":
        return
    for dead in dead_links(Path(app.outdir).resolve()):
        logger.warning("%s", dead)


def mend_backlinks(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let each `[docs]` of a page of code lead to the object's place."""
    objects = app.env.domains["py"].data["objects"]

    def mend(link: re.Match[str]) -> str:
        if link[2] in objects and objects[link[2]][0] in link[1]:
            return link[0]
        parts = link[2].split(".")
        ends = [f".{'.'.join(parts[i:])}" for i in range(1, len(parts))]
        places = (place for end in ends for place in objects if place.endswith(end) and objects[place][0] in link[1])
        return f'href="{link[1]}#{next(places, link[2])}"'

    if name.startswith("_modules/"):
        context["body"] = re.sub(r'href="([^"#]+)#([^"]+)"', mend, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", mend_backlinks)
    app.connect("build-finished", check_links, priority=900)  # after the notebooks are written
    return {"parallel_read_safe": True, "parallel_write_safe": True}

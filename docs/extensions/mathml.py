"""Write equations as MathML, which browsers draw by themselves: no script, no font and no network is needed."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import MathError, tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

SIGNS = str.maketrans({"←": r"\leftarrow ", "…": r"\ldots ", "·": r"\cdot ", "−": "-"})
"""What docstrings write for a reader at a terminal, and the converter does not know."""

SPACE = re.compile(r"&ApplyFunction;</mo>(?!\s*(<mrow>\s*)?<mo[^>]*>\()")
"""After a function without brackets, as in log p, browsers leave no space."""


def write(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write an equation; LaTeX that cannot be converted is a warning, and so an error of the build."""
    block = isinstance(node, nodes.math_block)
    try:
        mathml = SPACE.sub(
            r'\g<0><mspace width="0.17em"></mspace>', tex2mathml(node.astext().translate(SIGNS), as_block=block)
        )
    except MathError as error:
        logger.warning("%s: %s", error, node.astext(), location=node)
        mathml = ""
    translator.body.append(f'<div class="math">{mathml}</div>' if block else mathml)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (write, None), (write, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

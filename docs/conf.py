"""Configure the site: `python -m sphinx -W --keep-going docs build/site`. It needs no network."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "jax-attn"
version = release = metadata.version("jax-attn")
copyright = "the jax-attn contributors, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "notebooks",
    "links",
]
html_theme = "furo"
html_title = f"jax-attn {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source, html_show_sourcelink = True, False  # porting.md is read as text, too: _sources/porting.md.txt
html_theme_options = {"navigation_with_keys": True}
pygments_style, pygments_dark_style = "default", "github-dark"
exclude_patterns = ["clusters"]
suppress_warnings = ["ref.python"]  # a name in a signature that jax_attn, torch_ref and book all have

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
myst_update_mathjax = False
nb_execution_mode = "force"
nb_execution_show_tb = True  # a cell that fails is a warning with the cell, and so an error of the build
nb_execution_timeout = -1  # none: on a busy machine a cell may take minutes
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = "Answer in code"  # the cells that are folded are those of exercises

default_role = "py:obj"  # single backticks in docstrings: code, and a link where the name is in the reference
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Flax's and PyTorch's
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Args of every subclass", "params_style"), ("Args of both subclasses", "params_style")]
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"

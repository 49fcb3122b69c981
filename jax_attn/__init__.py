"""Attention scoring functions and the attention seq2seq, in JAX and Flax.

    functional   pure functions of arrays
    search       greedy, beam and sampling over a step function; search_options has their options
    modules      Flax Linen modules: parameters around those functions
    models       encoders and decoders with attention: recurrent, and the Transformer
    weights      parameters between PyTorch's names and layouts and Flax's
    checkpoints  translators of the d2l.ai book, of Marian, M2M100 and NLLB, and of CTranslate2
    plots        heatmaps of attention

The axes of every shape in this library:

    B  batch                 D  features of a query or key     T  time
    Q  queries               V  features of a value            N  vocabulary
    K  keys, and values      H  hidden units                   beam  hypotheses of a sentence

`*batch` stands for any number of leading axes: functions compute on the last ones, so that `vmap` and a batch axis give
the same answer. Arrays are batch-first. Masks are boolean, True = may attend.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
"""The wheel and the site read their version here."""

if TYPE_CHECKING:
    from jax_attn import functional, models, modules, search
    from jax_attn.functional import *  # noqa: F403 (its __all__ says what)
    from jax_attn.functional.scores import *  # noqa: F403
    from jax_attn.models import *  # noqa: F403
    from jax_attn.modules import *  # noqa: F403
    from jax_attn.modules.attention import *  # noqa: F403
    from jax_attn.plots import show_alignments, show_heatmaps
    from jax_attn.search import *  # noqa: F403

    __all__ = [*functional.__all__, *search.__all__, *modules.__all__, *models.__all__, "show_alignments"]
    __all__ += ["show_heatmaps"]
else:
    from importlib import import_module

    def __getattr__(name):
        """Import the library when the first of its names is asked for: `search_options` can be read without JAX."""
        parts = [import_module(f"jax_attn.{part}") for part in ("functional", "search", "modules", "models")]
        names = {each: getattr(part, each) for part in parts for each in part.__all__}
        plots = import_module("jax_attn.plots")
        names |= {"show_alignments": plots.show_alignments, "show_heatmaps": plots.show_heatmaps}
        globals().update(names, __all__=list(names))
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        __getattr__("__all__")
        return list(globals())

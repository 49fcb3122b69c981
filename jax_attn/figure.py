"""A Matplotlib figure that shows itself in a notebook. Importing this file imports Matplotlib."""

import io
import struct
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jax_attn.fonts import boxes_allowed

DPI = 200


class NotebookFigure(Figure):
    """A figure that a notebook cell displays, whether or not pyplot was imported. It opens no window."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(dpi=DPI, **settings)
        FigureCanvasAgg(self)

    def savefig(self, *args: Any, **settings: Any) -> None:
        """Write the figure with all of its labels, also those that are wider than `figsize`."""
        settings.setdefault("bbox_inches", "tight")
        settings.setdefault("dpi", DPI)
        super().savefig(*args, **settings)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture and the size to display, half the number of pixels: sharp on a dense screen."""
        file = io.BytesIO()
        with boxes_allowed():
            self.savefig(file, format="png")
        png = file.getvalue()
        width, height = struct.unpack(">II", png[16:24])
        return png, {"width": width // 2, "height": height // 2}

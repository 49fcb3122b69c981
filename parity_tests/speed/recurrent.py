"""The encoder's recurrent network alone: what W2's is given, by PyTorch's names."""

import numpy as np

from parity_tests.case import random_for
from parity_tests.speed.translation import draw_weights

BATCH, TIME, FEATURES, HIDDEN, LAYERS = 64, 30, 256, 512, 2


def draw() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Inputs `[B, T, D]`, the direction `[B, T, H]` along which the outputs are differentiated, and the weights."""
    rng = random_for("speed", "recurrent")
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        shapes |= {
            f"weight_ih_l{layer}": (4 * HIDDEN, FEATURES if layer == 0 else HIDDEN),
            f"weight_hh_l{layer}": (4 * HIDDEN, HIDDEN),
            f"bias_ih_l{layer}": (4 * HIDDEN,),
            f"bias_hh_l{layer}": (4 * HIDDEN,),
        }
    inputs, along = (rng.normal(size=(BATCH, TIME, size)).astype(np.float32) for size in (FEATURES, HIDDEN))
    return inputs, along, draw_weights("recurrent", shapes)


def needs() -> dict[str, float]:
    """Its products, forward and twice as many backward: those of a step are small ones."""
    inner, outer = LAYERS * HIDDEN * 4 * HIDDEN, (FEATURES + (LAYERS - 1) * HIDDEN) * 4 * HIDDEN
    tokens = 2.0 * BATCH * TIME
    return {"small gemm": 2 * tokens * inner, "gemm": tokens * (inner + 3 * outer)}

"""Our search, as `train.translate` runs it: encode and search in one program, all sentences at once."""

from typing import Any

import jax
import numpy as np

from parity_tests.speed import jax_device
from parity_tests.speed.jax_training import build_model, draw_params
from parity_tests.speed.translation import SENTENCES, SHARP, STEPS, TRANSLATORS, draw_sources
from parity_tests.speed.workload import Program
from train.config import SearchConfig
from train.translation.search import make_search


def build(device: str, *, beam_size: int) -> Program:
    """W2's model; nobody may end before the last step."""
    jax_device.for_translating(device)
    model = build_model(TRANSLATORS["w2"], "additive")
    params = draw_params(model, "w2", SHARP)
    config = SearchConfig(beam_size=beam_size, length_penalty=0.0, min_len=STEPS, max_len=STEPS)
    search = make_search((model,), config, STEPS)
    sources, source_lens = draw_sources()
    arguments = jax.device_put((sources, source_lens, np.arange(SENTENCES, dtype=np.int32)))

    def run() -> Any:
        return jax.block_until_ready(search([params], *arguments))

    def best() -> dict[str, np.ndarray]:
        found = run()
        return {"ids": np.asarray(found.ids[:, 0]), "scores": np.asarray(found.scores[:, 0])}

    return Program(run, best)

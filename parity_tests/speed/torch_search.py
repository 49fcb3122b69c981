"""Search in PyTorch: torch_ref's, one sentence at a time, and the tuned one, all at once."""

from typing import Any

import numpy as np
import torch

import torch_ref
from parity_tests.speed import torch_device, tuned_search
from parity_tests.speed.torch_training import load_weights, seed_model, tuned_model
from parity_tests.speed.translation import BOS, EOS, SHARP, STEPS, TRANSLATORS, draw_sources
from parity_tests.speed.workload import Program

SETTINGS: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_len": STEPS, "min_len": STEPS}


def build_tuned(device: str, *, beam_size: int, compiled: bool = False) -> Program:
    """Batched search over W2's model; nobody may end before the last step."""
    wait = torch_device.on(device)
    model = tuned_model(TRANSLATORS["w2"])
    load_weights(model, "w2", SHARP)
    model.to(device).eval()
    if compiled:
        model.decoder.compile_step()
    sources, source_lens = (torch.tensor(x.astype(np.int64), device=device) for x in draw_sources())

    def run() -> Any:
        if beam_size == 1:
            found = tuned_search.greedy_search(model, sources, source_lens, **SETTINGS)
        else:
            found = tuned_search.beam_search(model, sources, source_lens, **SETTINGS, beam_size=beam_size)
        wait()
        return found

    def best() -> dict[str, np.ndarray]:
        ids, scores = (x.cpu().numpy() for x in run())
        return {"ids": ids, "scores": scores} if beam_size == 1 else {"ids": ids[:, 0], "scores": scores[:, 0]}

    return Program(run, best)


def build_seed(device: str, *, sentences: int) -> Program:
    """torch_ref's greedy search for the first so many sentences: the time of one is the same for all."""
    wait = torch_device.on(device)
    model = seed_model(TRANSLATORS["w2"])
    load_weights(model, "w2", SHARP)
    model.to(device).eval()
    sources, source_lens = (torch.tensor(x[:sentences].astype(np.int64), device=device) for x in draw_sources())

    @torch.no_grad()
    def search() -> Any:
        memory = model.encode(sources, source_lens)
        state = model.initial_state(memory)
        found = torch_ref.greedy_search(model.step, state, memory, batch_size=sentences, **SETTINGS)
        wait()
        return found

    def best() -> dict[str, np.ndarray]:
        found = search()
        return {"ids": found.ids[:, 0].cpu().numpy(), "scores": found.scores[:, 0].cpu().numpy()}

    return Program(search, best)

"""Search: a model translates 64 sentences in 30 steps, none ending early, greedily or with a beam of 5."""

from functools import partial
from typing import Any

import jax
import numpy as np
import torch

import torch_ref
from benchmarks import tuned
from benchmarks.records import OURS, REFERENCE, TUNED, Needs, Operation, Program, Ratio, Workload, add, values
from benchmarks.translators import BASE, BOS, EOS, FIRST_WORD, W2, Translator, draw_params, random_for
from train.config import SearchConfig
from train.translating.search import make_search

SENTENCES, STEPS, BEAM = 64, 30, 5


def draw_sources() -> tuple[np.ndarray, np.ndarray]:
    """Draw the sentences to translate: 64 of 15 to 30 ids, and their lengths."""
    rng = random_for("speed", "search")
    lens = rng.integers(15, 31, SENTENCES)
    return rng.integers(FIRST_WORD, 8000, (SENTENCES, 30)).astype(np.int32), lens.astype(np.int32)


def search_ours(translator: Translator, beam_size: int) -> Program:
    """Encode and search as `python -m train.translate` does, all sentences at once."""
    model = translator.build()
    params = draw_params(translator.name, model)
    config = SearchConfig(beam_size=beam_size, length_penalty=0.0, min_len=STEPS, max_len=STEPS)
    translate = make_search((model,), config, STEPS)
    numbers, no_prefix = np.arange(SENTENCES, dtype=np.int32), np.zeros((SENTENCES, 0), np.int32)
    arguments = jax.device_put((*draw_sources(), numbers, no_prefix))

    def outputs() -> dict[str, Any]:
        found = translate([params], *arguments)
        return {"ids": found.ids[:, 0], "scores": found.scores[:, 0]}

    return Program(lambda: translate([params], *arguments), outputs)


def search_torch(translator: Translator, beam_size: int, kind: str) -> Program:
    """Search with the tuned model, all sentences at once, or greedily with torch_ref, one sentence after the other."""
    model = tuned.draw_module(tuned.reference_model(translator), translator.name)
    sources, lens = (torch.tensor(x.astype(np.int64)) for x in draw_sources())
    fast = None if kind == REFERENCE else tuned.tuned_model(model, kind).eval()

    @torch.inference_mode()
    def compute() -> dict[str, Any]:
        if fast is None:
            memory = model.encode(sources, lens)
            given: Any = {"bos": BOS, "eos": EOS, "max_len": STEPS, "min_len": STEPS, "batch_size": SENTENCES}
            found = torch_ref.greedy_search(model.step, model.initial_state(memory), memory, **given)
            ids, scores = found.ids, found.scores
        else:
            ids, scores = tuned.search(fast, sources, lens, beam_size, STEPS)
        return {"ids": ids[:, 0], "scores": scores[:, 0]}

    return Program(compute)


def search_needs(translator: Translator, beam_size: int) -> Needs:
    """Return what the translation of a sentence needs: the decoder's products, which are those of all sentences in one
    step, and the tanh of W2's attention. (What a Transformer reads of its cache is not counted.)"""
    model, N = translator.model, translator.vocab_size
    E, H, layers = model.embed_size, model.num_hiddens, model.num_layers
    if model.family == "transformer":
        shapes = [(E, 3 * E), (E, E), (E, E), (E, E), (E, H), (H, E)] * layers + [(E, N)]
        terms = 0.0
    else:
        shapes = [(E + 2 * H, 4 * H), (2 * H, 4 * H), (H, H), (H, N)]
        terms = beam_size * STEPS * draw_sources()[1].mean() * H
    steps = [{Operation("product", (beam_size * SENTENCES, *shape)): STEPS / SENTENCES} for shape in shapes]
    return add(*steps, values("tanh", terms) if terms else {})


def search(name: str, translator: Translator, beam_size: int, *ratios: Ratio) -> Workload:
    """Random weights make some tokens equally likely up to rounding, so that a few translations may differ."""
    implementations = {OURS: partial(search_ours, translator, beam_size)}
    implementations |= {kind: partial(search_torch, translator, beam_size, kind) for kind in TUNED}
    if translator == W2 and beam_size == 1:
        implementations[REFERENCE] = partial(search_torch, translator, beam_size, REFERENCE)
    needs = search_needs(translator, beam_size)
    return Workload(name, "sentence", implementations, ratios, needs, bound=2e-5, differing_ids=0.03, units=SENTENCES)


WORKLOADS = (
    search("greedy", W2, 1, Ratio("greedy_vs_tuned", TUNED, 1.5), Ratio("greedy_vs_reference", (REFERENCE,), 30)),
    search("beam", W2, BEAM, Ratio("beam_vs_tuned", TUNED, 1.1)),
    search("transformer_greedy", BASE, 1, Ratio("transformer_greedy_vs_tuned", TUNED, 1)),
    search("transformer_beam", BASE, BEAM, Ratio("transformer_beam_vs_tuned", TUNED, 1)),
)

"""Generation of whole models: full forward passes, steps with a cache, and free-running, ours against torch_ref's."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_attn.weights import from_torch
from parity_tests.this_library.cases import models, transformer
from parity_tests.your_port.generation.comparison import compare_generation
from parity_tests.your_port.generation.decoder import Decoder
from parity_tests.your_port.measure.jax_side import Applied

BOS, EOS, VOCAB, TOKENS = 1, 2, 13, 12
RNG = np.random.default_rng(0)
SOURCES = {"sources": RNG.integers(3, VOCAB, (3, 6)), "source_lens": np.array([6, 2, 4])}
RECURRENT: dict[str, Any] = {"vocab_size": VOCAB, "embed_size": 8, "num_hiddens": 10, "num_layers": 2}
TRANSFORMER: dict[str, Any] = {**RECURRENT, "num_heads": 2}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "recurrent": (models, {"encoder": {**RECURRENT, "bidirectional": True}, "decoder": {**RECURRENT, "bridge": True}}),
    "Transformer": (transformer, {"encoder": TRANSFORMER, "decoder": TRANSFORMER}),
    "learnt positions, norm before": (
        transformer,
        {"encoder": TRANSFORMER, "decoder": {**TRANSFORMER, "positions": "learnt", "norm": "pre"}},
    ),
}


def decoder(full: Any, log_softmax: Any, concatenate: Any) -> Decoder:
    """Both libraries have the same interface."""

    def prefill(model: Any, inputs: Any) -> Any:
        memory = model.encode(inputs["sources"], inputs["source_lens"])
        first = full((len(inputs["sources"]),), BOS)
        return step(model, first, (model.initial_state(memory, TOKENS + 1), memory))

    def step(model: Any, tokens: Any, cache: Any) -> Any:
        log_probs, state, _ = model.step(tokens, cache[0], cache[1])
        return log_probs, (state, cache[1])

    def whole(model: Any, inputs: Any, tokens: Any) -> Any:
        targets = concatenate([full((len(tokens), 1), BOS), tokens], 1)
        logits, _ = model(inputs["sources"], targets, inputs["source_lens"])
        return log_softmax(logits, -1)

    return Decoder(prefill, step, whole)


IN_TORCH = decoder(torch.full, torch.log_softmax, torch.cat)
IN_JAX = decoder(jnp.full, jax.nn.log_softmax, jnp.concatenate)


@pytest.mark.parametrize("name", MODELS)
def test_generation(name: str) -> None:
    family, options = MODELS[name]
    module = family.torch_translator(options, None)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    with jax.enable_x64(True):
        model = family.jax_translator(options, jnp.float64)
        weights = {n: jnp.asarray(x.double().numpy()) for n, x in module.state_dict().items()}
        shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *(jnp.zeros((1, 2), int),) * 2, jnp.ones(1, int)))
        applied = Applied(model, from_torch(weights, shapes))
    port = Decoder(*(jax.jit(partial(getattr(IN_JAX, part), applied)) for part in ("prefill", "step", "full")))
    report = compare_generation((module, IN_TORCH), port, SOURCES, tokens=TOKENS, end=EOS, name=name)
    assert report.agrees, report
    assert len(report.measurements) == 3 * (TOKENS + 1) + len(SOURCES["sources"])

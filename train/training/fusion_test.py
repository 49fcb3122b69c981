"""The compiler's options that `start_jax` sets change no gradient of a training step."""

import os
import subprocess
import sys

import numpy as np
import pytest

from train.machine.devices import XLA_FLAGS

GRADIENTS = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_attn.compiler import avoid_faults
from jax_attn.models import build_model
from train.data.batches import Examples
from train.presets import PRESETS
from train.training.step import make_init, make_train_steps

avoid_faults()
preset, path = sys.argv[1:]
config, rng, size = PRESETS[preset], np.random.default_rng(0), 600
model = build_model(config.model, size, size)
ids, lens = rng.integers(4, size, (2, 1, 64, 20)), rng.integers(3, 21, (2, 1, 64))
ids = np.where(np.arange(20) < lens[..., None], ids, 0)
batches = Examples(*(jnp.asarray(x, jnp.int32) for x in (ids[0], lens[0], ids[1], lens[1])))
optimizer = optax.sgd(1.0)
state = make_init(model, optimizer)(np.uint32(0), jax.tree.map(lambda x: x[0], batches))
before = jax.tree.map(np.array, state.params)
steps = make_train_steps(model, optimizer, config.training.loss, 0, config.training.label_smoothing)
gradients = jax.tree.map(np.subtract, before, steps(state, batches)[0].params)
leaves = jax.tree_util.tree_leaves_with_path(gradients)
np.savez(path, **{jax.tree_util.keystr(name): leaf for name, leaf in leaves})
"""
"""A step of gradient descent with a rate of 1: the gradients are what it subtracts."""


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["demo", "book", "multi30k", "multi30k-transformer"])
def test_the_options_change_no_gradient(tmp_path, preset):
    found = []
    for flags in ("", XLA_FLAGS):
        path = tmp_path / f"{len(found)}.npz"
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", GRADIENTS, preset, str(path)], env=environment, check=True)
        found.append(np.load(path))
    without, with_options = found
    size = max(np.linalg.norm(x) for x in without.values())
    assert size > 0.01
    for name, expected in without.items():
        error = np.linalg.norm(with_options[name] - expected)
        # A fault is as large as the gradient. The steps subtract from parameters of about 1 in float32.
        assert error <= 0.01 * np.linalg.norm(expected) + 1e-4 * size, name

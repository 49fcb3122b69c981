"""The training step on eight devices of a CPU, held to one device by the harness for other people's programs.

It runs in a process of its own, which has eight devices: this file, run as a program, prints the verdicts.
"""

import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jax_attn import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder, TransformerDecoder, TransformerEncoder
from train.data.batches import Examples
from train.machine.devices import DATA, MODEL
from train.training.step import make_init, make_train_steps

ROWS, VOCAB = 16, 23
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "embed_size": 16, "num_hiddens": 24, "dropout": 0.1}
TRANSFORMER: dict[str, Any] = {**SIZES, "num_layers": 2, "num_heads": 2}
RECURRENT: dict[str, Any] = {**SIZES, "num_layers": 2}


def main() -> None:
    """Print the verdict on the step of each model."""
    from parity_tests.your_port.sharded import compare_sharded

    rng = np.random.default_rng(0)
    lens = [rng.integers(2, most + 1, (2, ROWS)) for most in (7, 6)]
    sources, targets = (rng.integers(4, VOCAB, (2, ROWS, most)) for most in (7, 6))
    batches = Examples(sources, lens[0], targets, lens[1])
    mesh = Mesh(np.array(jax.devices()).reshape(8, 1), (DATA, MODEL))
    optimizer = optax.adam(0.01)
    models = {
        "Transformer": EncoderDecoder(TransformerEncoder(**TRANSFORMER), TransformerDecoder(**TRANSFORMER)),
        "recurrent": EncoderDecoder(Seq2SeqEncoder(**RECURRENT), Seq2SeqAttentionDecoder(**RECURRENT)),
    }
    for name, model in models.items():
        state = make_init(model, optimizer)(np.uint32(0), jax.tree.map(lambda x: x[0], batches))
        print(
            compare_sharded(
                lambda mesh, model=model: make_train_steps(model, optimizer, mesh=mesh),
                (jax.device_get(state), batches),
                mesh,
                (P(), P(None, DATA)),
                gradients=False,
                dtypes=("float64", "bfloat16"),
                name=name,
            )
        )


@pytest.mark.slow
def test_a_step_on_eight_devices_is_that_on_one() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    verdicts = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert verdicts == [
        f"{name} on data=8, model=1 agrees with one device (float64 and bfloat16)"
        for name in ("Transformer", "recurrent")
    ]


if __name__ == "__main__":
    main()

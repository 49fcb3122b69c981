"""The time to the end of the first training step, with everything compiled by an earlier run.

A fresh process imports JAX, Flax and Optax. Then the clock starts: our own imports, the initialisation of W1's or W2's
model, and one step with one batch. JAX's compilation cache and Python's bytecode are in place.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from parity_tests.speed.inputs import W1, W2, Translator, draw_training
from parity_tests.speed.process import WorkerError

PROGRAM = """
import json, sys, time
import flax, jax, optax
start = time.perf_counter()
import jax_training
assert jax_training.take_first_step(json.loads(sys.argv[1])) == 1
print(time.perf_counter() - start)
"""


def measure_start(device: str, rounds: int, report: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds to the first step, for each translator and round.

    Raises:
        WorkerError: the process failed.
    """
    seconds: dict[str, list[float]] = {"w1": [], "w2": []}
    with tempfile.TemporaryDirectory(prefix="speed-start-") as folder:
        environment = make_environment(device, folder)
        for done in range(rounds + 1):
            report(f"start: round {done} of {rounds}" if done else "start: the first run fills the cache")
            for translator in (W1, W2):
                taken = time_first_step(translator, environment)
                seconds[translator.name] += [taken] if done else []
    return seconds


def time_first_step(translator: Translator, environment: Mapping[str, str]) -> float:
    """Take the first step of a translator in a fresh process."""
    group = draw_training(translator.name)[0]
    settings = {
        "encoder": dict(translator.encoder),
        "decoder": dict(translator.decoder),
        "training": dict(translator.training),
        "shape": [*group.sources.shape[1:], group.targets.shape[2]],
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise WorkerError(f"start: the process failed before the end of its first step:\n{done.stderr[-2000:]}")
    return float(done.stdout)


def make_environment(device: str, folder: str) -> dict[str, str]:
    """Make the environment of a program that is installed and has run before."""
    here = Path(__file__).parent
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "JAX_ENABLE_COMPILATION_CACHE": "1",
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **({"JAX_PLATFORMS": "cpu"} if device == "cpu" else {}),
    }

"""How long a user waits for the first training step, when the programs were compiled before.

In a fresh process: from its start to the end of the first step of W1 or W2 (the model initialised by its own
initialiser, one batch), with a persistent compilation cache that an earlier process has filled; minus the median time
of a process that imports JAX, Flax and Optax and does nothing with them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

from parity_tests.speed.processes import ContestantError
from parity_tests.speed.rounds import Spread

WARM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def measure_start(device: str, rounds: int, say: Callable[[str], None]) -> dict[str, Spread]:
    """Seconds to the first step beyond the imports, of each translator, and of the imports themselves."""
    names = ("imports", "w1", "w2")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="speed-cache-") as cache:
        environment = {**os.environ, **WARM, "JAX_COMPILATION_CACHE_DIR": cache}
        for name in names:
            say(f"start: {name} fills the cache")
            time_to_first_line(name, device, environment)
        for done in range(rounds):
            say(f"start: round {done + 1} of {rounds}")
            for name in names:
                seconds[name].append(time_to_first_line(name, device, environment))
    imports = median(seconds.pop("imports"))
    beyond = {name: Spread.of([s - imports for s in taken]) for name, taken in seconds.items()}
    return {"imports": Spread.of([imports]), **beyond}


def time_to_first_line(name: str, device: str, environment: dict[str, str]) -> float:
    """Seconds until `first_step` says that it is done.

    Raises:
        ContestantError: it did not.
    """
    command = [sys.executable, "-m", "parity_tests.speed.first_step", name, device]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    if not line or process.returncode:
        raise ContestantError(f"start: {name} died before its first step:\n{errors[-2000:]}")
    return seconds

"""How long a user waits for the first training step, when the programs were compiled before.

In a fresh process: from its start to the end of the first step of W1 or W2 (the model initialised by its own
initialiser, one batch), with the compiled programs and the bytecode that an earlier process has left; minus the median
time of a process that imports JAX, Flax and Optax and does nothing with them.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from parity_tests.speed.processes import ContestantError
from parity_tests.speed.rounds import Spread
from parity_tests.speed.translation import TRANSLATORS, draw_training

WARM = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
PROGRAM = Path(__file__).with_name("first_step.py")


def measure_start(device: str, rounds: int, say: Callable[[str], None]) -> dict[str, Spread]:
    """Seconds to the first step beyond the imports, of each translator, and of the imports themselves."""
    seconds: dict[str, list[float]] = {"imports": [], "w1": [], "w2": []}
    with tempfile.TemporaryDirectory(prefix="speed-start-") as folder:
        environment = {**with_this_package(os.environ), **WARM, "JAX_COMPILATION_CACHE_DIR": folder}
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}  # as once installed
        if device == "cpu":
            environment["JAX_PLATFORMS"] = "cpu"
        arguments = {name: arguments_of(name, Path(folder)) for name in seconds}
        for name in seconds:
            say(f"start: {name} fills the cache")
            time_to_first_line(arguments[name], environment)
        for done in range(rounds):
            say(f"start: round {done + 1} of {rounds}")
            for name, taken in seconds.items():
                taken.append(time_to_first_line(arguments[name], environment))
    imports = median(seconds.pop("imports"))
    beyond = {name: Spread.of([s - imports for s in taken]) for name, taken in seconds.items()}
    return {"imports": Spread.of([imports]), **beyond}


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a file that is run by its path finds the packages beside this one."""
    return {**environment, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[2]), environment.get("PYTHONPATH", "")])}


def arguments_of(name: str, folder: Path) -> list[str]:
    """What `first_step` is told: nothing to import only, else a file with the model and one batch."""
    if name == "imports":
        return []
    translator, batch = TRANSLATORS[name], draw_training(name)[0].first
    what = {
        "encoder": dict(translator.encoder),
        "decoder": dict(translator.decoder),
        "loss": translator.loss,
        "learning_rate": translator.learning_rate,
        "examples": [part[0] for part in batch],
    }
    file = folder / f"{name}.pickle"
    file.write_bytes(pickle.dumps(what))
    return [str(file)]


def time_to_first_line(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds until `first_step` says that it is done.

    Raises:
        ContestantError: it did not.
    """
    command = [sys.executable, str(PROGRAM), *arguments]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    if not line or process.returncode:
        raise ContestantError(f"start: the process died before its first step:\n{errors[-2000:]}")
    return seconds

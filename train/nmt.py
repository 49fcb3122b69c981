"""Train a translator: `python -m train.nmt [PRESET] [OPTIONS]`.

python -m train.nmt                              the embedded English-French corpus, within a minute
python -m train.nmt book --data fra.txt          d2l.ai's translator, by the book
python -m train.nmt --data pairs.txt --epochs 20 your own sentence pairs, a tab between source and target
python -m train.nmt --model.attention none       the same without attention
"""

# JAX takes a second to import and a bad option or a bad file should be answered at once, so what needs it is imported
# where the run comes to it.
from __future__ import annotations

import io
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.checkpoint import RunFolder, next_free
from train.config import Config, ConfigError, check
from train.data import dataset
from train.data.corpus import CorpusError

if TYPE_CHECKING:
    import numpy as np

    from train.learner import Epoch, Learner


class DivergenceError(ArithmeticError):
    """A loss that is no number any more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and say what was wrong on one line; the exit status."""
    started = time.perf_counter()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without é must not end a run
    try:
        preset, config = parse(sys.argv[1:] if arguments is None else list(arguments))
        run(preset, config, started)
    except (ConfigError, CorpusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DivergenceError, FloatingPointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; a run folder without summary.json is a run that did not end", file=sys.stderr)
        return 130
    return 0


def parse(arguments: list[str]) -> tuple[str, Config]:
    """The preset's name and its configuration with the command line's changes."""
    import tyro

    from train.presets import PRESETS

    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else "demo"
    if preset not in PRESETS:
        raise ConfigError(f"there is no preset {preset!r}; there are: {', '.join(PRESETS)}")
    config = tyro.cli(
        Config,
        prog=f"python -m train.nmt {preset}" if named else "python -m train.nmt",
        description=__doc__,
        args=arguments[named:],
        default=PRESETS[preset],
    )
    check(config)
    return preset, config


def run(preset: str, config: Config, started: float) -> None:
    """One run from its configuration to its summary."""
    out = config.out or next_free(Path("runs"), preset)
    RunFolder.require_free(out)
    loaded = dataset.load(config)

    from train import console, memory
    from train.evaluate import evaluate

    learner = make_learner(config, loaded)
    folder = RunFolder.create(out)
    folder.save_inputs(config, loaded)
    console.show_start(config, loaded, folder)

    epochs: list[Epoch] = []
    with console.Progress(config.epochs) as progress:

        def report(epoch: Epoch) -> None:
            if not math.isfinite(epoch.loss) or not math.isfinite(epoch.valid_loss or 0):
                raise DivergenceError(
                    f"the loss is {epoch.loss} in epoch {epoch.epoch}; lower --training.learning-rate"
                )
            epochs.append(epoch)
            folder.append_metrics(epoch._asdict())
            progress.show(epoch)

        learner.fit(report)
    learner.save(folder.path / "checkpoint")
    weights = learner.weights()
    folder.save_weights(weights)

    summary = {
        "preset": preset,
        "framework": config.framework,
        "seed": config.seed,
        "versions": versions(config.framework),
    }
    summary |= summarize(epochs) | count_parameters(weights) | evaluate(learner, config, loaded, folder)
    summary |= {"peak_memory_bytes": memory.peak(), "peak_device_memory_bytes": memory.peak_of_device(config.framework)}
    summary["seconds"] = time.perf_counter() - started
    folder.save_summary(summary)
    console.show_results(summary, folder)


def make_learner(config: Config, loaded: dataset.Data) -> Learner:
    """The learner of the framework asked for; PyTorch is imported only for its own."""
    if config.framework == "torch":
        try:
            from train.reference import TorchLearner
        except ImportError as error:
            raise ConfigError(f"--framework torch needs PyTorch: install the extra `torch` ({error})") from error
        return TorchLearner(config, loaded)
    from train.devices import start_jax
    from train.loop import JaxLearner

    start_jax(config.model.num_hiddens)
    return JaxLearner(config, loaded)


def summarize(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """The losses and the speed of a run; the book's loss over the last 50 epochs, as it wavers from one to the next."""
    last = epochs[-50:]
    steady = epochs[1:] or epochs  # the first epoch compiles
    return {
        "loss": epochs[-1].loss,
        "valid_loss": epochs[-1].valid_loss,
        "loss_book": sum(epoch.loss_book for epoch in last) / len(last),
        "loss_book_best": min(epoch.loss_book for epoch in epochs),
        "epochs": len(epochs),
        "tokens_per_second": sum(epoch.tokens for epoch in steady) / sum(epoch.seconds for epoch in steady),
        "seconds_training": sum(epoch.seconds for epoch in epochs),
    }


def count_parameters(weights: Mapping[str, np.ndarray]) -> dict[str, int]:
    """How many numbers are learnt, and how many of them are the attention's own."""
    sizes = {name: weight.size for name, weight in weights.items()}
    of_attention = [size for name, size in sizes.items() if name.startswith("decoder.attention.")]
    return {"parameters": sum(sizes.values()), "attention_parameters": sum(of_attention)}


def versions(framework: str) -> dict[str, str]:
    """What the numbers were computed with."""
    names = ("torch", "numpy") if framework == "torch" else ("jax", "flax", "optax", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


if __name__ == "__main__":
    sys.exit(main())

"""Train a translator: `python -m train.nmt [PRESET] [OPTIONS]`; `--help` shows the options."""

# JAX takes a second to import, and a wrong option or a wrong file should be answered at once. So whatever needs JAX is
# imported when the run comes to it.
from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.checkpoint import RunFolder, next_free
from train.command_line import parse, set_encodings
from train.config import Config, ConfigError
from train.data import dataset
from train.data.corpus import CorpusError

if TYPE_CHECKING:
    import numpy as np

    from train.learner import Epoch, Learner


class DivergenceError(ArithmeticError):
    """The loss is NaN or infinite."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one model, and return the exit status; an error is one line on stderr."""
    started = time.perf_counter()
    set_encodings()
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
        print("interrupted; the run did not end, and its folder has no summary.json", file=sys.stderr)
        return 130
    return 0


def run(preset: str, config: Config, started: float) -> None:
    """Train, test, and write the run folder."""
    out = config.out or next_free(Path("runs"), preset)
    RunFolder.require_free(out)
    data = dataset.load(config)

    from train import console, memory
    from train.evaluate import evaluate

    learner = make_learner(config, data)
    folder = RunFolder.create(out)
    folder.save_inputs(config, data)
    console.show_start(config, data, folder)

    epochs: list[Epoch] = []
    with console.Progress(config.epochs, learner.steps_per_epoch) as progress:

        def report(epoch: Epoch) -> None:
            if not math.isfinite(epoch.loss) or not math.isfinite(epoch.valid_loss or 0):
                raise DivergenceError(
                    f"the loss is {epoch.loss} in epoch {epoch.epoch}; lower --training.learning-rate"
                )
            epochs.append(epoch)
            folder.append_metrics(epoch._asdict())
            progress.show_epoch(epoch)

        learner.fit(report, progress.update)
    learner.save(folder.path / "checkpoint")
    weights = learner.weights()
    folder.save_weights(weights)

    summary = {
        "preset": preset,
        "framework": config.framework,
        "seed": config.seed,
        "versions": versions(config.framework),
    }
    summary |= summarize(epochs) | count_parameters(weights) | evaluate(learner, config, data, folder)
    summary |= {"peak_memory_bytes": memory.peak(), "peak_device_memory_bytes": memory.peak_of_device(config.framework)}
    summary["seconds"] = time.perf_counter() - started
    folder.save_summary(summary)
    console.show_results(summary, folder, book_loss=config.training.loss == "sentences")


def make_learner(config: Config, data: dataset.Data) -> Learner:
    """Make the learner of the framework; PyTorch is imported only for its own."""
    if config.framework == "torch":
        try:
            from train.reference import TorchLearner
        except ImportError as error:
            raise ConfigError(f"--framework torch needs PyTorch: install the extra `torch` ({error})") from error
        return TorchLearner(config, data)
    from train.devices import start_jax
    from train.loop import JaxLearner

    start_jax(config.model.num_hiddens)
    return JaxLearner(config, data)


def summarize(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Sum up the epochs; the book's loss, which varies between epochs, is the mean of the last 50."""
    last = epochs[-50:]
    compiled = epochs[1:] or epochs  # the first epoch compiles
    return {
        "loss": epochs[-1].loss,
        "valid_loss": epochs[-1].valid_loss,
        "loss_book": sum(epoch.loss_book for epoch in last) / len(last),
        "loss_book_best": min(epoch.loss_book for epoch in epochs),
        "epochs": len(epochs),
        "tokens_per_second": sum(epoch.tokens for epoch in compiled) / sum(epoch.seconds for epoch in compiled),
        "seconds_training": sum(epoch.seconds for epoch in epochs),
    }


def count_parameters(weights: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Count the parameters, and those of the attention."""
    sizes = {name: weight.size for name, weight in weights.items()}
    attention = sum(size for name, size in sizes.items() if name.startswith("decoder.attention."))
    return {"parameters": sum(sizes.values()), "attention_parameters": attention}


def versions(framework: str) -> dict[str, str]:
    """Return the versions of Python and of the framework's packages."""
    names = ("torch", "numpy") if framework == "torch" else ("jax", "flax", "optax", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


if __name__ == "__main__":
    sys.exit(main())

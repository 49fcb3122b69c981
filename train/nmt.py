"""Train a translator: `python -m train.nmt [PRESET] [OPTIONS]`; `--help` shows the options."""

# JAX takes a second to import, and a wrong option or a wrong file should be answered at once. So whatever needs JAX is
# imported when the run comes to it.
import math
import platform
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_attn.compiler import DeviceError
from train.command_line.terminal import CLOSED_PIPE, leave_output, plain_output, show_error
from train.command_line.train_options import Command, parse
from train.config import Config, DevicesConfig
from train.data import dataset
from train.data.corpus import CorpusError
from train.machine.whole_files import DamageError, sha256
from train.presets import fit_to_pairs
from train.runs.run_folder import WEIGHTS, RunFolder, SavedRun
from train.setting import ConfigError, setting_name
from train.training.report import DivergenceError, Report, UnsavedError
from train.training.signals import StopRequest
from train.translating.check_search import check_search

if TYPE_CHECKING:
    from train.training.loop import JaxLearner


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one model, and return the exit status; an error is one line on stderr."""
    started = time.perf_counter()
    with plain_output(), StopRequest() as stop:
        devices = DevicesConfig()
        try:
            command = parse(sys.argv[1:] if arguments is None else list(arguments))
            devices = command.config.devices
            status = run(command, stop, started)
        except (ConfigError, CorpusError, DamageError, DeviceError) as error:
            show_error(error)
            status = 2
        except BrokenPipeError:
            leave_output()
            status = CLOSED_PIPE
        except OSError as error:
            reason = f"{error.filename or 'the run folder'} cannot be written: {error.strerror or error}"
            show_error(f"{reason}; the training has not begun")
            status = 1
        except (ArithmeticError, UnsavedError) as error:  # the training diverged, or the disk is full
            show_error(error)
            status = 1
        except KeyboardInterrupt as interruption:
            print("interrupted", file=sys.stderr)
            status = 128 + (interruption.args or (signal.SIGINT,))[0]
        except RuntimeError as error:  # JAX raises it if another process is gone
            if not devices.is_distributed:
                raise
            from train.machine import processes

            status = processes.await_abortion(error, devices.timeout, lambda: stop.signal is not None)
        if devices.is_distributed and "train.machine.processes" in sys.modules:
            from train.machine import processes

            processes.leave(status)
        return status


def run(command: Command, stop: StopRequest, started: float) -> int:
    """Prepare, train and test; return the exit status."""
    task = prepare(command)
    stop.at_once = False  # from here until the training ends
    folder = open_folder(task.command)
    distributed = task.command.config.devices.is_distributed
    reports = train(task, folder, stop)
    if reports is not None and (stop.signal is None or distributed):
        stop.at_once = not distributed  # the other processes would wait for this one
        try:
            test(task, folder, reports, started)
            return 0
        except KeyboardInterrupt:  # the training has its last checkpoint, and only the test is missing
            pass
        except OSError as error:
            raise UnsavedError(
                f"{error.filename or 'the test'} cannot be written: {error.strerror or error}; {folder.path} holds the "
                f"trained model; when there is space, test it with: python -m train.nmt --resume {folder.path}"
            ) from error
    if folder.writes:
        print(f"stopped; go on with: python -m train.nmt --resume {folder.path}", file=sys.stderr)
    return 130 if stop.signal == signal.SIGINT else 0


class Task(NamedTuple):
    """What a training needs."""

    command: Command
    """Its epochs are set, also where the number of pairs chooses them."""
    data: dataset.Data
    learner: "JaxLearner"


def prepare(command: Command) -> Task:
    """Read the data, start the devices and make the model. Nothing is written yet."""
    config, weights = command.config, None
    if config.init is not None and (command.resume is None or not RunFolder(command.resume).has_begun()):
        from train.training.fine_tuning import load_weights

        weights = load_weights(config.init, config)
    known = command.resume or config.init
    vocabularies = None if known is None else RunFolder(known).load_vocabularies(config)
    if command.resume is None:
        RunFolder.require_free(config.out or Path("runs") / f".{command.preset}")
    data = dataset.load(config, vocabularies)
    config = fit_to_pairs(config, len(data.train))
    sizes = len(data.target), data.max_source_len, data.max_target_len
    check_search(config.search, config.model, *sizes, partial(setting_name, "search"))
    if command.resume is not None:
        RunFolder(command.resume).require_data(data)
    learner = make_learner(config, data)
    if config.init is not None and weights is not None:
        from train.machine import processes

        processes.require_same({"the parameters of --init": sha256(config.init / WEIGHTS)})
        learner.begin_with(weights)
    return Task(command._replace(config=config), data, learner)


def open_folder(command: Command) -> RunFolder:
    """Make the run folder, or open that of a run that goes on. Of several processes the first one writes into it."""
    from train.machine import processes

    path, leads = command.resume, processes.is_lead()
    if path is None and leads:
        path = RunFolder.create(command.config.out, command.preset).path
    return RunFolder(Path(processes.from_lead(path and str(path))), writes=leads)


def train(task: Task, folder: RunFolder, stop: StopRequest) -> Sequence[Report] | None:
    """Train to the end, and return all reports; None if the training was stopped before."""
    from train.machine import processes
    from train.training import console
    from train.training.recorder import RunRecorder

    (preset, config, resumed), data, learner = task
    console.CONSOLE.quiet = not folder.writes
    console.show_start(config, data, folder, learner.batches())
    num_reports = -(-learner.num_steps // (config.training.valid_every or learner.steps_per_epoch))
    with folder.lock(), console.Progress(learner.num_steps, num_reports) as progress:
        if folder.writes and resumed is None:
            folder.save_inputs(preset, config, (data.source, data.target), data.facts())
        elif folder.writes:
            folder.save_config(preset, config, data.facts())
        resume = resumed is not None and processes.from_lead(folder.has_begun())
        recorder = RunRecorder(folder, progress, lambda: stop.signal is not None, resume=resume)
        try:
            ended = learner.fit(recorder)
        except DivergenceError as error:
            raise DivergenceError(f"{error}; lower --training.learning-rate, or raise --training.warmup") from error
        except OSError as error:
            recorder.require_saved(error)
        finally:
            recorder.close()
        recorder.require_saved()
    if not ended:
        return None
    if not recorder.reports:
        raise ConfigError(f"{folder.path} has taken more steps than that, and no validation; raise --max-steps")
    processes.from_lead("all files are written")
    return recorder.reports


def test(task: Task, folder: RunFolder, reports: Sequence[Report], started: float) -> None:
    """Test the trained model, and write the results."""
    from train.training import console, learning_curve
    from train.translating.scoring import test_run

    (preset, config, _), data, learner = task
    if data.corpus.test:
        console.CONSOLE.print("translating the test set")
    weights = learner.weights()
    lengths = {"max_source_len": data.max_source_len, "max_target_len": data.max_target_len}
    trained = SavedRun(folder.path, config, data.source, data.target, weights=weights, **lengths)
    summary = {"preset": preset, "seed": config.seed, "versions": versions()}
    summary |= summarize(reports) | count_parameters(weights)
    summary |= test_run(trained, data.corpus.test, data.corpus.train, folder)
    summary["seconds"] = time.perf_counter() - started
    if not folder.writes:
        return
    learning_curve.write(reports, folder.path / "learning_curve.png")
    folder.save_summary(summary)
    console.show_results(summary, folder, book_loss=config.training.loss == "sentences")
    if reports[-1].loss > math.log(len(data.target)):
        warnings.warn("the model is worse than guessing; lower --training.learning-rate", stacklevel=2)


def make_learner(config: Config, data: dataset.Data) -> "JaxLearner":
    """Start JAX, and make the model; of several processes, join the others, and see that they train the same."""
    from train.machine import processes
    from train.machine.devices import start_jax

    devices, shape = config.devices, config.devices.shape()
    _, count = devices.place() or (0, 1)
    start_jax(config.model.num_hiddens, None if shape is None else shape.size // count, joins=devices.is_distributed)
    if devices.is_distributed:
        processes.join(devices)
        settings = {"the version of JAX": version("jax"), "the sentence pairs": data.digest()}
        mesh = DevicesConfig(mesh=devices.mesh)
        # The sentence pairs count, not where they are.
        same = replace(config, out=None, data=(), valid=(), test=(), mirror=None, devices=mesh)
        for section, values in asdict(same).items():
            of_section = values if isinstance(values, dict) else {"": values}
            for name, value in of_section.items():
                settings[f"{section}.{name}".rstrip(".").replace("_", "-")] = value
        processes.require_same(settings)
    from train.training.loop import JaxLearner

    return JaxLearner(config, data)


def summarize(reports: Sequence[Report]) -> dict[str, Any]:
    """Sum up the reports; the book's loss, which varies between epochs, is the mean of the last 50."""
    last = reports[-50:]
    compiled = reports[1:] or reports  # before the first one, programs are compiled
    valid_losses = [report.valid_loss for report in reports if report.valid_loss is not None]
    return {
        "loss": reports[-1].loss,
        "valid_loss": reports[-1].valid_loss,
        "valid_loss_best": min(valid_losses, default=None),
        "loss_book": sum(report.loss_book for report in last) / len(last),
        "loss_book_best": min(report.loss_book for report in reports),
        "epochs": reports[-1].epoch,
        "steps": reports[-1].step,
        "tokens_per_second": sum(report.tokens for report in compiled) / sum(report.seconds for report in compiled),
        "seconds_training": sum(report.seconds for report in reports),
    }


def count_parameters(weights: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Count the parameters, and those of the attention."""
    sizes = {name: weight.size for name, weight in weights.items()}
    attention = sum(size for name, size in sizes.items() if "attention." in name)
    return {"parameters": sum(sizes.values()), "attention_parameters": attention}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("jax", "flax", "optax", "numpy")}


if __name__ == "__main__":
    sys.exit(main())

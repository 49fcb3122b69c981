"""Trainings in several processes on this machine, and on several virtual devices."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from train.machine import processes

TRAINING = """
import json, sys
from train.config import Config, CorpusConfig, DevicesConfig, parse_mesh
from jax_attn.settings import RecurrentConfig

meshes, dtype, steps, coordinator, process = json.loads(sys.argv[1])
import jax
jax.config.update("jax_enable_x64", dtype == "float64")
from train.machine import processes
from train.machine.devices import start_jax
devices = DevicesConfig(meshes[0], coordinator=coordinator, process=process, timeout=60)
start_jax(8, max(parse_mesh(mesh).size for mesh in meshes), joins=bool(process))
if process:
    processes.join(devices)

from dataclasses import replace
import numpy as np
from train.data import dataset
from train.machine.devices import distribute, gather
from train.training.loop import JaxLearner

class Recorder:
    def report(self, report): self.losses.append([report.loss, report.valid_loss])
    def keep(self, weights): self.weights = weights
    def kept(self): return self.weights
    def should_stop(self): return False
    def restore(self, like): return None
    progress = compiling = save = lambda *_: None

rates = {"dropout": 0.2, "dropout_embedding": 0.1}
model = RecurrentConfig(attention="dot", embed_size=8, num_hiddens=8, bidirectional=False, **rates)
config = Config(epochs=99, max_steps=steps, corpus=CorpusConfig(train=300, valid=20, test=20), model=model)
data, results = dataset.load(config), []
for mesh in meshes:
    learner = JaxLearner(replace(config, devices=replace(devices, mesh=mesh)), data)
    wide = [gather(x).astype(dtype) if x.dtype == "float32" else gather(x) for x in jax.tree.leaves(learner.state)]
    learner.state = distribute(jax.tree.unflatten(jax.tree.structure(learner.state), wide), learner.mesh)
    recorder = Recorder()
    recorder.losses = []
    learner.fit(recorder)
    results.append({"losses": recorder.losses, "weights": [w.tolist() for w in learner.weights().values()]})
if processes.is_lead():
    print(json.dumps(results))
if process:
    processes.leave(0)
"""

SMALL = ["--corpus.train", "300", "--corpus.valid", "16", "--corpus.test", "16", "--model.num-hiddens", "8"]
SMALL += ["--model.embed-size", "8", "--model.dropout", "0.1", "--training.batch-size", "16"]
EPOCH = 19
"""The steps of an epoch of `SMALL`."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def train(meshes, dtype="float64", steps=10, processes=1) -> list[dict]:
    """Train on each mesh in turn, and return the results of process 0."""
    address = f"127.0.0.1:{free_port()}" if processes > 1 else None
    jobs = []
    for number in range(processes):
        arguments = [meshes, dtype, steps, address, address and f"{number}/{processes}"]
        command = [sys.executable, "-c", TRAINING, json.dumps(arguments)]
        jobs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * processes
    return json.loads(outputs[0].splitlines()[-1])


def difference(one: dict, other: dict) -> float:
    """The largest difference, of the losses and of each parameter, relative to the largest number."""
    parts = [(one["losses"], other["losses"]), *zip(one["weights"], other["weights"], strict=True)]
    return max(float(np.abs(np.subtract(a, b)).max() / np.abs(b).max()) for a, b in parts)


@pytest.mark.slow
def test_two_processes_of_two_devices_have_the_losses_of_four_devices_bit_for_bit():
    two, four = *train(["data=4"], processes=2), *train(["data=4"])
    assert two["losses"] == four["losses"]
    assert difference(two, four) < 1e-14


@pytest.mark.slow
def test_the_parameters_have_the_same_bits_too_with_all_optimisations():
    assert train(["data=4"], processes=2) == train(["data=4"])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-10), ("float32", 1e-4)])
def test_every_mesh_trains_alike(dtype, bound):
    meshes = ["data=1", "data=2", "data=4", "data=8", "data=1,model=2", "data=2,model=2", "data=2,model=4"]
    one, *others = train(meshes, dtype, steps=50)
    differences = {mesh: difference(other, one) for mesh, other in zip(meshes[1:], others, strict=True)}
    assert max(differences.values()) < bound, differences


@pytest.mark.slow
def test_processes_may_share_the_parameters():
    assert difference(*train(["data=1,model=2"], processes=2), *train(["data=1"])) < 1e-10


class Job:
    """Processes of `python -m train.nmt` that train together."""

    def __init__(self, folder: Path, *options: str, count: int = 2, of_last: tuple[str, ...] = ()) -> None:
        self.errors, address = [folder / f"error{i}" for i in range(count)], f"127.0.0.1:{free_port()}"
        self.processes = []
        for number, file in enumerate(self.errors):
            joined = ["--coordinator", address, "--process", f"{number}/{count}", "--timeout", "20"]
            command = [sys.executable, "-m", "train.nmt", *options, *joined, *(of_last if number == count - 1 else ())]
            with file.open("w") as error:
                self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=error))

    def wait(self, seconds: float = 120) -> list[int]:
        """Return the exit statuses."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self.processes:
                process.wait(seconds)
        for process in self.processes:
            process.kill()
        return [process.wait() for process in self.processes]

    def error(self, number: int) -> str:
        return self.errors[number].read_text()


def wait_for_checkpoint(run: Path, job: Job, after: int = 0) -> None:
    while job.processes[0].poll() is None and last_step(run) <= after:
        time.sleep(0.1)


def last_step(run: Path) -> int:
    return max((int(path.stem[5:]) for path in run.glob("checkpoint/step-*.json")), default=0)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) | {"seconds": 0} for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_process_that_waits_for_its_end_heeds_a_signal(capsys):
    assert processes.await_abortion(RuntimeError("Connection closed by peer"), 60, lambda: True) == 1
    assert (
        "error: another process has ended, or cannot be reached (Connection closed by peer)" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_job_that_is_stopped_or_killed_goes_on_with_other_processes(tmp_path):
    run, mesh = tmp_path / "run", ("--mesh", "data=4")
    options = [*SMALL, *mesh, "--epochs", "100000", "--training.schedule", "constant"]
    job = Job(tmp_path, *options, "--training.save-seconds", "1", "--out", str(run))
    wait_for_checkpoint(run, job)
    job.processes[1].send_signal(signal.SIGTERM)  # one of them
    assert job.wait() == [0, 0]
    assert "go on with" in job.error(0)

    stopped = last_step(run)
    job = Job(tmp_path, "--resume", str(run), *mesh)
    wait_for_checkpoint(run, job, stopped)
    job.processes[1].kill()
    started = time.monotonic()
    statuses = job.wait()
    assert statuses[1] == -signal.SIGKILL
    assert statuses[0] not in (0, -signal.SIGKILL)
    assert time.monotonic() - started < 40
    assert "The following tasks are unhealthy (stopped sending heartbeats):\n1" in job.error(0)

    killed = last_step(run)
    assert killed > stopped
    alone = [sys.executable, "-m", "train.nmt"]
    first, last = (str((killed // EPOCH + more) * EPOCH) for more in (2, 4))
    subprocess.run([*alone, "--resume", str(run), *mesh, "--max-steps", first], check=True)
    end = ["--max-steps", last]
    assert Job(tmp_path, "--resume", str(run), *mesh, *end, count=4).wait() == [0] * 4

    whole = tmp_path / "whole"
    subprocess.run([*alone, *options, *end, "--out", str(whole)], check=True)
    ours, theirs = metrics(run), metrics(whole)
    assert sum(line["tokens"] for line in ours) == sum(line["tokens"] for line in theirs)
    one, other = ({line["step"]: line["loss"] for line in lines} for lines in (ours, theirs))
    assert one.keys() == other.keys()
    # The same examples in the same order; the sums of another program round otherwise.
    np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_last", "message"),
    [
        (("--training.batch-size", "32"), "processes 0 and 1 differ in training.batch-size"),
        (("--corpus.train", "299"), "processes 0 and 1 differ in corpus.train, the sentence pairs"),
        (("--mesh", "data=4"), "the processes have 1, 2 devices; give all the same --mesh"),
    ],
)
def test_processes_that_disagree_are_refused_at_the_start(tmp_path, of_last, message):
    job = Job(tmp_path, *SMALL, "--mesh", "data=2", "--out", str(tmp_path / "run"), of_last=of_last)
    assert job.wait() == [2, 2]
    assert message in job.error(0)
    assert message in job.error(1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--coordinator", "127.0.0.1:9", "--process", "1/2"],
            "127.0.0.1:9 was not reached by all processes within 6 s",
        ),
        (
            ["--coordinator", "nowhere.invalid:9", "--process", "1/2"],
            "the coordinator nowhere.invalid:9 has no address",
        ),
        (["--distributed"], "no SLURM, Kubernetes or Open MPI was found; give coordinator and process"),
    ],
)
def test_processes_that_do_not_meet_say_so(tmp_path, options, message):
    command = [sys.executable, "-m", "train.nmt", *SMALL, *options, "--timeout", "6", "--out", str(tmp_path / "run")]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "KUBERNETES_"))
    }
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"error: {message}" in done.stderr.replace("the processes cannot be joined: ", "")
    assert ("still waiting for 127.0.0.1:9" in done.stderr) == ("127.0.0.1:9" in options)

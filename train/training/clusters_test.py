"""The files for SLURM and Kubernetes in docs/clusters: their syntax, and that the programs take their commands."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from train.command_line import train_options, translate_options

FOLDER = Path(__file__).parents[2] / "docs" / "clusters"

STUB = r"""#!/bin/sh
printf '%s\0' "${0##*/}" "$@" '
' >>"$CALLS"
"""
"""Writes its name and arguments, with a null byte after each, and a line feed at the end of the call."""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a script where the cluster's commands and Python only say how they were called. Return the calls."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "run").mkdir()
    for name in ("srun", "scontrol", "python"):
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    calls = tmp_path / "calls"
    settings = {"CALLS": calls, "RUN": tmp_path / "run", "CORPUS": tmp_path / "train", "TEXT": tmp_path / "text"}
    settings |= {"SLURM_JOB_ID": 7, "SLURM_ARRAY_TASK_ID": 3, "SLURM_NTASKS": 16}
    settings |= {"SLURM_CPUS_PER_TASK": 8, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment = os.environ | {name: str(value) for name, value in settings.items()}

    def call(script: str, status: int = 0, *options: str) -> list[list[str]]:
        calls.write_text("")
        done = subprocess.run(
            ["bash", "-euc", script, "script", *options], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (status, "")
        return [called.split("\0")[:-1] for called in calls.read_text().split("\n\0")[:-1]]

    return call


def parsed(command):
    """Parse a command of `python -m train.nmt`."""
    return train_options.parse(command[command.index("train.nmt") + 1 :])


def container():
    """Return the JobSet's job and its only container."""
    *_, jobset = yaml.safe_load_all((FOLDER / "train.yaml").read_text())
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    return job, container


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_a_training_begins_goes_on_and_ends(kind, call, tmp_path):
    slurm = kind == "slurm"
    script = (FOLDER / "train.sbatch").read_text() if slurm else container()[1]["args"][0]
    starts_again = [["scontrol", "requeue", "7"]] if slurm else []
    stopped = 0 if slurm else 1  # a JobSet starts again what has failed
    begun, *then = call(script, stopped, *(("--epochs", "30") if slurm else ()))
    assert parsed(begun).config.epochs == (30 if slurm else 20)
    assert {"--kill-on-bad-exit=0", "--cpus-per-task=8"} <= set(begun) or not slurm
    assert (parsed(begun).config.out, then) == (tmp_path / "run", starts_again)
    for name, content in {"config.json": "{}", "summary.json": "{}"}.items():
        (tmp_path / "run" / name).write_text(content)
        gone_on, *then = call(script, 0 if name == "summary.json" else stopped)
        assert parsed(gone_on).resume == tmp_path / "run"
        assert then == ([] if name == "summary.json" else starts_again)
    for command in (parsed(begun), parsed(gone_on)):
        assert (command.config.devices.distributed, command.config.devices.mesh) == (True, "data=16")


def test_the_trial_of_slurm_gives_options_that_the_program_has(call):
    script = FOLDER / "try_slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    given = re.search(r'train\.sbatch" (.*?)\n}', script.read_text(), re.DOTALL)[1].replace("$EPOCHS", "7")
    begun, _ = call((FOLDER / "train.sbatch").read_text(), 0, *shlex.split(given.replace("\\\n", "")))
    assert (parsed(begun).config.epochs, parsed(begun).config.training.save_seconds) == (7, 5)


def test_a_part_of_a_text_is_translated(call, tmp_path):
    (sent,) = call((FOLDER / "translate.sbatch").read_text())
    found = translate_options.parse(sent[sent.index("train.translate") + 1 :], None)
    assert (found.file, found.out, found.resume) == (tmp_path / "text.03", tmp_path / "text.03.out", True)


def test_as_many_devices_are_asked_for_as_the_mesh_has():
    job, only = container()
    assert only["command"] == ["bash", "-c"]
    assert job["completions"] == job["parallelism"] == 2
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] * only["resources"]["limits"]["nvidia.com/gpu"] == 16
    lines = (FOLDER / "train.sbatch").read_text().splitlines()
    wanted = {"--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8"}
    assert wanted <= {line.removeprefix("#SBATCH ") for line in lines}


def test_the_documents_of_kubernetes_belong_together():
    account, role, binding, jobset = yaml.safe_load_all((FOLDER / "train.yaml").read_text())
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    kinds = [document["kind"] for document in (account, role, binding)]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    name = account["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == name
    assert {rule["resources"][-1] for rule in role["rules"]} == {"services", "jobs"}

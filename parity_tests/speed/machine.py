"""What the numbers were measured on."""

import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from train.devices import usable_cores


def describe_machine(device: str) -> dict[str, Any]:
    """CPU, cores, device, versions and the date."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "device": device,
        "gpu": gpu_name() if device != "cpu" else None,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **library_versions()},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def same_kind(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether numbers of two machines can be compared: CPU, cores and GPU are alike."""
    return all(one.get(part) == other.get(part) for part in ("cpu", "cores", "device", "gpu"))


def cpu_model() -> str:
    """The model's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or "unknown"


def gpu_name() -> str:
    """The first GPU, as its driver calls it."""
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return asked.stdout.splitlines()[0].strip() if asked.returncode == 0 and asked.stdout else "unknown"


def library_versions() -> dict[str, str]:
    """Of what is installed."""
    found = {}
    for name in ("jax", "jaxlib", "flax", "optax", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def find_device() -> str:
    """ "cuda" if JAX and PyTorch both see a GPU, else "cpu"; asked in a process that does not stay."""
    question = "import jax, torch; print(jax.default_backend() == 'gpu' and torch.cuda.is_available())"
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    return "cuda" if asked.stdout.strip() == "True" else "cpu"


def find_cpp_compiler() -> str | None:
    """The C++ compiler that torch.compile would use."""
    return next(
        (path for name in (os.environ.get("CXX"), "g++", "clang++") if name and (path := shutil.which(name))), None
    )

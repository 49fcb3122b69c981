"""What determines a compiled program, as one number: where it is equal, so is the program."""

import dataclasses
import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from train.devices import usable_cores

SOURCES = ("jax_attn", "train")
"""The packages whose files say what is computed, beside the ones below."""

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")
"""The packages that are known by their versions."""


class Argument(NamedTuple):
    """All that a program depends on of an array that it is given."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    sharding: str | None
    """None: an array of the host."""
    devices: tuple[int, ...]
    committed: bool
    """Whether it has to stay where it is."""


def argument(x: Any) -> Argument:
    """What a program depends on of x, an array or a number."""
    kind = jax.typeof(x)
    if not isinstance(x, jax.Array):
        return Argument(kind.shape, str(kind.dtype), kind.weak_type, None, (), False)
    return Argument(kind.shape, str(kind.dtype), kind.weak_type, str(x.sharding), device_ids(x.sharding), x.committed)


def device_ids(sharding: Any) -> tuple[int, ...]:
    """The ids of a sharding's devices, in its order.

    Raises:
        TypeError: several devices without a mesh, whose order is not told.
    """
    if isinstance(sharding, NamedSharding):
        return tuple(device.id for device in sharding.mesh.devices.flat)
    if len(sharding.device_set) > 1:
        raise TypeError(f"devices in an order of their own: {sharding}")
    return tuple(device.id for device in sharding.device_set)


def function_key(name: str, held: Sequence[Any]) -> str:
    """SHA-256 of a function as it would be compiled here and now, whatever its arguments, in hexadecimal.

    Args:
        name: of the function.
        held: what its closure holds, see `describe`.

    Raises:
        TypeError: `held` has something that cannot be described.
    """
    return _digest([name, *map(describe, held), options(), *surroundings()])


def program_key(function: str, tree: Any, arguments: Sequence[Argument]) -> str:
    """SHA-256 of the program of a function, by its key, for arguments of this structure with these leaves."""
    return _digest([function, str(tree), *map(repr, arguments)])


def _digest(told: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def describe(value: Any) -> str:
    """A value in full, so that different values have different descriptions.

    Raises:
        TypeError: a value that this cannot promise of: a function, an array, or an object of a package whose code
            is not in the key.
    """
    name = _name(type(value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return f"{name} {value!r}"
    if isinstance(value, Mesh):
        ids = [device.id for device in value.devices.flat]
        return f"{name} {value.axis_names} {value.devices.shape} {value.axis_types} {ids}"
    if isinstance(value, type):
        return f"{name} {_name(value)}"
    if isinstance(value, np.dtype):
        return f"{name} {value.str}"
    if dataclasses.is_dataclass(value):  # Flax's modules are
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return f"{name} {{{', '.join(f'{describe(k)}: {describe(v)}' for k, v in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"{name} ({', '.join(map(describe, value))})"
    raise TypeError(f"a program of {name} is not kept: it cannot be described")


def _name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    package, _, _ = kind.__module__.partition(".")
    if package not in ("builtins", *SOURCES, *VERSIONS) or kind.__module__.endswith("_test"):
        raise TypeError(f"a program of {name} is not kept: its code is not in the key")
    return name


def options() -> str:
    """JAX's settings as they are now, in this thread; where its own cache lies changes no program."""
    settings = {name: value for name, value in jax.config.values.items() if "_cache" not in name}
    return f"{settings} {jax.sharding.get_abstract_mesh()}"


@cache
def surroundings() -> tuple[str, ...]:
    """What stays as it is while the process runs: code, versions, devices, processor, the compiler's flags."""
    versions = [f"{name} {version(name)}" for name in VERSIONS]
    devices = [f"{device.id} {device.platform} {device.device_kind}" for device in jax.devices()]
    flags = [f"{name}={value}" for name, value in sorted(os.environ.items()) if "XLA_" in name or "LIBTPU" in name]
    client = jax.devices()[0].client.platform_version
    cores = str(usable_cores())  # XLA cuts a CPU's loops for so many
    return (platform.python_version(), *versions, sources(), client, *devices, processor(), cores, *flags)


def sources(root: Path = Path(__file__).parents[1]) -> str:
    """SHA-256 of the packages' files, without the tests.

    Raises:
        FileNotFoundError: a package without files, as in an archive.
    """
    digest = hashlib.sha256()
    for package in SOURCES:
        files = sorted(file for file in (root / package).rglob("*.py") if not file.name.endswith("_test.py"))
        if not files:
            raise FileNotFoundError(f"{root / package} has no files")
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\0".encode() + content)
    return digest.hexdigest()


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model and what it can do, where the system tells (Linux); else its kind."""
    try:
        with told.open(encoding="utf-8", errors="replace") as lines:
            of_first_core = list(takewhile(str.strip, lines))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return platform.machine() + "".join(line for line in of_first_core if line.startswith(names))

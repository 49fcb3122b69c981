"""The versions of jaxlib that compute some compiled programs wrongly or slowly, and the flags of XLA that avoid it.

    import jax_attn.compiler

    jax_attn.compiler.avoid_faults()  # before the first computation; where nothing is wrong it does nothing

Imports no JAX: XLA reads its flags when JAX starts its first device. A program then calls `require_device`.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

KINDS = "JAX_PLATFORMS", "JAX_PLATFORM_NAME"
"""The environment variables that name the kind of device."""


class DeviceError(ValueError):
    """JAX has no device of the kind that the environment names."""


@dataclass(frozen=True)
class Fault:
    """Programs that XLA compiles wrongly, or slowly, for a CPU."""

    versions: tuple[str, ...]
    """The versions of jaxlib with this fault. Only they get the flag: a version without it would end the process."""
    about: str
    flag: str
    """What avoids it, as it stands in `XLA_FLAGS`."""
    report: str
    options: Mapping[str, str] | None = None
    """What avoids it in one program, `jax.jit(f, compiler_options=options)`; None of a program that is only slow."""

    @property
    def remedy(self) -> str:
        """What a user can do."""
        return f"set XLA_FLAGS={self.flag} before JAX starts, or take another version of jaxlib"

    def __str__(self) -> str:
        return f"jaxlib {version('jaxlib')} {self.about} ({self.report})"


FAULTS = (
    Fault(
        ("0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2"),
        "computes some sums over small axes wrongly on a CPU",
        "--xla_cpu_experimental_ynn_fusion_type=-reduce",
        "https://github.com/jax-ml/jax/issues/39103",
        {"xla_cpu_experimental_ynn_fusion_type": ""},
    ),
    Fault(
        ("0.12.0", "0.12.0.1"),
        "computes a loop without products on one core of a CPU",
        "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1024",
        "https://github.com/openxla/xla/blob/main/xla/service/cpu/small_while_loop_hoisting_pass.cc",
    ),
)


def faults_of(jaxlib: str) -> list[Fault]:
    """Return the known faults of a version that make results wrong."""
    return [fault for fault in FAULTS if jaxlib in fault.versions and fault.options is not None]


def faults_left() -> list[Fault]:
    """Return the faults that make this version's results wrong and whose option stands nowhere in `XLA_FLAGS`."""
    given = os.environ.get("XLA_FLAGS", "")
    return [fault for fault in faults_of(version("jaxlib")) if _option(fault.flag) not in given]


def avoid_faults() -> None:
    """Add the flags that this version of jaxlib needs to `XLA_FLAGS`. Call it before the first computation."""
    add_flags(*(fault.flag for fault in FAULTS if version("jaxlib") in fault.versions))


def avoided_faults() -> list[Fault]:
    """Return the faults that would make this version's results wrong, and that `XLA_FLAGS` avoids."""
    given = os.environ.get("XLA_FLAGS", "")
    return [fault for fault in faults_of(version("jaxlib")) if fault.flag in given]


@cache
def reduces_singly() -> bool:
    """Say whether XLA takes the maximum of a row number by number, since it has the flag that avoids a fault on a CPU.

    False where there are more devices than one: a row may be divided among them, and parts of it must not be cut.
    """
    if not avoided_faults():
        return False
    import jax

    return jax.default_backend() == "cpu" and jax.device_count() == 1


def add_flags(*flags: str) -> None:
    """Add flags to `XLA_FLAGS`. An option that the user has set, to whatever value, stays as it is."""
    given = os.environ.get("XLA_FLAGS", "")
    if new := [flag for flag in flags if _option(flag) not in given]:
        os.environ["XLA_FLAGS"] = " ".join([*new, given]).strip()


def _option(flag: str) -> str:
    """Return the name of the option that a flag sets: "b" of "--b=1", and of "--xla_backend_extra_options=b=1"."""
    return flag.rpartition("=")[0].rpartition("=")[2].lstrip("-")


@cache
def warn_of_faults() -> None:
    """Warn once where compiled programs may be wrong, and say the line to write."""
    if faults := faults_left():
        import jax

        if jax.default_backend() == "cpu":
            message = f"{faults[0]}; write jax_attn.compiler.avoid_faults() before the first computation"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def require_device() -> None:
    """Start JAX's devices; DeviceError, one line, if there is none of the kind that the environment names."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second one is silent: JAX knows the kind, and has no plugin
        wanted = next((f"{name}={os.environ[name]}" for name in KINDS if os.environ.get(name)), None)
        if wanted is None:
            raise
        reason = " ".join(str(error).split()) or "JAX's plugin for it is not installed, or finds none"
        raise DeviceError(f"there is no device for {wanted}: {reason}; unset it to run on a CPU") from error

"""Several processes that train together, each the same program with its own devices (`jax.distributed`)."""

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_attn.compiler import DeviceError, require_device
from train.config import DevicesConfig
from train.setting import ConfigError

NOTICE_SECONDS = 5
"""A process that has waited this long for the others says so."""


def join(config: DevicesConfig) -> None:
    """Wait until all processes have joined; before JAX's first computation.

    From then on a process that dies ends the others, `timeout` seconds later at most: JAX's runtime aborts them with a
    message that has the number of the dead one.

    Raises:
        ConfigError: the coordinator has no address, or nothing says which processes there are.
    """
    number, count = config.place() or (None, None)
    if config.coordinator is not None:
        host, port = config.coordinator.rsplit(":", 1)
        try:
            socket.getaddrinfo(host, int(port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"the coordinator {config.coordinator} has no address: {error}") from error
    jax.config.update("jax_enable_preemption_service", False)  # `StopRequest` has the signals
    whom = config.coordinator or "the coordinator"
    notice = threading.Timer(NOTICE_SECONDS, _say_waiting, [whom, config.timeout])
    # JAX would abort with a trace of C++.
    alarm = threading.Timer(config.timeout, _give_up, [whom, config.timeout])
    for timer in (notice, alarm):
        timer.daemon = True
        timer.start()
    try:
        jax.distributed.initialize(
            config.coordinator,
            count,
            number,
            initialization_timeout=config.timeout + 60,
            heartbeat_timeout_seconds=config.timeout,
            shutdown_timeout_seconds=config.timeout,
        )
        require_device()  # waits for the devices of all
    except DeviceError:
        raise
    except (ValueError, RuntimeError) as error:
        found = "no SLURM, Kubernetes or Open MPI was found; give coordinator and process" if count is None else error
        raise ConfigError(f"the processes cannot be joined: {found}") from error
    finally:
        notice.cancel()
        alarm.cancel()


def _say_waiting(whom: str, timeout: int) -> None:
    print(f"still waiting for {whom} and all processes, at most {timeout} s in all", file=sys.stderr, flush=True)


def _give_up(whom: str, timeout: int) -> NoReturn:
    problem = f"{whom} was not reached by all processes within {timeout} s"
    print(f"error: {problem}; see that all were started, or raise --timeout", file=sys.stderr, flush=True)
    os._exit(2)


def is_lead() -> bool:
    """Return whether this is the process that logs and writes, process 0."""
    return jax.process_index() == 0


def require_same(settings: Mapping[str, object]) -> None:
    """Raise ConfigError unless all processes have the same settings by the same names, compared by their hashes."""
    if jax.process_count() == 1:
        return
    counts = np.bincount([device.process_index for device in jax.devices()])
    if len(set(counts.tolist())) > 1:
        raise ConfigError(f"the processes have {', '.join(map(str, counts))} devices; give all the same --mesh")
    own = {name: sha256(repr(value).encode()).hexdigest()[:16] for name, value in settings.items()}
    first, *others = gather_json(own)
    for process, found in enumerate(others, 1):
        wrong = [name for name in sorted(first | found) if first.get(name) != found.get(name)]
        if wrong:
            raise ConfigError(
                f"processes 0 and {process} differ in {', '.join(wrong)}: start all with the same options and files"
            )


def own_part(count: int) -> slice:
    """Return this process's part of so many things, as equal as they can be."""
    number, processes = jax.process_index(), jax.process_count()
    return slice(number * count // processes, (number + 1) * count // processes)


def from_lead(value: Any) -> Any:
    """Return the value of process 0 in every process. All processes must call it, and the value must fit JSON."""
    return gather_json(value)[0]


def leave(status: int) -> None:
    """Leave the other processes, when all have come to their end; after an error end at once.

    To leave is to wait for the others, and these wait for the results of a process that has met an error.
    """
    if status in (0, 130):
        jax.distributed.shutdown()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def await_abortion(error: Exception, timeout: int, should_stop: Callable[[], bool]) -> int:
    """Say that communication has failed, and wait until JAX names the dead process and aborts this one.

    If the user or the system wants this process to stop, it need not wait: nothing is left to save.

    Returns:
        An exit status, if it did neither.
    """
    reason = str(error).splitlines()[0]
    print(f"error: another process has ended, or cannot be reached ({reason})", file=sys.stderr, flush=True)
    end = time.monotonic() + timeout + 10
    while time.monotonic() < end and not should_stop():
        time.sleep(0.1)
    return 1


def gather_json(value: Any) -> list[Any]:
    """Return the values of all processes, process 0 first; each is what JSON can hold."""
    if jax.process_count() == 1:
        return [value]
    own = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(own.size)))
    padded = np.pad(own, (0, int(sizes.max()) - own.size))
    found = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row[:size])) for row, size in zip(found, sizes.tolist(), strict=True)]


def gather_list(values: Sequence[Any]) -> list[Any]:
    """Join the lists of all processes, process 0 first; each is what JSON can hold."""
    return [value for part in gather_json(values) for value in part]


class Agreement:
    """Let all processes do the same: the largest of their wishes, which are numbers.

    Each call returns the largest wish of the call before, so that no process waits. A single process has its answer at
    once.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._where = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._largest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._asked: deque[Array] = deque()

    def ask(self, wish: int) -> int:
        """Return the largest wish of all processes, at the last call; 0 at the first."""
        if jax.process_count() == 1:
            return wish
        count = len(self._where.addressable_devices)
        wishes = jax.make_array_from_process_local_data(self._where, np.full(count, wish, np.int32))
        self._asked.append(self._largest(wishes))
        return int(self._asked.popleft()) if len(self._asked) > 1 else 0

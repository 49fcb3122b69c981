"""A jitted function whose compiled programs are kept: a later process neither traces nor compiles them.

JAX's own cache keeps what XLA compiled and finds it by the lowered program, so each process traces and lowers first,
which takes longer than to load. Here the program is found by what it is made from, see `program_key`.
"""

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import RLock
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled

from train import program_key

P = ParamSpec("P")
R = TypeVar("R")

MOST_FILES = 100
"""Those used last stay. A training run has five programs and a translation one, of 0.2 to 0.5 megabytes each: this is
some twenty kinds of runs in less than 50 megabytes."""

_LOADERS = ThreadPoolExecutor(thread_name_prefix="load-program")
"""They wait while XLA loads."""

_COMPILING = RLock()
"""Whoever holds it may change JAX's settings for a while."""

_log = logging.getLogger(__name__)


def kept(function: Callable[P, R], *held: Any) -> "KeptProgram[P, R]":
    """A jitted function of arrays that finds the programs which an earlier process has compiled.

    Args:
        function: as `jax.jit` gives it.
        held: everything that its closure holds and that makes it what it is; see `program_key.describe`.
    """
    return KeptProgram(function, held)


class KeptProgram(Generic[P, R]):
    """See `kept`. Where nothing can be kept, it is the function itself."""

    def __init__(self, function: Callable[P, R], held: tuple[Any, ...]) -> None:
        self.function, self.held = function, held
        self.name = getattr(function, "__name__", "program")
        self._programs: dict[Any, Callable[..., R]] = {}
        self._ahead: dict[Path, Future[Compiled | None]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        folder = program_folder()
        leaves, tree = jax.tree.flatten((args, kwargs))
        if folder is None or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.function(*args, **kwargs)
        try:
            arguments = tuple(map(program_key.argument, leaves))
        except TypeError:  # no arrays, which JAX will say; or spread over devices in a way that cannot be told
            return self.function(*args, **kwargs)
        signature = folder, program_key.options(), tree, arguments
        if signature not in self._programs:
            file = self._file(folder, lambda function: program_key.program_key(function, tree, arguments))
            self._programs[signature] = self.function if file is None else self._program(file, args, kwargs)
        return self._programs[signature](*args, **kwargs)

    def load_ahead(self) -> None:
        """Begin to load the program that was used last, while the caller does something else."""
        folder = program_folder()
        pattern = None if folder is None else self._file(folder, lambda function: "*")
        if pattern is not None:
            used = [(file_time(file), file) for file in pattern.parent.glob(pattern.name)]
            if used:
                _, last = max(used)
                self._ahead[last] = _LOADERS.submit(load, last)

    def _file(self, folder: Path, key: Callable[[str], str]) -> Path | None:
        """Where a program lies, by the key that is made of its function's; None if that cannot be told."""
        try:
            function = program_key.function_key(self.name, self.held)
        except (TypeError, OSError) as error:
            _log.debug("%s is not kept: %s", self.name, error)
            return None
        return folder / f"{self.name}-{function[:16]}-{key(function)}.program"

    def _program(self, file: Path, args: Any, kwargs: Any) -> Callable[..., R]:
        """The kept program, or a new one."""
        ahead = self._ahead.pop(file, None)
        program = load(file) if ahead is None else ahead.result()
        if program is None:
            with _without_jax_cache():
                program = self.function.lower(*args, **kwargs).compile()  # type: ignore[attr-defined]
            store(file, program)
        return program


def program_folder() -> Path | None:
    """Where JAX keeps what it compiles; None if nowhere, or if what runs is not to be the compiled program."""
    config: Any = jax.config
    folder = config.jax_compilation_cache_dir
    if not folder or "://" in folder or not config.jax_enable_compilation_cache:
        return None
    if config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs or jax.process_count() > 1:
        return None
    return Path(folder)


def load(file: Path) -> Compiled | None:
    """The program of a file; None if it is not there or not whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    try:
        checksum, packed = content[:32], content[32:]
        if hashlib.sha256(packed).digest() != checksum:
            raise ValueError("its checksum is wrong")
        # The user's own folder is trusted with machine code, and so with a pickle, as JAX's own cache is.
        devices, in_tree, out_tree, program = pickle.loads(zlib.decompress(packed))
        by_id = {device.id: device for device in jax.devices()}
        compiled = serialize_executable.deserialize_and_load(
            program, in_tree, out_tree, execution_devices=[by_id[i] for i in devices]
        )
    except Exception as error:  # whatever is wrong with it: it can be made again
        _log.warning("%s cannot be used and is compiled anew: %s", file, error)
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # by which `_forget_old` knows it was used
    return compiled


def store(file: Path, program: Compiled) -> None:
    """Write a program so that others find all of it or nothing; without a word where there is no place for it."""
    try:
        serialized, *trees = serialize_executable.serialize(program)
        devices = program_key.device_ids(jax.tree.leaves(program.output_shardings)[0])
        packed = zlib.compress(pickle.dumps((devices, *trees, serialized)))
    except Exception as error:  # a backend or a program that cannot
        _log.debug("%s is not kept: %s", file.name, error)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".program", delete=False) as new:
            try:
                new.write(hashlib.sha256(packed).digest() + packed)
                new.close()
                os.replace(new.name, file)
            except OSError:
                os.unlink(new.name)
                raise
        _forget_old(file.parent)
    except OSError as error:
        _log.debug("%s is not kept: %s", file, error)


def _forget_old(folder: Path) -> None:
    """Leave those used last; what another process deletes meanwhile is gone as well."""
    used = [(file_time(file), file) for file in folder.glob("*.program")]
    for _, file in sorted(used)[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def file_time(file: Path) -> float:
    """When a program was used last; long ago if another process has just deleted it."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    """Compile anew. What comes from JAX's own cache cannot be kept again: on a CPU it has lost functions that it calls.

    JAX asks only once whether it has a cache, until it is told to forget the answer.
    """
    name = "jax_enable_compilation_cache"
    with _COMPILING:
        before = jax.config.values[name]
        jax.config.update(name, False)
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update(name, before)
            compilation_cache.reset_cache()

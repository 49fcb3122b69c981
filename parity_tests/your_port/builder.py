"""Call the user's function that builds what is compared: `port.py:build`. Imports neither framework."""

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


class BuildError(ValueError):
    """A place that is no function in a file, or a function that raises."""


def call_builder(place: str) -> Any:
    """Import the file of `port.py:build`, call the function, and return what it returns.

    Raises:
        BuildError: there is no such file or function, or it raises; the message says where.
    """
    file, colon, name = place.rpartition(":")
    path = Path(file).absolute()
    if not colon or path.suffix != ".py" or not path.is_file():
        raise BuildError(
            f"{place} must be a file and a function in it, such as port.py:build; there is no file {file!r}"
        )
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(f"_builder_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, such as Linen's modules, look their module up
    try:
        spec.loader.exec_module(module)
        build = getattr(module, name, None)
        if callable(build):
            return build()
    except BaseException as error:  # also an exit, and what skips a test
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise BuildError(f"{place} raised {type(error).__name__}{where}: {error}") from error
    raise BuildError(f"{file} has no function {name}")

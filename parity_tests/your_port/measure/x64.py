"""The switch to float64, by the name that this version of JAX has for it. Imports no torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental

_place: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # before JAX 0.8
enable_x64: Callable[[bool], AbstractContextManager[Any]] = _place.enable_x64

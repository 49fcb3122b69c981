"""Where JAX keeps compiled programs from one run to the next."""

import os
import platform
from pathlib import Path


def keep_programs() -> None:
    """Let JAX find again what an earlier run of the same versions has compiled; nothing if it cannot be written.

    They lie in the user's cache folder and may be deleted at any time. `JAX_COMPILATION_CACHE_DIR`
    names another folder, and `JAX_ENABLE_COMPILATION_CACHE=0` keeps nothing.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]  # the user has chosen
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_folder() -> Path:
    """One for each machine: a home may be shared by several, and a program is compiled for one kind of processor."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "jax-attn" / f"{platform.node() or 'machine'}-{platform.machine()}"

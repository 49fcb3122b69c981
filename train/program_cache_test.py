import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
from train.program_cache import keep_programs
keep_programs()
jax.jit(lambda x: jnp.sin(x) + {number})(jnp.ones(3))
print(jax.config.jax_compilation_cache_dir)
"""


def run(environment, number=1, program=PROGRAM):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", program.format(number=number)], env=kept | environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_second_run_finds_what_the_first_has_compiled(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = run(environment)
    assert folder.startswith(str(tmp_path / "jax-attn"))
    programs = set(tmp_path.rglob("jit_*-cache"))
    assert programs
    run(environment)
    assert set(tmp_path.rglob("jit_*-cache")) == programs
    run(environment, number=2)
    assert set(tmp_path.rglob("jit_*-cache")) > programs


@pytest.mark.parametrize("home", ["/proc/nobody", "/dev/null/cache"])
def test_where_nothing_can_be_kept_the_run_goes_on(home):
    assert run({"XDG_CACHE_HOME": home}) == "None"


def test_a_folder_of_the_user_s_choice_stays(tmp_path):
    chosen = str(tmp_path / "chosen")
    assert run({"XDG_CACHE_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": chosen}) == chosen

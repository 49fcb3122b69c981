import os
import re
import subprocess
import sys

PROGRAM = """
from train.xla_options import set_xla_options
set_xla_options()
set_xla_options()
import jax, jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(1000)).block_until_ready()
print(sum((jax.numpy.ones(3) + 1).tolist()))
"""


def compiled_with(tmp_path, flags):
    """The options that XLA itself says a program was compiled with, as it writes them down."""
    environment = os.environ | {"XLA_FLAGS": f"{flags} --xla_dump_to={tmp_path}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "6.0", "")
    written = next(tmp_path.glob("*debug_options")).read_text()
    return dict(re.findall(r'key: "(.*)"\s+value: "(.*)"', written))


def test_xla_compiles_with_them(tmp_path):
    given = compiled_with(tmp_path, "")
    assert given == {"xla_cpu_use_multi_output_fusion": "true", "xla_cpu_disable_loop_unrolling": "true"}


def test_what_the_user_has_set_wins(tmp_path):
    given = compiled_with(tmp_path, "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling=false")
    assert given == {"xla_cpu_use_multi_output_fusion": "true", "xla_cpu_disable_loop_unrolling": "false"}

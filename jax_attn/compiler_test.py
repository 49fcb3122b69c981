import os
import subprocess
import sys

import pytest

from jax_attn import compiler

FAULT, SLOW = compiler.FAULTS
NAME = "--xla_cpu_experimental_ynn_fusion_type"
WRONG = """
import jax, jax.numpy as jnp
f = lambda x: jax.vmap(lambda row: jnp.sum(jnp.eye(3) @ row))(x)
x = jnp.zeros((40000, 3)).at[:, 0].set(jnp.arange(40000.0))
print(float(abs(f(x) - jax.jit(f)(x)).max()))
"""


@pytest.fixture
def affected(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(compiler, "version", lambda _: FAULT.versions[0])
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=hlo")
    return monkeypatch


def test_the_flag_is_added_once_and_the_users_flags_stay(affected: pytest.MonkeyPatch) -> None:
    compiler.avoid_faults()
    assert compiler.avoided_faults() == [FAULT]
    assert os.environ["XLA_FLAGS"] == f"{FAULT.flag} --xla_dump_to=hlo"
    compiler.avoid_faults()
    assert compiler.avoided_faults() == [FAULT]
    assert os.environ["XLA_FLAGS"] == f"{FAULT.flag} --xla_dump_to=hlo"


def test_a_users_own_value_of_the_flag_stays(affected: pytest.MonkeyPatch) -> None:
    affected.setenv("XLA_FLAGS", f"{NAME}=+dot")
    compiler.avoid_faults()
    assert compiler.avoided_faults() == []
    assert os.environ["XLA_FLAGS"] == f"{NAME}=+dot"


def test_a_version_without_the_fault_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "version", lambda _: "0.11.2")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    compiler.avoid_faults()
    assert compiler.avoided_faults() == []
    assert "XLA_FLAGS" not in os.environ


@pytest.mark.parametrize(("backend", "devices", "singly"), [("cpu", 1, True), ("cpu", 2, False), ("gpu", 1, False)])
def test_rows_are_reduced_singly_where_the_fault_is_avoided_on_one_cpu_device(
    affected: pytest.MonkeyPatch, backend: str, devices: int, singly: bool
) -> None:
    affected.setattr("jax.default_backend", lambda: backend)
    affected.setattr("jax.device_count", lambda: devices)
    reduces_singly = compiler.reduces_singly.__wrapped__  # which keeps no answer
    assert not reduces_singly()
    compiler.avoid_faults()
    assert reduces_singly() == singly


def test_a_slow_version_gets_its_flag_without_a_word_and_other_extra_options_stay(affected: pytest.MonkeyPatch) -> None:
    affected.setattr(compiler, "version", lambda _: SLOW.versions[0])
    affected.setenv("XLA_FLAGS", "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling=true")
    compiler.avoid_faults()
    compiler.avoid_faults()
    given = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling=true"
    assert os.environ["XLA_FLAGS"] == f"{SLOW.flag} {given}"
    assert compiler.faults_left() == compiler.avoided_faults() == []
    affected.setenv("XLA_FLAGS", given + ",xla_cpu_small_while_loop_byte_threshold=9")
    compiler.avoid_faults()
    assert SLOW.flag not in os.environ["XLA_FLAGS"]


@pytest.mark.skipif(compiler.version("jaxlib") not in SLOW.versions, reason="this version of jaxlib is not slow")
def test_the_flag_keeps_a_large_loop_out_of_one_kernel() -> None:
    code = "import jax, jax.numpy as jnp; x = jnp.ones((1024, 1024))\n"
    code += "f = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: jnp.sin(x) + i, x))\n"
    code += "print('xla_cpu_small_call' in f.lower(x).compile().as_text())"
    assert _run(code).stdout == "True\n"
    assert _run("import jax_attn.compiler; jax_attn.compiler.avoid_faults()\n" + code).stdout == "False\n"


def test_the_first_call_of_a_public_function_warns_once(affected: pytest.MonkeyPatch) -> None:
    code = "import jax_attn, numpy as np; x = np.ones((2, 3), np.float32); jax_attn.masked_softmax(x); "
    code += "jax_attn.masked_softmax(x)"
    said = _run(code, "import jax_attn.compiler as c; c.version = lambda _: '0.10.2'; ").stderr
    assert said.count("RuntimeWarning: jaxlib 0.10.2 computes some sums") == 1
    assert "write jax_attn.compiler.avoid_faults() before the first computation" in said


def test_the_flag_makes_a_wrong_program_right_and_no_function_warns() -> None:
    code = "import jax_attn.compiler; jax_attn.compiler.avoid_faults(); import numpy as np\n"
    code += "print(jax_attn.masked_softmax(np.ones((2, 3), np.float32)).shape)\n"
    run = _run(code + WRONG)
    assert (run.stdout, run.stderr) == ("(2, 3)\n0.0\n", "")


@pytest.mark.slow
def test_the_versions_that_are_called_wrong_are_wrong() -> None:
    if not (faults := compiler.faults_of(compiler.version("jaxlib"))):
        pytest.skip("this version of jaxlib has no known fault")
    assert float(_run(WRONG).stdout) >= 1  # a number of another row; of which one, the CPU decides
    options = f"compiler_options={dict(faults[0].options)}"
    assert _run(WRONG.replace("jax.jit(f)", f"jax.jit(f, {options})")).stdout == "0.0\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AssertionError(), "JAX's plugin for it is not installed, or finds none;"),
        (RuntimeError("no\ndriver"), "no driver;"),
    ],
)
@pytest.mark.parametrize("variable", compiler.KINDS)
def test_a_device_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, error: Exception, reason: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("jax.devices", fail)
    for name in compiler.KINDS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(type(error)):  # nothing was asked for: it is another fault
        compiler.require_device()
    monkeypatch.setenv(variable, "cuda")
    with pytest.raises(compiler.DeviceError, match=f"there is no device for {variable}=cuda: {reason}"):
        compiler.require_device()


def _run(code: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python without any flag, and with all optimisations, as users do."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")}
    command = [sys.executable, "-W", "default::RuntimeWarning", "-c", before + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

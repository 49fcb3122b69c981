"""Programs on eight devices of a CPU, right and with the mistakes that sharded programs have.

They run in a process of their own, which has eight devices: this file, run as a program, prints what was found.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from parity_tests.your_port.sharded import compare_sharded

DEVICES = 8
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.normal(size=(5, 3)), "b": RNG.normal(size=3)}
X, Y = RNG.normal(size=(16, 5)), RNG.normal(size=(16, 3))
COUNTED = np.r_[1.0, RNG.random(15) < 0.6]
"""Which rows count, so that the devices have other numbers of them."""
INPUTS, SPECS = (WEIGHTS, X, Y, COUNTED), (P(), P("data"), P("data"), P("data"))

Program = Callable[..., Any]


def on_rows(function: Program, mesh: Mesh, out: P) -> Program:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=SPECS, out_specs=out, check_vma=False))


def step(mesh: Mesh, mistake: str = "") -> Program:
    """Take a step of gradient descent on a mean over all rows that count."""

    def loss(weights: Any, x: Any, y: Any, counted: Any) -> Any:
        return ((jnp.tanh(x @ weights["w"] + weights["b"]) - y) ** 2).mean(-1) @ counted

    def run(weights: Any, x: Any, y: Any, counted: Any) -> Any:
        own = mistake == "means of their own"
        count = counted.sum() if own else jax.lax.psum(counted.sum(), "data")
        value, slope = jax.value_and_grad(lambda w: loss(w, x, y, counted) / jnp.maximum(count, 1))(weights)
        if mistake != "no sum":
            value, slope = (jax.lax.pmean if own else jax.lax.psum)((value, slope), "data")
        if mistake == "summed twice":
            slope = jax.lax.psum(slope, "data")
        if mistake == "a mean":
            slope = jax.tree.map(lambda s: s / DEVICES if mesh.size > 1 else s, slope)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slope), value

    return on_rows(run, mesh, P())


def norm(mesh: Mesh, mistake: str = "") -> Program:
    def run(weights: Any, x: Any, *_: Any) -> Any:
        hidden = x @ weights["w"]
        mean = hidden.mean(0)
        return jnp.tanh(hidden - (mean if mistake else jax.lax.pmean(mean, "data")))

    return on_rows(run, mesh, P("data"))


def gather(mesh: Mesh, mistake: str = "") -> Program:
    def run(weights: Any, x: Any, *_: Any) -> Any:
        hidden = x @ weights["w"]
        if mistake and mesh.size > 1:
            hidden = jax.lax.ppermute(hidden, "data", [(i, (i + 3) % DEVICES) for i in range(DEVICES)])
        return jax.lax.all_gather(hidden, "data", tiled=True)

    return on_rows(run, mesh, P())


def dropout(mesh: Mesh, mistake: str = "") -> Program:
    def run(weights: Any, x: Any, *_: Any) -> Any:
        begin = 0 if mistake else jax.lax.axis_index("data") * len(x)
        keep = jax.random.bernoulli(jax.random.key(0), 0.5, (16, 3))
        return jnp.where(jax.lax.dynamic_slice_in_dim(keep, begin, len(x)), x @ weights["w"], 0)

    return on_rows(run, mesh, P("data"))


def unlike(mesh: Mesh, mistake: str = "") -> Program:
    """Make a difference that is none of the known ones."""
    return on_rows(lambda weights, x, *_: x @ weights["w"] * (1 + 1e-6 * (mesh.size > 1)), mesh, P("data"))


def cast(mesh: Mesh, mistake: str = "") -> Program:
    """Sum in float32, whose rounding depends on the order."""
    return on_rows(lambda _, x, *others: jax.lax.psum(x.astype(jnp.float32).sum(), "data"), mesh, P())


def more(mesh: Mesh, mistake: str = "") -> Program:
    """Return what the program of one device does not."""
    names = ["hidden", "more"][: 1 + (mesh.size > 1)]
    return on_rows(lambda weights, x, *_: dict.fromkeys(names, x @ weights["w"]), mesh, P("data"))


PROGRAMS = {
    **{
        f"step, {mistake}": (step, mistake)
        for mistake in ("", "no sum", "summed twice", "a mean", "means of their own")
    },
    **{f"norm, {mistake}": (norm, mistake) for mistake in ("", "of its own part")},
    **{f"gather, {mistake}": (gather, mistake) for mistake in ("", "another order")},
    **{f"dropout, {mistake}": (dropout, mistake) for mistake in ("", "alike")},
    "another factor": (unlike, ""),
    "float32 inside": (cast, ""),
    "one more result": (more, ""),
}
EXPECTED = {
    "step, no sum": "the sum or mean over data is missing: what its first device computes stands there",
    "step, summed twice": (
        "what the step adds is 8 times too large: summed over data where a mean belongs, or summed twice"
    ),
    "step, a mean": "what the step adds is 8 times too small: a mean over data where a sum belongs, or taken twice",
    "step, means of their own": "what the devices along data compute is averaged, whatever number of terms each has",
    "norm, of its own part": "each device along data computes from its own part alone",
    "gather, another order": "the parts of the devices along data stand in the order [5, 6, 7, 0, 1, 2, 3, 4]",
    "dropout, alike": (
        "each device along data computes from its own part alone, and all have their zeros in the same places, "
        "as of dropout"
    ),
    "another factor": "none of the known mistakes",
    "float32 inside": "by no more than the rounding of float32: if the program casts to it, give inside='float32'",
    "one more result": "none of the known mistakes",
}


def main() -> None:
    """Print what each program gives."""
    mesh = jax.make_mesh((DEVICES,), ("data",))
    found: dict[str, list[str]] = {}
    for name, (program, mistake) in PROGRAMS.items():
        report = compare_sharded(lambda mesh, p=program, m=mistake: p(mesh, m), INPUTS, mesh, SPECS, name=name)
        assert report.agrees is (name not in EXPECTED), report
        found[name] = str(report).splitlines()
    dtypes = ("float64", "float32", "bfloat16")
    for name, mistake in (("narrow", ""), ("narrow, no sum", "no sum")):
        report = compare_sharded(lambda mesh, m=mistake: step(mesh, m), INPUTS, mesh, SPECS, dtypes=dtypes, name=name)
        found[name] = str(report).splitlines()
    report = compare_sharded(cast, INPUTS, mesh, SPECS, inside="float32", name="cast")
    found["cast"] = str(report).splitlines()
    square = jax.make_mesh((2, 4), ("data", "model"))
    found["two axes"] = str(compare_sharded(step, INPUTS, square, SPECS, name="two axes")).splitlines()
    for name, inputs, specs in (
        ("odd", (WEIGHTS, X[:9], Y[:9], COUNTED[:9]), SPECS),
        ("too few specs", INPUTS, SPECS[:2]),
        ("other names", INPUTS, (P(), P("rows"), P("data"), P("data"))),
    ):
        with pytest.raises(ValueError, match=r"\S") as error:
            compare_sharded(step, inputs, mesh, specs)
        found[name] = [str(error.value)]
    with pytest.raises(ValueError, match="in float32 is another one than in float64"):
        compare_sharded(lambda mesh: dropout(mesh, "alike"), INPUTS, mesh, SPECS, dtypes=("float32",))
    print(json.dumps(found))


@cache
def found() -> dict[str, list[str]]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mistake_is_found_and_its_cause_named(name: str) -> None:
    first, *_, last = found()[name]
    if name in EXPECTED:
        assert first.startswith(f"{name} on data=8 DIFFERS in ")
        assert last == f"  cause: {EXPECTED[name]}"
    else:
        assert first == f"{name} on data=8 agrees with one device (float64)"


def test_narrow_dtypes_and_several_axes() -> None:
    assert found()["narrow"][0] == "narrow on data=8 agrees with one device (float64 and float32 and bfloat16)"
    assert found()["narrow, no sum"][-1] == f"  cause: {EXPECTED['step, no sum']}"
    assert found()["cast"][0] == "cast on data=8 agrees with one device (float64)"
    assert found()["two axes"][0] == "two axes on data=2, model=4 agrees with one device (float64)"


def test_what_cannot_be_run_says_why() -> None:
    assert found()["odd"][0].startswith("step cannot be compared on data=8: ValueError: ")
    assert "partitioned 8 times" in found()["odd"][0]
    assert found()["too few specs"] == ["specs must have one entry for each of the 4 inputs; got 2"]
    assert "rows" in found()["other names"][0]
    one = jax.make_mesh((1,), ("data",))
    with pytest.raises(ValueError, match="mesh must have two devices or more"):
        compare_sharded(step, INPUTS, one, SPECS)
    with pytest.raises(ValueError, match="dtypes must be some of"):
        compare_sharded(step, INPUTS, Mesh(np.array([jax.devices()[0]] * 2), ("data",)), SPECS, dtypes="float64")


if __name__ == "__main__":
    main()

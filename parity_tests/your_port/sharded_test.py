"""Programs on eight devices of a CPU, right and with the mistakes that sharded programs have.

They run in a process of their own, which has eight devices: this file, run as a program, prints what was found.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
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


def centred(mesh: Mesh, mistake: str = "") -> Program:
    """Take the mean off, so that the gradient of the bias is zero except for rounding."""

    def run(weights: Any, x: Any, *_: Any) -> Any:
        hidden = x @ weights["w"] + weights["b"]
        return hidden - jax.lax.pmean(hidden.mean(0), "data")

    return on_rows(run, mesh, P("data"))


def gather(mesh: Mesh, mistake: str = "") -> Program:
    def run(weights: Any, x: Any, *_: Any) -> Any:
        hidden = x @ weights["w"]
        if mistake and mesh.size > 1:
            hidden = jax.lax.ppermute(hidden, "data", [(i, (i + 3) % DEVICES) for i in range(DEVICES)])
        return jax.lax.all_gather(hidden, "data", tiled=True)

    return on_rows(run, mesh, P())


def reduce(mesh: Mesh, mistake: str = "") -> Program:
    """Sum over the devices; with the mistake, the sum reaches the first one alone, though all return it."""

    def run(weights: Any, x: Any, *_: Any) -> Any:
        own = x.sum(0)
        is_right = jax.lax.axis_index("data") == 0 if mistake else True
        return jnp.where(is_right, jax.lax.psum(own, "data"), own)

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


def waves(mesh: Mesh, mistake: str = "") -> Program:
    """Sum complex numbers, whose rounding depends on the order, too."""
    return on_rows(lambda _, x, *others: jax.lax.psum((x * jnp.exp(1j * x)).sum(0), "data"), mesh, P())


def cast(mesh: Mesh, mistake: str = "") -> Program:
    """Sum in float32, whose rounding depends on the order."""
    return on_rows(lambda _, x, *others: jax.lax.psum(x.astype(jnp.float32).sum(), "data"), mesh, P())


def more(mesh: Mesh, mistake: str = "") -> Program:
    """Return what the program of one device does not."""
    names = ["hidden", "more"][: 1 + (mesh.size > 1)]
    return on_rows(lambda weights, x, *_: dict.fromkeys(names, x @ weights["w"]), mesh, P("data"))


ALL = {"dtypes": ("float64", "float32", "bfloat16")}
PROGRAMS: dict[str, tuple[Callable[..., Program], str, dict[str, int], dict[str, Any]]] = {
    f"{program.__name__}, {mistake}": (program, mistake, {"data": DEVICES}, {})
    for program, *mistakes in (
        (step, "", "no sum", "summed twice", "a mean", "means of their own"),
        (norm, "", "of its own part"),
        (gather, "", "another order"),
        (reduce, "", "to one device"),
        (dropout, "", "alike"),
        (waves, ""),
        (unlike, "another factor"),
        (cast, "float32 inside"),
        (more, "results"),
    )
    for mistake in mistakes
} | {
    "narrow": (step, "", {"data": DEVICES}, ALL),
    "narrow, centred": (centred, "", {"data": DEVICES}, ALL),
    "narrow, no sum": (step, "no sum", {"data": DEVICES}, ALL),
    "cast, by the rule of float32": (cast, "", {"data": DEVICES}, {"inside": "float32"}),
    "two axes": (step, "", {"data": 2, "model": 4}, {}),
}
"""Name -> program, its mistake, the sizes of the mesh, and options."""
EXPECTED = {
    "step, no sum": "the sum or mean over data is missing: what its first device computes stands there",
    "step, summed twice": (
        "what the step adds is 8 times too large: summed over data where a mean belongs, or summed twice"
    ),
    "step, a mean": "what the step adds is 8 times too small: a mean over data where a sum belongs, or taken twice",
    "step, means of their own": "what the devices along data compute is averaged, whatever number of terms each has",
    "norm, of its own part": "each device along data computes from its own part alone",
    "gather, another order": "the parts of the devices along data stand in the order [5, 6, 7, 0, 1, 2, 3, 4]",
    "reduce, to one device": "none of the known mistakes",
    "dropout, alike": (
        "each device along data computes from its own part alone, and all have their zeros in the same places, "
        "as of dropout"
    ),
    "unlike, another factor": "none of the known mistakes",
    "cast, float32 inside": "it casts to float32, and within its rounding the two agree: inside='float32'",
    "more, results": "none of the known mistakes",
    "narrow, no sum": "the sum or mean over data is missing: what its first device computes stands there",
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "odd": (
        (WEIGHTS, X[:9], Y[:9], COUNTED[:9]),
        SPECS,
        "(?s)odd cannot be compared on data=8: ValueError: .*partitioned 8 times",
    ),
    "too few specs": (INPUTS, SPECS[:2], "specs must have one entry for each of the 4 inputs; got 2$"),
    "an array alone": (X, (P("data"),), "inputs and specs must have one entry for each argument"),
    "a spec alone": ((X,), P("data"), "inputs and specs must have one entry for each argument"),
    "no spec": (INPUTS, (None, *SPECS[1:]), r".*specs\[0\] must be a PartitionSpec, P\(\) where .*; got None$"),
    "other names": (INPUTS, (P(), P("rows"), P("data"), P("data")), "(?s).*rows"),
    "random in float32": (INPUTS, SPECS, "(?s).*in float32 is another one than in float64"),
}
"""Name -> inputs, specs, and what the error says."""
QUICK = ("step, ", "step, no sum", "gather, another order", "reduce, to one device", "unlike, another factor", *REFUSED)
OTHERS = tuple(name for name in PROGRAMS if name not in QUICK)


def said_of(name: str) -> str:
    """Return the report of a program, or the message of the error."""
    if name in REFUSED:
        inputs, specs, _ = REFUSED[name]
        program, dtypes = (dropout, ("float32",)) if name == "random in float32" else (step, ("float64",))
        with pytest.raises(ValueError, match=r"\S") as error:
            compare_sharded(program, inputs, jax.make_mesh((DEVICES,), ("data",)), specs, dtypes=dtypes, name=name)
        return str(error.value)
    program, mistake, sizes, options = PROGRAMS[name]
    mesh = jax.make_mesh((*sizes.values(),), (*sizes,))
    report = compare_sharded(lambda mesh: program(mesh, mistake), INPUTS, mesh, SPECS, name=name, **options)
    assert report.agrees is (name not in EXPECTED), report
    return str(report)


@pytest.mark.parametrize(
    "names", [pytest.param(QUICK, id="quick"), pytest.param(OTHERS, id="others", marks=pytest.mark.slow)]
)
def test_mistakes_are_found_and_their_causes_named_and_what_cannot_be_run_says_why(names: tuple[str, ...]) -> None:
    """All in one test, since they share a process."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    for name, said in json.loads(done.stdout).items():
        first, last = said.splitlines()[0], said.splitlines()[-1]
        if name in REFUSED:
            assert re.match(REFUSED[name][-1], said), name
            continue
        _, _, sizes, options = PROGRAMS[name]
        place = f"{name} on {', '.join(f'{axis}={size}' for axis, size in sizes.items())}"
        if name in EXPECTED:
            assert first.startswith(f"{place} DIFFERS in ")
            assert last == f"  cause: {EXPECTED[name]}"
            assert "right on the first device" in said or name != "reduce, to one device"
        else:
            assert first == f"{place} agrees with one device ({' and '.join(options.get('dtypes', ['float64']))})"


def test_a_mesh_or_dtypes_of_another_kind_are_refused() -> None:
    one = jax.make_mesh((1,), ("data",))
    with pytest.raises(ValueError, match="mesh must have two devices or more"):
        compare_sharded(step, INPUTS, one, SPECS)
    with pytest.raises(ValueError, match="dtypes must be some of"):
        compare_sharded(step, INPUTS, Mesh(np.array([jax.devices()[0]] * 2), ("data",)), SPECS, dtypes="float64")


if __name__ == "__main__":
    print(json.dumps({name: said_of(name) for name in sys.argv[1:]}))

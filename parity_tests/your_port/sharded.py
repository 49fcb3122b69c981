"""Hold a program on many devices to the same program on one device: `compare_sharded`. Imports no torch.

Both run on the same numbers. One device in float64 is the truth, and one device in a narrower dtype shows how much
rounding matters; the bounds are those of `measure.judge`. What explains a difference is tried: the program runs on one
device with each device's part of the inputs alone, and what a known mistake makes of these parts has to be what the
mesh computes, also on fresh numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity_tests.your_port.measure.arrays import flatten, in_reals, is_floating, plain, to_numpy
from parity_tests.your_port.measure.case import DTYPES, Case, JaxSide, TorchSide, Variant, random_for
from parity_tests.your_port.measure.errors import relative_error, unit_roundoff
from parity_tests.your_port.measure.jax_side import differentiate
from parity_tests.your_port.measure.judge import Judge, Measurement, Runs
from parity_tests.your_port.measure.numbers import Run, redrawn
from parity_tests.your_port.measure.op_by_op import trace
from parity_tests.your_port.measure.width import enable_x64, own_tables
from parity_tests.your_port.record import Findings

Build = Callable[[Mesh], Callable[..., Any]]
FRESH = 2
"""On so many fresh draws a cause has to explain the difference, too."""
NEAR = 1e-9
"""The relative error in float64 below which a cause explains what stands there."""
LOST = 0.5
"""Rounding does not make a larger relative error."""
TINY = np.finfo(np.float64).tiny
SHOWN = 3


@own_tables(has_tables=True)
def compare_sharded(
    build: Build,
    inputs: Sequence[Any],
    mesh: Mesh,
    specs: Sequence[Any],
    *,
    gradients: bool = True,
    dtypes: Sequence[str] = ("float64",),
    inside: str = "",
    name: str = "",
) -> "ShardedReport":
    """Compare a program on a mesh of devices with itself on one device: outputs, and gradients of all floating inputs.

        print(compare_sharded(lambda mesh: make_train_step(model, mesh), (state, batch), mesh, (P(), P("data"))))

    A training step is a program like others: state and batch are its inputs, and the new state is among its outputs.
    Give it one step, since the mistakes of several are mixed in their result.

    Args:
        build: mesh -> the program for it, a function of the inputs. It is also called with a mesh of one device that
            has the same axes.
        inputs: the arguments: arrays, or nested containers of arrays.
        mesh: of two devices or more. On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=8 makes eight.
        specs: for each argument how it lies on the mesh: a PartitionSpec, or a tree of them like the argument.
        gradients: False compares the outputs alone, such as those of a training step.
        dtypes: of float64, float32 and bfloat16 those in which it runs.
        inside: "float32" where the program computes in float32, whatever comes in.
        name: what the report calls the program.

    Raises:
        ValueError: the mesh has one device, or the program cannot be run on it; the message says why.
    """
    if mesh.size < 2:
        raise ValueError(
            "mesh must have two devices or more; XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8"
        )
    if not dtypes or isinstance(dtypes, str) or set(dtypes) - set(DTYPES):
        raise ValueError(f"dtypes must be some of {', '.join(DTYPES)}; got {dtypes!r}")
    if inside not in ("", "float32"):
        raise ValueError(f"inside must be 'float32' or left out; got {inside!r}")
    if hasattr(inputs, "dtype") or isinstance(specs, PartitionSpec):
        raise ValueError("inputs and specs must have one entry for each argument, also for a single one: (x,), (spec,)")
    if len(specs) != len(inputs):
        raise ValueError(f"specs must have one entry for each of the {len(inputs)} inputs; got {len(specs)}")
    programs = _Programs(build, mesh, tuple(inputs), tuple(specs), gradients)
    called = name or getattr(build, "__name__", "the program")
    try:
        truth = programs.run(programs.one, programs.arrays, "float64")
        measured = [m for dtype in dtypes for m in programs.measure(dtype, truth, called, inside)]
    except Exception as error:
        raise ValueError(
            f"{called} cannot be compared on {_shape_of(mesh)}: {type(error).__name__}: {error}"
        ) from error
    if not measured:
        raise ValueError(f"{called} returns no array, so that there is nothing to compare")
    first = next((m for m in measured if m.failed), None)
    causes = list[str]()
    if first is not None:
        try:
            if not inside and programs.is_float32_inside(truth):
                causes = ["it casts to float32, and within its rounding the two agree: inside='float32'"]
            else:
                causes = programs.explain(first) or ["none of the known mistakes"]
        except Exception as error:  # the measurements are the verdict, whatever becomes of their explanation
            causes = [f"the search failed: {type(error).__name__}: {error}; please report it"]
    return ShardedReport(called, _shape_of(mesh), tuple(measured), tuple(causes))


def _shape_of(mesh: Mesh) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


@dataclass(frozen=True)
class ShardedReport(Findings):
    """What `compare_sharded` found."""

    name: str
    mesh: str
    """The sizes of its axes."""
    measurements: tuple[Measurement, ...]
    causes: tuple[str, ...] = ()
    """What explains the first tensor that differs, in words."""

    def _lines(self) -> Iterator[str]:
        failed, dtypes = self.failed, " and ".join(dict.fromkeys(m.dtype for m in self.measurements))
        count = f"{len({m.tensor for m in failed})} of {len({m.tensor for m in self.measurements})} tensors"
        verdict = f"DIFFERS in {count} from" if failed else "agrees with"
        yield f"{self.name} on {self.mesh} {verdict} one device ({dtypes})"
        worst = max(self.measurements, key=lambda m: m.share)
        yield f"  worst: {worst.tensor}, {worst.dtype}: {worst.difference}"
        if failed:
            first = failed[0]
            yield f"  first difference: {first.tensor}, {first.dtype}: {first.difference}"
            yield f"  cause: {' or '.join(self.causes[:SHOWN])}"


@dataclass(frozen=True)
class _Programs:
    """The program for one device and for the mesh."""

    build: Build
    mesh: Mesh
    inputs: tuple[Any, ...]
    specs: tuple[Any, ...]
    gradients: bool
    _programs: dict[Mesh, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def one(self) -> Mesh:
        """The mesh of one device with the same axes."""
        devices = self.mesh.devices.flat[:1].reshape((1,) * self.mesh.devices.ndim)
        return Mesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)

    @property
    def arrays(self) -> dict[str, Any]:
        """The inputs' arrays by name."""
        return {name: x for name, x in flatten(self.inputs)[0].items() if hasattr(x, "dtype")}

    @cached_property
    def places(self) -> dict[str, PartitionSpec]:
        """How each array lies on the mesh."""

        def is_spec(x: Any) -> bool:
            return isinstance(x, PartitionSpec)

        def along(number: int, spec: Any, argument: Any) -> Any:
            try:
                return jax.tree.map(
                    lambda spec, part: jax.tree.map(lambda _: spec, part), spec, argument, is_leaf=is_spec
                )
            except ValueError as error:
                raise ValueError(
                    f"specs[{number}] must be a PartitionSpec, P() where each device holds the whole, or a tree of "
                    f"them like the argument; got {spec}"
                ) from error

        whole = [along(number, *given) for number, given in enumerate(zip(self.specs, self.inputs, strict=True))]
        return {name: spec for name, spec in flatten(tuple(whole), is_leaf=is_spec)[0].items() if is_spec(spec)}

    def run(self, mesh: Mesh, arrays: Mapping[str, Any], dtype: str, whole: Run | None = None, part: int = 0) -> Run:
        """Run the program on a mesh; return what the first copies of its results are."""
        return self.copies(mesh, arrays, dtype, whole, part)[0]

    def copies(
        self, mesh: Mesh, arrays: Mapping[str, Any], dtype: str, whole: Run | None = None, part: int = 0
    ) -> list[Run]:
        """Run the program on a mesh, with gradients along directions of the outputs.

        Copies that should be equal may differ, so all different ones are returned.

        Args:
            whole: where the inputs are a part of the whole ones, the run of these.
            part: its number; a part of an output gets its part of the direction.
        """
        with enable_x64(dtype == "float64"):
            moved, fixed = self._given(mesh, arrays, dtype)
            compute, program = self._compiled(mesh)
            directions = dict[str, np.ndarray]()
            for name, x in jax.eval_shape(compute, moved, fixed).items() if self.gradients else ():
                if x is not None and is_floating(x):
                    size = x.shape if whole is None else whole.outputs[name].shape
                    drawn = random_for("sharded", name).normal(size=size).astype(x.dtype)
                    directions[name] = _cut(drawn, x.shape, part)
            outputs, found = program(moved, fixed, directions)
            held = {name: _copies(x) for name, x in outputs.items()}
            held_gradients = {name: _copies(x) for name, x in found.items()}
            most = max(map(len, (*held.values(), *held_gradients.values())), default=1)
            return [Run(_each(held, number), _each(held_gradients, number)) for number in range(most)]

    def _given(self, mesh: Mesh, arrays: Mapping[str, Any], dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put the arrays on a mesh, floating ones in a dtype; return these and the others."""
        cast = {n: np.asarray(x).astype(jnp.dtype(dtype)) if is_floating(x) else x for n, x in arrays.items()}
        given = {n: jax.device_put(x, NamedSharding(mesh, self.places[n])) for n, x in cast.items()}
        moved = {name: x for name, x in given.items() if is_floating(x)}
        return moved, {name: x for name, x in given.items() if name not in moved}

    def _compiled(self, mesh: Mesh) -> tuple[Any, Any]:
        """Return the outputs on a mesh as a function (moved, fixed), and the program of outputs and gradients."""
        if mesh not in self._programs:
            flat, rebuild = flatten(self.inputs)
            program = self.build(mesh)

            def compute(moved: Any, fixed: Any) -> dict[str, Any]:
                results = plain(program(*rebuild({**flat, **moved, **fixed})))
                return {name: in_reals(x) for name, x in flatten(results)[0].items()}

            self._programs[mesh] = compute, jax.jit(differentiate(compute))
        return self._programs[mesh]

    def measure(self, dtype: str, truth: Run, name: str, inside: str) -> list[Measurement]:
        """Measure every tensor of the mesh against one device."""
        arrays = self.arrays
        case = Case(name, (), TorchSide(lambda *_: None), JaxSide(lambda *_: None), inside=inside)
        narrow = self.run(self.one, arrays, "float32" if dtype == "float64" else dtype)
        judge = Judge(
            case, Variant("given inputs", {}), dtype, truth, ("the program on the mesh", "that on one device")
        )
        if judge.rule != "float64":
            _require_rounding(narrow, truth, judge.rule)
        first, *others = (judge.compare(Runs(many, narrow, truth)) for many in self.copies(self.mesh, arrays, dtype))
        for measured in others:
            for place, m in enumerate(measured):
                if m.failed and not first[place].failed:
                    words = f"right on the first device, and not in the copy on another one: {m.difference}"
                    first[place] = replace(m, mismatch=words)
        return first

    # What explains a difference

    def is_float32_inside(self, truth: Run) -> bool:
        """Whether the program casts to float32, whatever comes in, and no tensor differs by more than its rounding."""
        with enable_x64(True):
            program, _ = trace(self._compiled(self.one)[0], *self._given(self.one, self.arrays, "float64"))
        if jnp.dtype(jnp.float32) not in program.dtypes:
            return False
        try:
            return not any(m.failed for m in self.measure("float64", truth, "", "float32"))
        except ValueError:  # random numbers
            return False

    def explain(self, first: Measurement) -> list[str]:
        """Return the known mistakes that make what the mesh has of a tensor, on these numbers and on fresh ones."""
        found = list[list[str]]()
        for draw in range(1 + FRESH):
            arrays = {name: _fresh(name, x, draw) for name, x in self.arrays.items()}
            truth, copies = self.run(self.one, arrays, "float64"), self.copies(self.mesh, arrays, "float64")
            expected, held = truth.tensors.get(first.tensor), (many.tensors.get(first.tensor) for many in copies)
            there = next((x for x in held if x is not None and not (expected is not None and _same(x, expected))), None)
            if there is None or expected is None:
                continue  # these numbers do not show it
            axes, bases = [axis for axis, size in self.mesh.shape.items() if size > 1], _bases(arrays, there)
            made = (each for axis in axes for each in self._made(axis, first.tensor, arrays, truth, there, bases))
            words = [words for words, x in made if _same(there, x)]
            found.append([*words, *_rescaled(there, expected, bases, self.mesh), *_moved(there, expected, self.mesh)])
        common = (words for words in found[0] if all(words in others for others in found)) if found else ()
        return list(dict.fromkeys(common))

    def _made(
        self,
        axis: str,
        name: str,
        arrays: Mapping[str, Any],
        truth: Run,
        there: np.ndarray,
        bases: Sequence[np.ndarray],
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what mistakes along an axis of the mesh make of a tensor, from the results of the devices' parts."""
        size = self.mesh.shape[axis]
        cuts = {n: at for n, spec in self.places.items() for at, on in enumerate(spec) if on in (axis, (axis,))}
        if not cuts:
            return
        parts = [{n: np.split(x, size, cuts[n])[i] if n in cuts else x for n, x in arrays.items()} for i in range(size)]
        try:
            runs = [self.run(self.one, each, "float64", truth, part) for part, each in enumerate(parts)]
        except Exception:  # the program takes no smaller inputs
            return
        made, whole = [run.tensors[name] for run in runs], truth.tensors[name].shape
        if made[0].shape == whole:
            own = f"the sum or mean over {axis} is missing: what its first device computes stands there"
            yield own, made[0]
            for base in bases if there.shape == whole and there.size > 2 else ():
                added = made[0] - base  # or a multiple of it, where a count was summed, and not this
                yield own, base + added * np.vdot(added, there - base) / max(np.vdot(added, added), TINY)
            each = f"what the devices along {axis} compute is"
            yield f"{each} averaged, whatever number of terms each has", np.mean(made, 0)
            yield f"{each} summed", np.sum(made, 0)
        for at in range(len(whole)):
            if made[0].shape[at] * size == whole[at] and len({x.shape for x in made}) == 1:
                alike = all(np.array_equal(x == 0, made[0] == 0) for x in made) and bool(0 < (made[0] == 0).mean() < 1)
                zeros = ", and all have their zeros in the same places, as of dropout" * alike
                yield f"each device along {axis} computes from its own part alone{zeros}", np.concatenate(made, at)


def _require_rounding(narrow: Run, truth: Run, dtype: str) -> None:
    """Raise ValueError where a narrower dtype changes more than digits: its rounding would hide any mistake."""
    floating = {name: x for name, x in truth.tensors.items() if x is not None and is_floating(x)}
    largest = max((float(np.abs(x).max(initial=0, where=np.isfinite(x))) for x in floating.values()), default=0.0)
    least = 32 * unit_roundoff(dtype) * largest  # a gradient may be zero except for rounding
    for name, x in floating.items():
        y = narrow.tensors.get(name)
        if y is not None and x.shape == y.shape and relative_error(y, x, least) > LOST:
            raise ValueError(
                f"on one device, {name} in {dtype} is another one than in float64. Random numbers depend on the dtype: "
                "with them, compare in float64 alone"
            )


def _copies(x: Any) -> list[Any]:
    """Return what the devices hold of an array, as whole arrays: one, unless they hold different numbers of it."""
    if x is None:
        return [None]
    first = to_numpy(x)
    found = {first.tobytes(): first}
    for number in sorted({shard.replica_id for shard in x.addressable_shards} - {0}):
        copy = np.empty_like(first)
        for shard in x.addressable_shards:
            if shard.replica_id == number:
                copy[shard.index] = to_numpy(shard.data)
        found.setdefault(copy.tobytes(), copy)
    return [*found.values()]


def _each(held: Mapping[str, list[Any]], number: int) -> dict[str, Any]:
    """Return the copy of this number of each array, or the last one of those that have fewer."""
    return {name: copies[min(number, len(copies) - 1)] for name, copies in held.items()}


def _bases(arrays: Mapping[str, Any], there: np.ndarray) -> list[np.ndarray]:
    """Return what a step may have added to: nothing, or an input of the same shape."""
    before = [np.asarray(x) for x in arrays.values() if is_floating(x) and x.shape == there.shape]
    return [np.zeros(there.shape), *before] if is_floating(there) else []


def _near(x: np.ndarray, y: np.ndarray) -> bool:
    return relative_error(x, y) < NEAR


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and _near(x, y)


def _fresh(name: str, x: Any, draw: int) -> Any:
    """Draw an array of the same kind anew; keys of random numbers stay."""
    if draw == 0 or not hasattr(x, "dtype") or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return redrawn(np.asarray(x), random_for("fresh", name, str(draw)))


def _cut(whole: np.ndarray, shape: tuple[int, ...], part: int) -> np.ndarray:
    """Take the part of a direction that belongs to a part of an output."""
    for axis, size in enumerate(shape):
        if size != whole.shape[axis]:
            whole = np.moveaxis(np.moveaxis(whole, axis, 0)[part * size : (part + 1) * size], 0, axis)
    return whole


def _rescaled(there: np.ndarray, expected: np.ndarray, bases: Sequence[np.ndarray], mesh: Mesh) -> Iterator[str]:
    """Say by which axis's size a tensor, or what a step adds to its input, is too large or too small."""
    for axis, size in mesh.shape.items():
        for base in bases if size > 1 and there.shape == expected.shape else ():
            what = "what the step adds" if base.any() else "it"
            if _near(there - base, (expected - base) * size):
                yield f"{what} is {size} times too large: summed over {axis} where a mean belongs, or summed twice"
            if _near(there - base, (expected - base) / size):
                yield f"{what} is {size} times too small: a mean over {axis} where a sum belongs, or taken twice"


def _moved(there: np.ndarray, expected: np.ndarray, mesh: Mesh) -> Iterator[str]:
    """Say in which order the devices' parts of a tensor stand."""
    for axis, size in mesh.shape.items():
        for at, length in enumerate(there.shape if there.shape == expected.shape and size > 1 else ()):
            if length % size:
                continue
            ours, theirs = (np.split(x, size, at) for x in (there, expected))
            order = [next((i for i, x in enumerate(theirs) if _near(y, x)), -1) for y in ours]
            if sorted(order) == list(range(size)) and order != sorted(order):
                yield f"the parts of the devices along {axis} stand in the order {order}"

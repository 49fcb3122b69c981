"""Compare two checkpoints bit for bit, tensor by tensor, and without a model: `compare_weights`.

Names and shapes say which tensor stands where, as in `compare`; where shapes leave several layouts open, the numbers
decide. Tensors are read one after the other, so that memory holds the largest one, and not the checkpoint.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import inf, prod
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from parity_tests.your_port.measure.arrays import is_floating
from parity_tests.your_port.measure.bits import are_same, describe_difference, fingerprint
from parity_tests.your_port.measure.judge import Measurement
from parity_tests.your_port.record import Findings, Record
from parity_tests.your_port.stored import Stored, Tensors, open_tensors
from parity_tests.your_port.weights.given_names import Names, is_named
from parity_tests.your_port.weights.layouts import Layout, Layouts, Shape, find_layouts, wanted_layout
from parity_tests.your_port.weights.load import Load
from parity_tests.your_port.weights.match import LeftOverError, match_weights
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Entry, Joined, Leaf, Piece, Source, WeightMap, count_uses
from parity_tests.your_port.weights.words import role_of

NO_WEIGHTS = ("opt_state", "opt", "optim", "optimizer", "optimizer_state", "optimizer_states", "optimizer_state_dict")
"""The outermost names under which checkpoints keep the states of optimisers."""
SHOWN = 6
"""How many tensors, and how many notes, the verdict names."""

Track = Callable[[Sequence[str]], Iterable[str]]


@dataclass(frozen=True)
class WeightsReport(Findings):
    """What `compare_weights` found."""

    name: str
    measurements: tuple[Measurement, ...]
    """Of each tensor whether its bits are the same, or what differs."""
    map: WeightMap
    """Which tensor stands where."""
    notes: tuple[str, ...]

    @property
    def record(self) -> Record:
        """Everything that was found, for other programs."""
        return replace(super().record, map=self.map)

    def _lines(self) -> Iterator[str]:
        failed, count = self.failed, len(self.measurements)
        verdict = f"DIFFERS in {len(failed)} of {count} tensors" if failed else "agrees"
        yield f"{self.name} {verdict} ({count} tensors, bit for bit)"
        for lines in ([f"  {m.tensor}: {m.mismatch}" for m in failed], [f"  note: {note}" for note in self.notes]):
            yield from lines[:SHOWN]
            if len(lines) > SHOWN:
                yield f"  … and {len(lines) - SHOWN} more"


def compare_weights(
    torch_weights: Any,
    jax_weights: Any,
    *,
    names: Names | None = None,
    layout: Layouts | None = None,
    load: Load | None = None,
    ignore: Sequence[str] = (),
    track: Track = iter,
) -> WeightsReport:
    """Compare two checkpoints: every tensor of JAX is one of PyTorch's bit for bit, in a layout that the map states.

        print(compare_weights("model.safetensors", "checkpoints/1000"))

    A tensor that JAX holds in another dtype must be PyTorch's, converted to it. Weights of either side that the other
    lacks are differences. Counters, keys and the states of optimisers are left out.

    Args:
        torch_weights: a file or a folder of those that docs/parity.md lists, or a state dict in memory.
        jax_weights: the same of JAX, or a tree of arrays in memory.
        names: as in `compare`: JAX's name -> PyTorch's, or None for what JAX alone has.
        layout: as in `compare`: JAX's name -> its layout.
        load: your function that loads PyTorch's weights into JAX, in the place of names. It gets all of them, so that
            they and what it returns are in memory at once.
        ignore: PyTorch's names, with *, that JAX need not have.
        track: goes through JAX's names while they are compared, and may show how far it is.

    Raises:
        OSError, ValueError: a file cannot be read, or holds no weights; `names` or `ignore` fit nothing.
    """
    in_torch, left_out = _weights_in(torch_weights, "PyTorch")
    in_jax, also_left_out = _weights_in(jax_weights, "JAX")
    if unknown := [p for p in ignore if not any(fnmatchcase(name, p) for name in in_torch)]:
        raise ValueError(
            f"ignore: {', '.join(unknown)} fits none of PyTorch's names, such as {_listed(list(in_torch))}"
        )
    if load is not None:
        loaded = load({name: tensor.read() for name, tensor in in_torch.items()})
        in_torch, _ = _weights_in(nnx.state(loaded) if isinstance(loaded, nnx.Module) else loaded, "what load returns")
    found = _find_places(in_torch, in_jax, names, layout, by_load=load is not None)
    comparison = _Comparison(in_torch, in_jax, found, names or {}, layout or {})
    for path in track([path for path in in_jax if path not in found.kept]):
        comparison.place(path)
    comparison.look_elsewhere()
    comparison.expect_one_layout()
    comparison.find_left_over(ignore)
    if found.kept:
        comparison.notes.append(f"{_listed(found.kept)} of JAX is its own by names=, and is not compared")
    for side, others in (("PyTorch", left_out), ("JAX", also_left_out)):
        if others:
            comparison.notes.append(f"{_listed(others)} of {side} is no weight, and is not compared")
    return comparison.report(f"{_name_of(jax_weights)} against {_name_of(torch_weights)}")


def _name_of(source: Any) -> str:
    return Path(source).name if isinstance(source, str | Path) else type(source).__name__


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _weights_in(source: Any, side: str) -> tuple[Tensors, list[str]]:
    """List what may be weights, and the names of what is none: counters, keys, and states of optimisers.

    A first `params` and a last `value` are no part of a name.

    Raises:
        ValueError: there are no weights.
    """
    tensors, others = dict[str, Stored](), list[str]()
    opened = open_tensors(source)
    for name, tensor in opened.items():
        path = name.split(".")
        if tensor.dtype.kind == "c":  # compared as its two parts, along one more axis
            tensor = Stored((*tensor.shape, 2), np.dtype(f"f{tensor.dtype.itemsize // 2}"), partial(_parts_of, tensor))
        is_weight = is_floating(tensor) or (len(tensor.shape) > 1 and tensor.dtype.kind in "iub")
        if path[0] in NO_WEIGHTS or not is_weight:
            others.append(name)
            continue
        path = path[1:] if path[0] == "params" and len(path) > 1 else path
        short = ".".join(path[:-1] if path[-1] == "value" and len(path) > 1 else path)
        tensors[name if short in opened or short in tensors else short] = tensor
    if not tensors:
        raise ValueError(f"{side} has no weights: {_name_of(source)} holds no floating tensors")
    return tensors, others


def _parts_of(tensor: Stored) -> np.ndarray:
    x = tensor.read()
    return np.stack([x.real, x.imag], -1)


def _described(tensors: Tensors) -> list[Weight]:
    return [Weight(n, x.shape, n, "", not is_floating(x) or "running_" in n) for n, x in tensors.items()]


def _find_places(
    in_torch: Tensors, in_jax: Tensors, names: Names | None, layout: Layouts | None, by_load: bool
) -> WeightMap:
    """Find which tensor stands where, by names and shapes. What is left over in JAX has no place."""
    leaves = {name: Leaf(x.shape) for name, x in in_jax.items()}
    if by_load:
        same = {path: Entry(Joined(((Piece(path),),)), (Layout(),)) for path in leaves if path in in_torch}
        return WeightMap(leaves, same)
    try:
        return match_weights(_described(in_torch), leaves, lambda *_: None, names, layout)
    except LeftOverError as error:
        return error.found


class _Comparison:
    """The steps of a comparison, and what they have found so far."""

    def __init__(self, in_torch: Tensors, in_jax: Tensors, found: WeightMap, names: Names, layouts: Layouts) -> None:
        self.in_torch, self.in_jax, self.found = in_torch, in_jax, found
        self.names, self.layouts = names, layouts
        self.entries = dict(found.entries)
        self.said = dict[str, str]()
        """By the name of a tensor what differs; "" if nothing does."""
        self.notes = list[str]()

    def place(self, path: str, entry: Entry | None = None) -> None:
        """Compare a tensor of JAX with what stands there, and keep the layouts in which the bits are the same."""
        entry = entry or self.entries.get(path)
        if entry is None:
            self.said[path] = "PyTorch has no counterpart"
            return
        ours = self.in_jax[path].read()
        weights = self._read(entry.source)
        if problem := _lost_by(ours.dtype, weights):
            self.said[path] = problem
            return
        fitting, least, nearest = list[Layout](), inf, ""
        for layout in entry.layouts:  # one after the other, since a weight may be large
            theirs = entry.source.fill(weights, layout).astype(ours.dtype, copy=False)
            if are_same(ours, theirs):
                fitting.append(layout)
            elif (count := float(np.count_nonzero(ours != theirs))) < least:
                least, nearest = count, describe_difference(ours, theirs)
        self.said[path] = "" if fitting else nearest
        if fitting:
            self.entries[path] = replace(entry, layouts=tuple(fitting), guessed="")

    def _read(self, source: Source) -> dict[str, np.ndarray]:
        return {name: self.in_torch[name].read() for name in dict.fromkeys(source.names)}

    def look_elsewhere(self) -> None:
        """Say whose numbers stand where something differs. Where names did not decide, the numbers do."""
        wrong, by_numbers = [path for path, text in self.said.items() if text], list[str]()
        standing = self._by_fingerprint({path: self.in_jax[path] for path in wrong})
        for path in wrong:
            ours, own = self.in_jax[path].read(), self.entries.get(path)
            held = [] if own is None and _is_constant(ours) else standing.get(fingerprint(ours), [])
            if own is not None and own.source in held:
                self.said[path] += "; they are the same numbers in another order"
                continue
            is_open = own is None or own.guessed
            if held and is_open and not is_named(path, self.names) and len(held[0].parts) == 1:
                layouts = find_layouts(self._shape(held[0].parts[0][0]), self.in_jax[path].shape, None)
                if layouts:
                    self.place(path, Entry(held[0], layouts, "found by its numbers"))
                    by_numbers += [f"{path} is {held[0]}"] * (not self.said[path])
            if held and self.said[path]:
                instead = "" if own is None else f", not of {own.source}"
                self.said[path] = f"it holds the numbers of PyTorch's {' or '.join(map(str, held[:2]))}{instead}"
        if by_numbers:
            count = "1 tensor was" if len(by_numbers) == 1 else f"{len(by_numbers)} tensors were"
            self.notes.append(f"{count} found by numbers, since names leave it open: {_listed(by_numbers)}")

    def _by_fingerprint(self, like: Tensors) -> dict[Any, list[Joined]]:
        """Read what PyTorch has of these sizes and dtypes: whole weights, and what entries are made of."""
        dtypes = defaultdict[int, set[Any]](set)
        for tensor in like.values():
            dtypes[prod(tensor.shape)].add(tensor.dtype)
        found = defaultdict[Any, list[Joined]](list)
        made = [entry.source for entry in self.entries.values() if isinstance(entry.source, Joined)]
        for source in dict.fromkeys([*(Joined(((Piece(name),),)) for name in self.in_torch), *made]):
            for dtype in dtypes[sum(prod(self._shape(first)) for first, *_ in source.parts)]:
                with np.errstate(over="ignore", invalid="ignore"):  # of a dtype that cannot hold them
                    made_of = source.fill(self._read(source), Layout()).astype(dtype, copy=False)
                found[fingerprint(made_of)].append(source)
        return found

    def _shape(self, piece: Piece) -> Shape:
        shape = self.in_torch[piece.name].shape
        return (*shape[: piece.axis], shape[piece.axis] // piece.count, *shape[piece.axis + 1 :]) if shape else shape

    def expect_one_layout(self) -> None:
        """Require that a square weight stands as those of its kind do whose shapes show how.

        Its shape fits in both ways, and the port computes otherwise than PyTorch if it is the wrong one.
        """
        shown = defaultdict[Any, Counter[Any]](Counter)
        open_ones = dict[str, Any]()
        for path, entry in self.entries.items():
            name, before = entry.source.names[0], self.found.entries.get(path, entry).layouts
            kind = path.rpartition(".")[2], role_of(name), len(self.in_torch[name].shape)
            if len(before) > 1:
                open_ones[path] = kind
            elif kind[2] > 1 and wanted_layout(self.layouts, path, name) is None:
                shown[kind][_moves(before[0])] += 1
        unsure = Counter[str]()
        for path, kind in open_ones.items():
            layouts = self.entries[path].layouts
            fitting = tuple(layout for layout in layouts if _moves(layout) in shown[kind])
            if self.said[path] or not shown[kind]:
                unsure[layouts[0].words] += not self.said[path]
            elif fitting:
                self.entries[path] = replace(self.entries[path], layouts=fitting)
                unsure[fitting[0].words] += len(shown[kind]) > 1
            else:
                self.said[path] = (
                    f"it is square and stands {layouts[0].words}, unlike the {shown[kind].total()} others called "
                    f"{kind[0]}; if that is meant: layout={{{path!r}: {layouts[0].words!r}}}"
                )
        for words, count in (+unsure).items():
            they = "tensor does not show whether it stands" if count == 1 else "tensors do not show whether they stand"
            self.notes.append(f"the shape of {count} square {they} {words} rightly")

    def find_left_over(self, ignore: Sequence[str]) -> None:
        """Say what PyTorch has and JAX has not, unless it is another's second name."""
        used = {name for entry in self.entries.values() for name in entry.source.names}
        if others := [n for n, x in self.in_torch.items() if n not in used and not is_floating(x)]:
            self.notes.append(f"{_listed(others)} of PyTorch, in whole numbers, has no counterpart in JAX")
        for text, uses in self._map().left_in_torch.items():
            tensor = self.in_torch[uses.name]
            if any(fnmatchcase(uses.name, pattern) for pattern in ignore):
                continue
            ours, beside = tensor.read(), used - {uses.name}
            alike = [n for n, x in self.in_torch.items() if (x.shape, x.dtype) == (tensor.shape, tensor.dtype)]
            same = [n for n in alike if n in beside and are_same(ours, self.in_torch[n].read())]
            same = [] if _is_constant(ours) else same
            if same:
                self.notes.append(f"{text} is {same[0]} once more in PyTorch")
            else:
                self.said[text] = "JAX has no counterpart"

    def _map(self) -> WeightMap:
        kept = tuple(path for path in self.in_jax if path not in self.entries)
        return WeightMap(self.found.leaves, self.entries, count_uses(_described(self.in_torch), self.entries), kept)

    def report(self, name: str) -> WeightsReport:
        """Count what was converted on the way, and say everything."""
        casts = Counter[tuple[str, str]]()
        for path, entry in self.entries.items():
            before, after = self.in_torch[entry.source.names[0]].dtype, self.in_jax[path].dtype
            casts[str(before), str(after)] += before != after
        notes = [
            f"{before} in PyTorch is {after} in JAX, in {n} of {len(self.entries)} tensors"
            for (before, after), n in (+casts).items()
        ]
        stored = {**self.in_torch, **self.in_jax}
        dtypes = {path: str(stored[path].dtype) if path in stored else "" for path in self.said}
        measured = (Measurement(name, "weights", dtypes[path], path, 0, 0, 0, text) for path, text in self.said.items())
        return WeightsReport(name, tuple(measured), self._map(), (*notes, *self.notes))


def _lost_by(dtype: Any, weights: Mapping[str, np.ndarray]) -> str:
    """Say why JAX's dtype cannot hold these weights of PyTorch, if it is so."""
    for name, x in weights.items():
        if is_floating(x) != bool(jnp.issubdtype(dtype, jnp.floating)):
            return f"{dtype} in JAX cannot hold {name}, which is {x.dtype} in PyTorch"
        if x.dtype == dtype or "b" in (x.dtype.kind, np.dtype(dtype).kind) or not x.size:
            continue
        limits = jnp.finfo if is_floating(x) else jnp.iinfo
        if limits(dtype).min <= limits(x.dtype).min and limits(x.dtype).max <= limits(dtype).max:
            continue
        finite = x[np.isfinite(x)] if is_floating(x) else x
        for end in (finite.min(initial=0), finite.max(initial=0)):
            if not limits(dtype).min <= end <= limits(dtype).max:
                return f"{dtype} in JAX cannot hold {name}, in which there is {end:.3g}"
    return ""


def _is_constant(x: np.ndarray) -> bool:
    """Whether all numbers are the same one, as in a bias before training: they do not say where they belong."""
    return are_same(x, np.broadcast_to(x.flat[0], x.shape)) if x.size else True


def _moves(layout: Layout) -> Any:
    """Return what a layout does, however the shape is changed afterwards."""
    return layout.axes, layout.flipped

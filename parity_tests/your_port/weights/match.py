"""Find which weight of PyTorch belongs to which of JAX, by name, shape and layout.

One score says how well two weights fit: how alike their names are, word by word, whether their modules hold as many
numbers, and their order. Modules are then assigned to modules so that the sum of the scores is largest, and after them
the weights that are left. What the user says about names and layouts comes first. A JAX weight may be a part of one of
PyTorch's (the gates of a GRU, the query of a packed projection), several of them stacked (layers under a scan), or the
sum of a recurrent layer's two biases.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from parity_tests.your_port.weights.given_names import Names, ask_for, name_pattern, read_given_name
from parity_tests.your_port.weights.layouts import Layout, Layouts, Role, Shape, find_layouts, is_usual, wanted_layout
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.sources import Label, Source, Unit, find_sources, label_weights
from parity_tests.your_port.weights.weight_map import Entry, Joined, Leaf, Piece, Uses, WeightMap, count_uses
from parity_tests.your_port.weights.words import likeness, role_of

_Pair = tuple[str, int]
"""A JAX weight, and the number of what it may be made of."""


class LeftOverError(ValueError):
    """Weights of the JAX side have no counterpart; `found` is the map of the others."""

    def __init__(self, message: str, found: WeightMap) -> None:
        super().__init__(message)
        self.found = found


def match_weights(
    weights: Sequence[Weight],
    leaves: Mapping[str, Leaf],
    role: Role,
    names: Names | None = None,
    layouts: Layouts | None = None,
    by_order: bool = False,
    shared: bool = False,
    variables: bool = False,
    integers: Mapping[str, np.ndarray] | None = None,
) -> WeightMap:
    """Match every weight of the JAX side with one of PyTorch's.

    Args:
        role: how the framework stores the weights of its layers.
        by_order: let the order in which weights were defined weigh more than their names.
        shared: let JAX's weights that are left over be copies of others, as of a weight that PyTorch uses twice. Those
            that the user names may be so in any case.
        variables: let JAX's variables that are no parameters hold parameters of PyTorch, as those of an adapter may.
        integers: integers and booleans that JAX gets beside its weights.

    Raises:
        LeftOverError: weights of the JAX side are left over; the message lists what is left on both sides.
        ValueError: `names` names none of them.
    """
    names = names or {}
    layouts = {pattern: wish for pattern, wish in (layouts or {}).items() if pattern != "*"}  # of inputs and results
    for name in names:
        if not any(name_pattern(name).search(path) for path in leaves):
            raise ValueError(
                f"names: {name!r} is no part of a JAX name. JAX's name stands on the left, PyTorch's on the right; JAX "
                f"has {', '.join(leaves)}"
            )
    wishes = {path: read_given_name(path, names) for path in leaves}
    labels = label_weights(leaves, [wish.path for wish in wishes.values()])
    sources = list(find_sources(weights))
    for formula in dict.fromkeys(formula for wish in wishes.values() for formula in wish.formulas):
        sources += list(ask_for(formula, sources[: len(weights)]))
    fits: dict[_Pair, tuple[Layout, ...]] = {}
    for path, leaf in leaves.items():
        trained = replace(leaf, is_buffer=leaf.is_buffer and not variables)
        allowed = [n for n, source in enumerate(sources) if wishes[path].allows(trained, source)]
        found = {n: fit for n in allowed if (fit := _fit(path, leaf, sources[n], role, layouts))}
        usual = {n: fit for n, fit in found.items() if is_usual(fit[0], role(path, sources[n].weight.role))}
        fits |= {(path, n): fit for n, fit in (usual or found).items()}
    by_name = {(path, n): _score_names(labels[path], sources[n]) for path, n in fits}
    weigh = (0.01, 1000.0) if by_order else (1.0, 0.02)
    scores = {
        (path, n): weigh[0] * by_name[path, n]
        + _score_sizes(labels[path], sources[n])
        - weigh[1] * (labels[path].order - sources[n].label.order) ** 2
        for path, n in fits
    }
    needed = {path for path, _ in fits if not leaves[path].is_buffer}
    chosen, unsure = _assign(scores, by_name, labels, sources, needed)
    order = {weight.name: rank for rank, weight in enumerate(weights)}
    guessed = dict.fromkeys(unsure, "by size and order alone")
    entries = {
        path: Entry(sources[n].made, fits[path, n], guessed=guessed.get(path, ""))
        for path, n in sorted(chosen.items(), key=lambda item: (order[sources[item[1]].name], item[1]))
    }
    for path in [path for path, _ in fits if path not in entries]:
        if shared or wishes[path].is_said:
            _, n = max((scores[path, n], n) for other, n in fits if other == path)
            entries[path] = Entry(sources[n].made, fits[path, n])
    for path, made in _with_sums(entries, count_uses(weights, entries)).items():
        if not wishes[path].is_said:
            entries[path] = replace(entries[path], source=made, guessed="")
    kept = tuple(p for p, leaf in leaves.items() if p not in entries and (leaf.is_buffer or wishes[p].keeps))
    found_map = WeightMap(leaves, entries, count_uses(weights, entries), kept, integers=integers or {})
    if left := {path: leaf.shape for path, leaf in leaves.items() if path not in entries and path not in kept}:
        raise LeftOverError(_complain(left, found_map, any(w.role == "convolution" for w in weights)), found_map)
    return found_map


def _score_names(leaf: Label, source: Source) -> float:
    """Say how well the two fit by their names; the second name of a tied weight comes after all other weights."""
    roles = {leaf.role, source.label.role}
    role = 0.0 if "" in roles else 0.5 if len(roles) == 1 else -0.5
    return likeness(leaf.words, source.label.words) + role - 1.0 * (not source.weight.is_first)


def _score_sizes(leaf: Label, source: Source) -> float:
    """Say how well the two fit by the sizes of their modules; whole weights and parameters go first."""
    pieces = source.made.pieces
    same_modules = sum(size in source.label.sizes for size in leaf.sizes) / max(1, len(leaf.sizes))
    is_whole = len(pieces) == pieces[0].count == 1
    return same_modules - 0.02 * (not is_whole) - 1.0 * source.weight.is_buffer


_Row = TypeVar("_Row")
_Column = TypeVar("_Column")


def _best(scores: Mapping[tuple[_Row, _Column], float]) -> dict[_Row, _Column]:
    """Give each row a column of its own, so that the sum of the scores is largest."""
    rows, columns = list(dict.fromkeys(row for row, _ in scores)), list(dict.fromkeys(column for _, column in scores))
    matrix = np.full((len(rows), len(columns)), -1e6)
    for r, row in enumerate(rows):
        matrix[r] = [scores.get((row, column), -1e6) for column in columns]
    pairs = zip(*linear_sum_assignment(matrix, maximize=True), strict=True)
    return {rows[r]: columns[c] for r, c in pairs if (rows[r], columns[c]) in scores}


def _guessed(chosen: Mapping[_Row, _Column], by_name: Mapping[tuple[_Row, _Column], float]) -> set[_Row]:
    """Return the rows whose names fit no worse if they change columns with another one, or take a free one."""
    owner, guessed = {column: row for row, column in chosen.items()}, set()
    for (row, column), likeness_there in by_name.items():
        mine, other = chosen.get(row, column), owner.get(column)
        gain = likeness_there - by_name[row, mine]
        if other is not None:
            gain += by_name.get((other, mine), -np.inf) - by_name[other, column]
        if mine != column and gain > -1e-9:
            guessed.add(row)
    return guessed


def _assign(
    scores: Mapping[_Pair, float],
    by_name: Mapping[_Pair, float],
    in_jax: Mapping[str, Label],
    sources: Sequence[Source],
    needed: set[str],
) -> tuple[dict[str, int], set[str]]:
    """Give each JAX weight a source of its own: first module by module, then those that are left.

    A JAX module of several weights does not get one of a module of PyTorch's that another one has.

    Args:
        by_name: the part of the scores that names give.
        in_jax: what is known of the JAX weights.
        needed: the JAX weights without which a module is not found.

    Returns:
        The number of each weight's source, and the weights for which names did not decide.
    """
    found = defaultdict[tuple[Unit, Unit], dict[str, int]](dict)
    for path, n in sorted(scores, key=scores.__getitem__, reverse=True):
        inside = found[in_jax[path].unit, sources[n].label.unit]
        roles = {in_jax[path].role, sources[n].label.role} - {""}
        if len(roles) < 2 and path not in inside and n not in inside.values():
            inside[path] = n
    held = defaultdict[Unit, set[str]](set)
    for path in needed:
        held[in_jax[path].unit].add(path)
    whole = {pair: inside for pair, inside in found.items() if held[pair[0]] <= inside.keys()}

    def by_module(values: Mapping[_Pair, float]) -> dict[tuple[Unit, Unit], float]:
        return {pair: sum(values[item] for item in inside.items()) for pair, inside in whole.items()}

    modules = _best(by_module(scores))
    chosen = {path: n for pair in modules.items() for path, n in whole[pair].items()}
    owner, used = {theirs: ours for ours, theirs in modules.items()}, set(chosen.values())
    left = {}
    for (path, n), score in scores.items():
        ours, theirs = in_jax[path].unit, sources[n].label.unit
        may_be_apart = len(held[ours]) < 2 or sources[n].weight.is_buffer  # a port may hold statistics elsewhere
        if path not in chosen and n not in used and (may_be_apart or owner.get(theirs, ours) == ours):
            left[path, n] = score
    rest = _best(left)
    guessed = {path for unit in _guessed(modules, by_module(by_name)) for path in whole[unit, modules[unit]]}
    return chosen | rest, guessed | _guessed(rest, {pair: by_name[pair] for pair in left})


def _fit(path: str, leaf: Leaf, source: Source, role: Role, layouts: Layouts) -> tuple[Layout, ...]:
    """Find the layouts that make the leaf of the source; none if the two cannot belong together."""
    stack = (len(source.made.parts),) if source.made.stacked else ()
    if leaf.shape[: len(stack)] != stack or math.prod(leaf.shape) != math.prod((*stack, *source.shape)):
        return ()
    wish = wanted_layout(layouts, path, source.name, path.rpartition(".")[0], source.name.rpartition(".")[0])
    return find_layouts(source.shape, leaf.shape[len(stack) :], role(path, source.weight.role), wish)


def _with_sums(entries: Mapping[str, Entry], uses: Mapping[str, Uses]) -> dict[str, Joined]:
    """Add the bias of a recurrent layer that is left over to the other one, where the two are always added.

    That is in every gate of an LSTM and of a plain recurrent layer, and in the gates r and z of a GRU. A port that has
    one bias for both holds their sum.
    """
    sums: dict[str, Joined] = {}
    for path, entry in entries.items():
        if not isinstance(entry.source, Joined) or len(entry.source.pieces) > 1:
            continue
        (piece,) = entry.source.pieces
        other = re.sub("bias_ih|bias_hh", lambda m: "bias_hh" if m[0] == "bias_ih" else "bias_ih", piece.name)
        recurrent = uses.get(re.sub("bias_.h", "weight_hh", piece.name))
        if other == piece.name or other not in uses or recurrent is None or len(recurrent.shape) != 2:
            continue
        gates = recurrent.shape[0] // recurrent.shape[1]
        if gates not in (1, 3, 4) or piece.count not in (1, gates):
            continue
        free = [not Piece(other, index, gates).of({other: uses[other].counts}).any() for index in range(gates)]
        mine = range(gates) if piece.count == 1 else [piece.index]
        if any(free) and not (gates == 3 and free[2]):
            parts = (tuple(Piece(n, index, gates) for n in (piece.name, other)[: 1 + free[index]]) for index in mine)
            sums[path] = Joined(((piece, replace(piece, name=other)),) if all(free) else tuple(parts))
    return sums


def _complain(left: Mapping[str, Shape], found: WeightMap, convolutions: bool) -> str:
    in_torch = found.left_in_torch
    unused = {name: x.unused for name, x in in_torch.items()}
    used = {name: math.prod(x.shape) for name, x in found.uses.items()}
    example, target = next(iter(left)), None
    for path, shape in left.items():
        may_be_tied = len(shape) > 1 and role_of(path) != "bias"
        sizes = {**unused, **(used if may_be_tied else {})}
        if alike := [name for name, size in sizes.items() if size == math.prod(shape)]:
            example, target = path, alike[0]
            break
    lines = [f"{len(left)} of JAX's weights have no counterpart in PyTorch. Left over are:"]
    lines += [f"  JAX      {path} {list(shape)}" for path, shape in left.items()]
    lines += [f"  PyTorch  {name} {list(unused.shape)}" for name, unused in in_torch.items()] or ["  PyTorch  nothing"]
    if target is None and in_torch:
        lines.append("None of PyTorch's has as many numbers as JAX's: were both made with the same sizes and options?")
    lines += [
        f"Say which belong together: names={{{example!r}: {target!r}}}. Parts of names are enough; 'h_{{i}}': "
        "'layers.{i}' stands for all i, 'c_attn[0/3]' for the first third, ['q', 'k'] for both concatenated, 'b_ih + "
        "b_hh' for their sum, None for JAX's own value. Or give the function that loads your weights: load=",
    ]
    if target is not None:
        lines.append(
            f"For another layout: layout={{{example!r}: 'transposed'}}, 'NHWC', or the order of PyTorch's axes."
        )
    if convolutions:
        lines.append(
            "If the channels of JAX's images are last: layout={'*': 'NHWC'} or the names of inputs and results."
        )
    return "\n".join(lines)

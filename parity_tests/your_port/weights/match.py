"""Find which weight of PyTorch belongs to which of JAX, by name, shape and layout.

Names are compared word by word (`layers_0.attn.query` and `layers.0.self_attn.q_proj`), with the words that the two
frameworks use for the same thing; the order of definition decides between equals. What the user says about names and
layouts comes first. A JAX weight may be a part of one of PyTorch's (the gates of a GRU, the query of a packed
projection), or several of them stacked (layers under a scan).
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from parity_tests.your_port.weights.layouts import Layout, Layouts, Shape, find_layouts, wanted_layout
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Entry, Leaf, Piece, Source, WeightMap
from parity_tests.your_port.weights.words import modules_of, ranked_words, role_of, similarity, without_role, words_of

Names = Mapping[str, str | Sequence[str] | None]


def match_weights(
    weights: Sequence[Weight],
    leaves: Mapping[str, Leaf],
    kind: str,
    names: Names | None = None,
    layouts: Layouts | None = None,
) -> WeightMap:
    """Match every weight of the JAX side with one of PyTorch's.

    Raises:
        ValueError: weights of the JAX side are left over; the message lists what is left on both sides.
    """
    names, layouts = names or {}, layouts or {}
    wishes = {path: _wish(path, leaves, names) for path in leaves}
    _check_names(names, leaves)
    whole = list(_whole(weights))
    sources = [*_sources(whole), *_asked_for(whole, wishes)]
    kept = [path for path, wish in wishes.items() if wish.keeps]
    open_leaves = [path for path in leaves if path not in kept]
    fits: dict[tuple[str, int], tuple[Layout, ...]] = {}
    scores: dict[tuple[str, int], float] = {}
    words = ranked_words(wish.path for wish in wishes.values())
    for row, path in enumerate(open_leaves):
        for column, source in enumerate(sources):
            found = _fit(path, leaves[path], source, wishes[path], kind, layouts)
            if found:
                position = row / max(1, len(open_leaves) - 1)
                fits[path, column] = found
                alike = _likeness(wishes[path].path, words[wishes[path].path], source)
                scores[path, column] = alike + _score(path, leaves[path], source, position)
    rivals = Counter(path for path, _ in fits)
    chosen = _assign(scores, open_leaves, len(sources))
    chosen = _assign(_together(scores, chosen, rivals, sources), open_leaves, len(sources))
    entries = {}
    for path, column in chosen.items():
        alike = _likeness(wishes[path].path, words[wishes[path].path], sources[column])
        guess = rivals[path] > 1 and alike < 0.3
        entries[path] = Entry(sources[column], fits[path, column], is_guess=guess)
    entries = {path: entries[path] for path in open_leaves if path in entries}
    left = [path for path in open_leaves if path not in entries]
    kept += [path for path in left if leaves[path].is_buffer]
    left = [path for path in left if not leaves[path].is_buffer]
    left_in_torch = _unused(weights, entries)
    if left:
        convolutions = any(source.role == "convolution" for source in sources)
        raise ValueError(_complain({path: leaves[path].shape for path in left}, left_in_torch, convolutions))
    return WeightMap(leaves, entries, left_in_torch, tuple(kept))


Scores = Mapping[tuple[str, int], float]
"""(JAX name, number of the source) -> how well they fit; those that cannot belong together are not there."""


def _assign(scores: Scores, leaves: Sequence[str], sources: int) -> dict[str, int]:
    """Give each leaf a source of its own, so that the sum of the scores is largest."""
    matrix, rows = np.full((len(leaves), sources), -1e6), {path: row for row, path in enumerate(leaves)}
    for (path, column), score in scores.items():
        matrix[rows[path], column] = score
    pairs = zip(*linear_sum_assignment(matrix, maximize=True), strict=True)
    return {leaves[row]: int(column) for row, column in pairs if (leaves[row], column) in scores}


def _together(
    scores: Scores, chosen: Mapping[str, int], rivals: Mapping[str, int], sources: Sequence[Source]
) -> Scores:
    """Raise the scores where the weights of a JAX module come from one module of PyTorch: a bias follows its kernel."""
    votes: dict[str, dict[str, float]] = {}
    for path, column in chosen.items():
        for jax in modules_of(path):
            for torch_module in modules_of(sources[column].pieces[0].name):
                counts = votes.setdefault(jax, defaultdict(float))
                counts[torch_module] += 1 / rivals[path]
    winners = {}
    held = Counter(jax for path in chosen for jax in modules_of(path))
    for jax, counts in votes.items():
        if held[jax] == 1:
            continue  # it would vote for itself
        most = max(counts.values())
        winners[jax] = max((name for name in counts if counts[name] > most / 2), key=len)

    def share(path: str, column: int) -> float:
        found = [winners.get(jax) in modules_of(sources[column].pieces[0].name) for jax in modules_of(path)]
        return sum(found) / max(1, len(found))

    return {(path, column): score + 0.5 * share(path, column) for (path, column), score in scores.items()}


# What the user says


@dataclass(frozen=True)
class _Wish:
    """What the user says about the name of a JAX weight."""

    path: str
    """With the user's words in the place of JAX's."""
    targets: tuple[str, ...] = ()
    """Parts that the name in PyTorch must have."""
    origins: tuple[tuple[str, ...], ...] = ()
    """Parts or several of PyTorch's weights, as the user wrote them."""
    keeps: bool = False


def _pattern(name: str) -> re.Pattern[str]:
    """Compile `h_{i}`, which stands for whole components of a path."""
    inner = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^.]+?)", re.escape(name.replace("/", ".")))
    return re.compile(rf"(?:^|(?<=\.)){inner}(?=\.|$)")


def _wish(path: str, leaves: Mapping[str, Leaf], names: Names) -> _Wish:
    wish = _Wish(path)
    for name, target in names.items():
        found = _pattern(name).search(path)
        if found is None:
            continue
        if target is None:
            return replace(wish, keeps=True)
        texts = [_filled(text, found) for text in ([target] if isinstance(target, str) else target)]
        special = len(texts) > 1 or "[" in texts[0] or "+" in texts[0]
        words = re.sub(r"\[.*?\]| *\+.*|\.?\{.*?\}", "", texts[0])
        changed = _pattern(found.group()).sub(words, wish.path, count=1)
        if special:
            wish = replace(wish, path=changed, origins=(*wish.origins, tuple(texts)))
        else:
            wish = replace(wish, path=changed, targets=(*wish.targets, words))
    return wish


def _filled(text: str, found: re.Match[str]) -> str:
    for name, value in found.groupdict().items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _check_names(names: Names, leaves: Mapping[str, Leaf]) -> None:
    for name in names:
        if not any(_pattern(name).search(path) for path in leaves):
            raise ValueError(
                f"names: {name!r} is no part of a JAX name. JAX's name stands on the left, PyTorch's on the right; JAX "
                f"has {', '.join(leaves)}"
            )


# What PyTorch has


PARTS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("in_proj_", 3, ("query", "key", "value")),
    ("_ih", 3, ("ir", "iz", "in")),
    ("_hh", 3, ("hr", "hz", "hn")),
    ("_ih", 4, ("ii", "if", "ig", "io")),
    ("_hh", 4, ("hi", "hf", "hg", "ho")),
)
"""Weights that PyTorch packs: a part of the name, how many there are, and the words for each."""


def _sources(whole: Sequence[Source]) -> Iterator[Source]:
    """Yield every weight of PyTorch, its parts if it is packed, and layers stacked."""
    yield from whole
    for source in whole:
        (piece,) = source.pieces
        for text, count, labels in PARTS:
            if text in piece.name and source.shape[0] % count == 0:
                shape = (source.shape[0] // count, *source.shape[1:])
                for index, label in enumerate(labels):
                    path, _, leaf = piece.name.rpartition(".")
                    layer = re.findall(r"\d+", leaf)
                    words = (*words_of(path), *layer, label, "bias" if "bias" in leaf else "weight")
                    part = replace(piece, index=index, count=count)
                    yield replace(source, pieces=(part,), shape=shape, words=(words, words))
    yield from _stacks(whole)


def _whole(weights: Sequence[Weight]) -> Iterator[Source]:
    ranked = ranked_words(weight.name for weight in weights)
    for number, w in enumerate(weights):
        words = (sum(ranked[w.name], ()), w.class_words)
        position = number / max(1, len(weights) - 1)
        yield Source((Piece(w.first),), w.shape, words, position, w.role, is_buffer=w.is_buffer)


def _stacks(whole: Sequence[Source]) -> Iterator[Source]:
    """Stack the weights whose names differ in one number."""
    groups: dict[tuple[str, int], dict[int, Source]] = {}
    for source in whole:
        parts = source.pieces[0].name.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                key = ".".join([*parts[:place], "*", *parts[place + 1 :]])
                groups.setdefault((key, place), {})[int(part)] = source
    for (key, _), layers in groups.items():
        ordered = [layers[index] for index in sorted(layers)]
        if len(ordered) > 1 and len({source.shape for source in ordered}) == 1 and not ordered[0].is_buffer:
            pieces = tuple(source.pieces[0] for source in ordered)
            words = (words_of(key), words_of(key))
            yield replace(ordered[0], pieces=pieces, words=words, join="stacked")


def _asked_for(sources: Sequence[Source], wishes: Mapping[str, _Wish]) -> Iterator[Source]:
    """Make what the user asks for: `c_attn[0/3]` is the first third, several names are concatenated or stacked."""
    whole = {source.pieces[0].name: source for source in sources}
    for origin in dict.fromkeys(origin for wish in wishes.values() for origin in wish.origins):
        summed = "+" in origin[0]
        texts = [text.strip() for text in origin[0].split("+")] if summed else origin
        first = _without_part(texts[0])
        pattern = _pattern(first)
        for name, source in whole.items():
            if pattern.search(name) is None:
                continue
            pieces = [_piece(text, pattern.sub(_without_part(text), name, count=1), whole) for text in texts]
            if all(piece is not None for piece in pieces):
                shapes = [_shape_of(piece, whole) for piece in pieces]
                shape = shapes[0] if summed else (sum(shape[0] for shape in shapes), *shapes[0][1:])
                join: Any = "summed" if summed else "concatenated"
                yield replace(source, pieces=tuple(pieces), shape=shape, join=join, origin=origin)


def _without_part(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text)


def _piece(text: str, name: str, whole: Mapping[str, Source]) -> Any:
    if name not in whole:
        return None
    found = re.search(r"\[(\d+)/(\d+)\]", text)
    if found is None:
        return Piece(name)
    index, count, shape = int(found[1]), int(found[2]), whole[name].shape
    axis = 0 if shape[0] % count == 0 and (len(shape) == 1 or shape[0] >= shape[-1]) else len(shape) - 1
    return Piece(name, index, count, axis) if shape[axis] % count == 0 else None


def _shape_of(piece: Piece, whole: Mapping[str, Source]) -> Shape:
    shape = list(whole[piece.name].shape)
    shape[piece.axis] //= piece.count
    return tuple(shape)


# How well they fit


def _fit(path: str, leaf: Leaf, source: Source, wish: _Wish, kind: str, layouts: Layouts) -> tuple[Layout, ...]:
    """Find the layouts that make the leaf of the source; none if the two cannot belong together."""
    if leaf.is_buffer and not source.is_buffer:
        return ()
    if (source.origin or wish.origins) and source.origin not in wish.origins:
        return ()
    names = [piece.name for piece in source.pieces]
    if any(not _pattern(target).search(names[0]) for target in wish.targets if target):
        return ()
    shape = leaf.shape
    if source.join == "stacked":
        if not shape or shape[0] != len(source.pieces):
            return ()
        shape = shape[1:]
    elif math.prod(shape) != math.prod(source.shape):
        return ()
    wanted = wanted_layout(layouts, path, names[0], path.rpartition(".")[0], names[0].rpartition(".")[0])
    role = _role_in(path, source, kind)
    found = find_layouts(source.shape, shape, role=role, wish=wanted)
    return found[:1] if role in ("linear", "convolution", "straight") else found


def _role_in(path: str, source: Source, kind: str) -> str:
    leaf = path.rpartition(".")[2]
    if kind == "identity" or leaf == "embedding" or (kind == "equinox" and source.role != "transposed convolution"):
        return "straight"
    if source.role in ("linear", "convolution") and "kernel" not in leaf:
        return "unknown"
    return source.role


def _score(path: str, leaf: Leaf, source: Source, position: float) -> float:
    """All but the names: the role, a piece or a whole, a parameter or a buffer, and the order of definition."""
    roles = {role_of(words_of(path)), role_of(source.words[0])}
    role = 0.0 if None in roles else 0.5 if len(roles) == 1 else -0.5
    virtual = 0.02 * (len(source.pieces) > 1 or source.pieces[0].count > 1)
    buffer = 1.0 * (source.is_buffer and not leaf.is_buffer)
    return role - virtual - buffer - 0.05 * abs(position - source.position)


def _likeness(path: str, ranked: tuple[tuple[str, ...], ...], source: Source) -> float:
    words = without_role(sum(ranked, ()))
    by_name, by_class = (similarity(words, without_role(way)) for way in source.words)
    components = set(path.split(".")), set(source.pieces[0].name.split("."))
    same = len(components[0] & components[1]) / max(map(len, components))
    return max(by_name, 0.9 * by_class) + 0.1 * same


def _unused(weights: Sequence[Weight], entries: Mapping[str, Entry]) -> dict[Piece, Shape]:
    """Find the parameters and running statistics, or parts of them, that no entry takes."""
    used = {piece for entry in entries.values() for piece in entry.source.pieces}
    counts = {piece.name: piece.count for piece in used}
    left: dict[Piece, Shape] = {}
    for w in (w for w in weights if w.first == w.name and (not w.is_buffer or "running_" in w.name)):
        axis = next((piece.axis for piece in used if piece.name == w.name), 0)
        pieces = [Piece(w.name, index, counts.get(w.name, 1), axis) for index in range(counts.get(w.name, 1))]
        missing = [piece for piece in pieces if piece not in used]
        left |= {Piece(w.name): w.shape} if len(missing) == len(pieces) else dict.fromkeys(missing, w.shape)
    return left


def _complain(left: Mapping[str, Shape], left_in_torch: Mapping[Piece, Shape], convolutions: bool) -> str:
    example, target = next(iter(left)), str(next(iter(left_in_torch), "its name in PyTorch"))
    lines = [f"{len(left)} of JAX's weights have no counterpart in PyTorch. Left over are:"]
    lines += [f"  JAX      {path} {list(shape)}" for path, shape in left.items()]
    lines += [f"  PyTorch  {piece} {list(shape)}" for piece, shape in left_in_torch.items()] or ["  PyTorch  nothing"]
    lines += [
        f"Say which belong together: names={{{example!r}: {target!r}}}. Parts of names are enough; 'h_{{i}}': "
        "'layers.{i}' stands for all i, 'c_attn[0/3]' for the first third, ['q', 'k'] for both concatenated, 'b_ih + "
        "b_hh' for their sum, None for JAX's own value.",
        f"For another layout: layout={{{example!r}: 'transposed'}}, 'NHWC', or the order of PyTorch's axes.",
    ]
    if convolutions:
        lines.append(
            "If the channels of JAX's images are last: layout={'*': 'NHWC'} or the names of inputs and results."
        )
    return "\n".join(lines)

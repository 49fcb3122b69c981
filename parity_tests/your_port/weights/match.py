"""Find which weight of PyTorch belongs to which of JAX, by name, shape and layout.

Names are compared word by word (`layers_0.attn.query` and `layers.0.self_attn.q_proj`), with the words that the two
frameworks use for the same thing; the order of definition decides between equals. What the user says about names and
layouts comes first. A JAX weight may be a part of one of PyTorch's (the gates of a GRU, the query of a packed
projection), several of them stacked (layers under a scan), or the sum of a recurrent layer's two biases.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from parity_tests.your_port.weights.layouts import Layout, Layouts, Shape, find_layouts, wanted_layout
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Entry, Joined, Leaf, Piece, WeightMap, count_uses
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
    wishes = {path: _wish(path, names) if names else _Wish(path) for path in leaves}
    for name in names:
        if not any(_pattern(name).search(path) for path in leaves):
            raise ValueError(
                f"names: {name!r} is no part of a JAX name. JAX's name stands on the left, PyTorch's on the right; JAX "
                f"has {', '.join(leaves)}"
            )
    whole = list(_whole(weights))
    sources = [*whole, *_parts(whole), *_stacks(whole), *(_asked_for(whole, wishes) if names else ())]
    paths = [path for path, wish in wishes.items() if not wish.keeps]
    words = ranked_words(wish.path for wish in wishes.values())
    fits: dict[tuple[str, int], tuple[Layout, ...]] = {}
    likeness: dict[tuple[str, int], float] = {}
    scores: dict[tuple[str, int], float] = {}
    for row, path in enumerate(paths):
        for column, source in enumerate(sources):
            found = _fit(path, leaves[path], source, wishes[path], kind, layouts)
            if found:
                pair, position = (path, column), row / max(1, len(paths) - 1)
                fits[pair], likeness[pair] = found, _likeness(words[wishes[path].path], source)
                scores[pair] = likeness[pair] + _score(path, leaves[path], source, position)
    rivals = Counter(path for path, _ in fits)
    chosen = _assign(scores, paths, len(sources))
    chosen = _assign(_together(scores, chosen, rivals, sources), paths, len(sources))
    entries = {}
    for path, column in sorted(chosen.items(), key=lambda item: (sources[item[1]].position, item[1])):
        guess = "shape and order alone" if rivals[path] > 1 and likeness[path, column] < 0.3 else ""
        entries[path] = Entry(sources[column].made, fits[path, column], guessed=guess)
    if any(len(entry.layouts) > 1 for entry in entries.values()):
        entries = _like_siblings(entries, {path: sources[column].role for path, column in chosen.items()})
    said = {path for path, wish in wishes.items() if wish.targets or wish.origins}
    sums = _with_sums(entries, count_uses(weights, entries))
    entries |= {path: replace(entries[path], source=source) for path, source in sums.items() if path not in said}
    better = {path: source.texts if len(source.parts) > 1 else source.texts[0] for path, source in sums.items()}
    better = {path: texts for path, texts in better.items() if path in said}
    kept = tuple(
        path for path, leaf in leaves.items() if path not in entries and (leaf.is_buffer or wishes[path].keeps)
    )
    found_map = WeightMap(leaves, entries, count_uses(weights, entries), kept, f"names={better}" if better else "")
    left = {path: leaf.shape for path, leaf in leaves.items() if path not in entries and path not in kept}
    if left:
        convolutions = any(source.role == "convolution" for source in sources)
        raise ValueError(_complain(left, found_map, convolutions))
    return found_map


Scores = Mapping[tuple[str, int], float]
"""(JAX name, number of the source) -> how well they fit; those that cannot belong together are not there."""


def _assign(scores: Scores, leaves: Sequence[str], sources: int) -> dict[str, int]:
    """Give each leaf a source of its own, so that the sum of the scores is largest."""
    matrix, rows = np.full((len(leaves), sources), -1e6), {path: row for row, path in enumerate(leaves)}
    for (path, column), score in scores.items():
        matrix[rows[path], column] = score
    pairs = zip(*linear_sum_assignment(matrix, maximize=True), strict=True)
    return {leaves[row]: int(column) for row, column in pairs if (leaves[row], column) in scores}


# What PyTorch has


@dataclass(frozen=True)
class _Source:
    """What a JAX weight may be made of."""

    made: Joined
    shape: Shape
    """Of all together; of each one where they are stacked."""
    words: tuple[tuple[str, ...], ...]
    """The words of its name, and those of the classes of its modules."""
    position: float
    """Between 0 and 1, in the order of definition."""
    role: str
    is_buffer: bool
    origin: tuple[str, ...] = ()
    """What the user wrote to ask for it."""

    @property
    def name(self) -> str:
        return self.made.pieces[0].name


PARTS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("in_proj_", 3, ("query", "key", "value")),
    ("_ih", 3, ("ir", "iz", "in")),
    ("_hh", 3, ("hr", "hz", "hn")),
    ("_ih", 4, ("ii", "if", "ig", "io")),
    ("_hh", 4, ("hi", "hf", "hg", "ho")),
)
"""Weights that PyTorch packs: a part of the name, how many there are, and the words for each."""


def _whole(weights: Sequence[Weight]) -> Iterator[_Source]:
    ranked = ranked_words(weight.name for weight in weights)
    for number, w in enumerate(weights):
        words, position = (sum(ranked[w.name], ()), w.class_words), number / max(1, len(weights) - 1)
        yield _Source(Joined(((Piece(w.first),),)), w.shape, words, position, w.role, w.is_buffer)


def _parts(whole: Sequence[_Source]) -> Iterator[_Source]:
    """Yield the parts of the weights that are packed."""
    for source in whole:
        for text, count, labels in PARTS:
            if text in source.name and source.shape[0] % count == 0:
                shape = (source.shape[0] // count, *source.shape[1:])
                path, _, leaf = source.name.rpartition(".")
                for index, label in enumerate(labels):
                    layer = re.findall(r"\d+", leaf)
                    words = (*words_of(path), *layer, label, "bias" if "bias" in leaf else "weight")
                    made = Joined(((Piece(source.name, index, count),),))
                    yield replace(source, made=made, shape=shape, words=(words, words))


def _stacks(whole: Sequence[_Source]) -> Iterator[_Source]:
    """Stack the weights whose names differ in one number."""
    groups: dict[tuple[str, int], dict[int, _Source]] = {}
    for source in whole:
        parts = source.name.split(".")
        for place, part in enumerate(parts):
            if part.isdigit():
                key = ".".join([*parts[:place], "*", *parts[place + 1 :]])
                groups.setdefault((key, place), {})[int(part)] = source
    for (key, _), layers in groups.items():
        ordered = [layers[index] for index in sorted(layers)]
        if len(ordered) > 1 and len({source.shape for source in ordered}) == 1 and not ordered[0].is_buffer:
            made = Joined(tuple(part for source in ordered for part in source.made.parts), stacked=True)
            yield replace(ordered[0], made=made, words=(words_of(key), words_of(key)))


def _with_sums(entries: Mapping[str, Entry], uses: Mapping[str, np.ndarray]) -> dict[str, Joined]:
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
        recurrent = uses.get(re.sub("bias_.h", "weight_hh", piece.name), np.zeros(0))
        if other == piece.name or other not in uses or recurrent.ndim != 2:
            continue
        gates = recurrent.shape[0] // recurrent.shape[1]
        if gates not in (1, 3, 4) or piece.count not in (1, gates):
            continue
        free = [not Piece(other, index, gates).of(uses).any() for index in range(gates)]
        mine = range(gates) if piece.count == 1 else [piece.index]
        if any(free) and not (gates == 3 and free[2]):
            parts = (tuple(Piece(n, index, gates) for n in (piece.name, other)[: 1 + free[index]]) for index in mine)
            sums[path] = Joined(((piece, replace(piece, name=other)),) if all(free) else tuple(parts))
    return sums


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


def _wish(path: str, names: Names) -> _Wish:
    wish = _Wish(path)
    for name, target in names.items():
        found = _pattern(name).search(path)
        if found is None:
            continue
        if target is None:
            return replace(wish, keeps=True)
        texts = [target] if isinstance(target, str) else list(target)
        for key, value in found.groupdict().items():
            texts = [text.replace(f"{{{key}}}", value) for text in texts]
        words = re.sub(r"\[.*?\]| *\+.*|\.?\{.*?\}", "", texts[0])
        wish = replace(wish, path=_pattern(found.group()).sub(words, wish.path, count=1))
        if len(texts) > 1 or "[" in texts[0] or "+" in texts[0]:
            wish = replace(wish, origins=(*wish.origins, tuple(texts)))
        else:
            wish = replace(wish, targets=(*wish.targets, words))
    return wish


def _asked_for(sources: Sequence[_Source], wishes: Mapping[str, _Wish]) -> Iterator[_Source]:
    """Make what the user asks for: `c_attn[0/3]` is the first third, several are concatenated, a + is a sum."""
    whole = {source.name: source for source in sources}
    for origin in dict.fromkeys(origin for wish in wishes.values() for origin in wish.origins):
        texts = [[term.strip() for term in text.split("+")] for text in origin]
        pattern = _pattern(_bare(texts[0][0]))
        for name in (name for name in whole if pattern.search(name)):
            parts = [[_piece(term, pattern.sub(_bare(term), name, count=1), whole) for term in part] for part in texts]
            pieces = [tuple(piece for piece in part if piece is not None) for part in parts]
            if [len(part) for part in pieces] == [len(part) for part in texts]:
                shapes = [
                    piece.of({piece.name: np.broadcast_to(0, whole[piece.name].shape)}).shape for piece, *_ in pieces
                ]
                shape = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
                yield replace(whole[name], made=Joined(tuple(pieces)), shape=shape, origin=origin)


def _bare(text: str) -> str:
    return re.sub(r"\[.*?\]", "", text)


def _piece(text: str, name: str, whole: Mapping[str, _Source]) -> Piece | None:
    if name not in whole:
        return None
    found = re.search(r"\[(\d+)/(\d+)\]", text)
    if found is None:
        return Piece(name)
    index, count, shape = int(found[1]), int(found[2]), whole[name].shape
    axis = 0 if shape[0] % count == 0 and (len(shape) == 1 or shape[0] >= shape[-1]) else len(shape) - 1
    return Piece(name, index, count, axis) if shape[axis] % count == 0 else None


# How well they fit


def _fit(path: str, leaf: Leaf, source: _Source, wish: _Wish, kind: str, layouts: Layouts) -> tuple[Layout, ...]:
    """Find the layouts that make the leaf of the source; none if the two cannot belong together."""
    if leaf.is_buffer and not source.is_buffer and not wish.targets + wish.origins:
        return ()
    if (source.origin or wish.origins) and source.origin not in wish.origins:
        return ()
    if any(not _pattern(target).search(source.name) for target in wish.targets if target):
        return ()
    shape = leaf.shape
    if source.made.stacked:
        if not shape or shape[0] != len(source.made.parts):
            return ()
        shape = shape[1:]
    elif math.prod(shape) != math.prod(source.shape):
        return ()
    wanted = wanted_layout(layouts, path, source.name, path.rpartition(".")[0], source.name.rpartition(".")[0])
    role = _role_in(path, source, kind)
    found = find_layouts(source.shape, shape, role=role, wish=wanted)
    return found[:1] if role in ("linear", "convolution", "straight") else found


def _role_in(path: str, source: _Source, kind: str) -> str:
    leaf = path.rpartition(".")[2]
    if kind == "identity" or leaf == "embedding" or (kind == "equinox" and source.role != "transposed convolution"):
        return "straight"
    if source.role in ("linear", "convolution") and "kernel" not in leaf:
        return "unknown"
    return source.role


def _like_siblings(entries: dict[str, Entry], roles: Mapping[str, str]) -> dict[str, Entry]:
    """Let square kernels first go the way of the kernels beside them that are not square."""
    ways: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    kinds = {path: (path.rpartition(".")[2], roles[path]) for path in entries}
    for path, entry in entries.items():
        if len(entry.layouts) == 1:
            ways[kinds[path]][entry.layouts[0].words] += 1
    return {
        path: replace(entry, layouts=tuple(sorted(entry.layouts, key=lambda x: -ways[kinds[path]][x.words])))
        for path, entry in entries.items()
    }


def _score(path: str, leaf: Leaf, source: _Source, position: float) -> float:
    """All but the names: the role, a piece or a whole, a parameter or a buffer, and the order of definition."""
    roles = {role_of(words_of(path)), role_of(source.words[0])}
    role = 0.0 if None in roles else 0.5 if len(roles) == 1 else -0.5
    pieces = source.made.pieces
    virtual = 0.02 * (len(pieces) > 1 or pieces[0].count > 1)
    buffer = 1.0 * (source.is_buffer and not leaf.is_buffer)
    return role - virtual - buffer - 0.05 * abs(position - source.position)


def _likeness(ranked: tuple[tuple[str, ...], ...], source: _Source) -> float:
    words = without_role(sum(ranked, ()))
    by_name, by_class = (similarity(words, without_role(way)) for way in source.words)
    return max(by_name, 0.9 * by_class)


def _together(
    scores: Scores, chosen: Mapping[str, int], rivals: Mapping[str, int], sources: Sequence[_Source]
) -> Scores:
    """Raise the scores where the weights of a JAX module come from one module of PyTorch: a bias follows its kernel."""
    votes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path, column in chosen.items():
        for jax in modules_of(path):
            for torch_module in modules_of(sources[column].name):
                votes[jax][torch_module] += 1 / rivals[path]
    held = Counter(jax for path in chosen for jax in modules_of(path))
    winners = {}
    for jax, counts in votes.items():
        if held[jax] > 1:  # else it would vote for itself
            most = max(counts.values())
            winners[jax] = max((name for name in counts if counts[name] > most / 2), key=len)

    raised = {}
    for (path, column), score in scores.items():
        modules, source = modules_of(path), modules_of(sources[column].name)
        raised[path, column] = score + 0.5 * sum(winners.get(jax) in source for jax in modules) / max(1, len(modules))
    return raised


def _complain(left: Mapping[str, Shape], found: WeightMap, convolutions: bool) -> str:
    in_torch = found.left_in_torch
    example, target = next(iter(left)), next(iter(in_torch), "its name in PyTorch")
    lines = [f"{len(left)} of JAX's weights have no counterpart in PyTorch. Left over are:"]
    lines += [f"  JAX      {path} {list(shape)}" for path, shape in left.items()]
    lines += [f"  PyTorch  {name} {list(unused.shape)}" for name, unused in in_torch.items()] or ["  PyTorch  nothing"]
    lines += [
        f"Say which belong together: names={{{example!r}: {target!r}}}. Parts of names are enough; 'h_{{i}}': "
        "'layers.{i}' stands for all i, 'c_attn[0/3]' for the first third, ['q', 'k'] for both concatenated, 'b_ih + "
        "b_hh' for their sum, None for JAX's own value. Or give the function that loads your weights: load=",
        f"For another layout: layout={{{example!r}: 'transposed'}}, 'NHWC', or the order of PyTorch's axes.",
    ]
    if convolutions:
        lines.append(
            "If the channels of JAX's images are last: layout={'*': 'NHWC'} or the names of inputs and results."
        )
    return "\n".join(lines)

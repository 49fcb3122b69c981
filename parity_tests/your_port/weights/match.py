"""Find which weight of PyTorch belongs to which of JAX, by name, shape and layout.

One score says how well two weights fit: how alike their names are, word by word, whether their modules hold as many
numbers, and their order. The weights are then assigned so that the sum of the scores is largest. What the user says
about names and layouts comes first. A JAX weight may be a part of one of PyTorch's (the gates of a GRU, the query of a
packed projection), several of them stacked (layers under a scan), or the sum of a recurrent layer's two biases.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from parity_tests.your_port.weights.layouts import Layout, Layouts, Role, Shape, find_layouts, wanted_layout
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Entry, Joined, Leaf, Piece, WeightMap, count_uses
from parity_tests.your_port.weights.words import likeness, modules_of, renumbered, role_of

Names = Mapping[str, str | Sequence[str] | None]


def match_weights(
    weights: Sequence[Weight],
    leaves: Mapping[str, Leaf],
    role: Role,
    names: Names | None = None,
    layouts: Layouts | None = None,
) -> WeightMap:
    """Match every weight of the JAX side with one of PyTorch's.

    Args:
        role: how the framework stores the weights of its layers.

    Raises:
        ValueError: weights of the JAX side are left over; the message lists what is left on both sides.
    """
    names, layouts = names or {}, layouts or {}
    for name in names:
        if not any(_pattern(name).search(path) for path in leaves):
            raise ValueError(
                f"names: {name!r} is no part of a JAX name. JAX's name stands on the left, PyTorch's on the right; JAX "
                f"has {', '.join(leaves)}"
            )
    wishes = {path: _wish(path, names) for path in leaves}
    labels = _labels(leaves, [wish.path for wish in wishes.values()])
    sources = list(_sources(weights))
    formulas = dict.fromkeys(formula for wish in wishes.values() for formula in wish.formulas)
    candidates: list[tuple[_Source, tuple[str, ...] | None]] = [(source, None) for source in sources]
    candidates += [(made, formula) for formula in formulas for made in _asked_for(formula, sources[: len(weights)])]
    fits: dict[tuple[str, int], tuple[Layout, ...]] = {}
    for path, leaf in leaves.items():
        for column, (source, formula) in enumerate(candidates):
            if wishes[path].allows(leaf, source, formula) and (found := _fit(path, leaf, source, role, layouts)):
                fits[path, column] = found
    scores = {(path, n): _score(labels[path], candidates[n][0], leaves[path].is_buffer) for path, n in fits}
    chosen = _assign(scores, list(leaves), len(candidates))
    rivals, order = Counter(path for path, _ in fits), [w.name for w in weights]
    entries = {}
    for path, column in sorted(chosen.items(), key=lambda item: (order.index(candidates[item[1]][0].name), item[1])):
        source = candidates[column][0]
        is_alike = rivals[path] == 1 or likeness(labels[path].words, source.label.words) >= 0.3
        entries[path] = Entry(source.made, fits[path, column], guessed="" if is_alike else "shape and order alone")
    entries = _like_siblings(entries)
    sums = _with_sums(entries, count_uses(weights, entries))
    hints = {path: made.texts for path, made in sums.items() if wishes[path].is_said}
    entries |= {path: replace(entries[path], source=made) for path, made in sums.items() if path not in hints}
    kept = tuple(p for p, leaf in leaves.items() if p not in entries and (leaf.is_buffer or wishes[p].keeps))
    found_map = WeightMap(leaves, entries, count_uses(weights, entries), kept, hints)
    if left := {path: leaf.shape for path, leaf in leaves.items() if path not in entries and path not in kept}:
        raise ValueError(_complain(left, found_map, any(w.role == "convolution" for w in weights)))
    return found_map


# What is known of a weight, on either side


@dataclass(frozen=True)
class _Label:
    """What the name and the place of a weight say."""

    words: str
    """Its name, with siblings numbered as Linen would."""
    role: str
    sizes: tuple[int, ...]
    """How many numbers each module holds that it is in, without biases, which one side may have or sum otherwise."""
    order: float
    """Its rank among the weights that hold as many numbers, from 0 to 1."""


def _labels(weights: Mapping[str, Leaf | Weight], spelled: Sequence[str]) -> dict[str, _Label]:
    """Describe weights by name; `spelled` are their names as they are to be compared."""
    held: Counter[str] = Counter()
    alike = defaultdict[tuple[int, bool], list[str]](list)
    for name, w in weights.items():
        size = math.prod(w.shape)
        alike[size, w.is_buffer].append(name)
        if not w.is_buffer and role_of(name) != "bias":
            held.update(dict.fromkeys(modules_of(name), size))
    order = {name: rank / max(1, len(names) - 1) for names in alike.values() for rank, name in enumerate(names)}
    return {
        name: _Label(words, role_of(name), tuple(held[module] for module in modules_of(name)), order[name])
        for name, words in zip(weights, renumbered(spelled), strict=True)
    }


@dataclass(frozen=True)
class _Source:
    """What a JAX weight may be made of."""

    made: Joined
    shape: Shape
    """Of all together; of each one where they are stacked."""
    label: _Label
    weight: Weight
    """The first one."""

    @property
    def name(self) -> str:
        return self.weight.name


def _score(leaf: _Label, source: _Source, is_buffer: bool) -> float:
    """Say how well the two fit."""
    label, pieces = source.label, source.made.pieces
    roles = {leaf.role, label.role}
    role = 0.0 if "" in roles else 0.5 if len(roles) == 1 else -0.5
    same_modules = sum(size in label.sizes for size in leaf.sizes) / max(1, len(leaf.sizes))
    is_whole = len(pieces) == pieces[0].count == 1
    other = 0.02 * (not is_whole) + 1.0 * (source.weight.is_buffer and not is_buffer)
    return likeness(leaf.words, label.words) + role + 1.0 * same_modules - 0.2 * abs(leaf.order - label.order) - other


def _assign(scores: Mapping[tuple[str, int], float], leaves: Sequence[str], sources: int) -> dict[str, int]:
    """Give each leaf a source of its own, so that the sum of the scores is largest."""
    matrix, rows = np.full((len(leaves), sources), -1e6), {path: row for row, path in enumerate(leaves)}
    for (path, column), score in scores.items():
        matrix[rows[path], column] = score
    pairs = zip(*linear_sum_assignment(matrix, maximize=True), strict=True)
    return {leaves[row]: int(column) for row, column in pairs if (leaves[row], column) in scores}


def _fit(path: str, leaf: Leaf, source: _Source, role: Role, layouts: Layouts) -> tuple[Layout, ...]:
    """Find the layouts that make the leaf of the source; none if the two cannot belong together."""
    stack = (len(source.made.parts),) if source.made.stacked else ()
    if leaf.shape[: len(stack)] != stack or math.prod(leaf.shape) != math.prod((*stack, *source.shape)):
        return ()
    wish = wanted_layout(layouts, path, source.name, path.rpartition(".")[0], source.name.rpartition(".")[0])
    return find_layouts(source.shape, leaf.shape[len(stack) :], role(path, source.weight.role), wish)


def _like_siblings(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Let square kernels first go the way of the kernels beside them that are not square."""
    ways = Counter((path.rpartition(".")[2], e.layouts[0].words) for path, e in entries.items() if len(e.layouts) == 1)
    return {
        path: replace(e, layouts=tuple(sorted(e.layouts, key=lambda x: -ways[path.rpartition(".")[2], x.words])))
        for path, e in entries.items()
    }


# What PyTorch has


PARTS = (
    ("in_proj_", 3, ("query", "key", "value")),
    ("_ih", 3, ("ir", "iz", "in")),
    ("_hh", 3, ("hr", "hz", "hn")),
    ("_ih", 4, ("ii", "if", "ig", "io")),
    ("_hh", 4, ("hi", "hf", "hg", "ho")),
)
"""Weights that PyTorch packs: a part of the name, how many there are, and the word for each."""


def _sources(weights: Sequence[Weight]) -> Iterator[_Source]:
    """Yield the weights, the parts of those that are packed, and stacks of those whose names differ in one number."""
    labels = _labels({w.name: w for w in weights}, [w.name for w in weights])
    whole = [_Source(Joined(((Piece(w.first),),)), w.shape, labels[w.name], w) for w in weights]
    yield from whole
    numbers = {w.name: math.prod(w.shape) for w in weights}
    for source in whole:
        path, _, leaf = source.label.words.rpartition(".")
        for text, count, names in PARTS:
            if text in source.name and source.shape[0] % count == 0:
                shape = (source.shape[0] // count, *source.shape[1:])
                layer = "".join(re.findall(r"\d+", leaf))
                held = numbers.get(source.name.replace("bias", "weight"), 0) // count  # in JAX, a part is a module
                for index, name in enumerate(names):
                    words, sizes = f"{path}.{layer}.{name}.{source.label.role}", (*source.label.sizes, held)
                    label = replace(source.label, words=words, sizes=sizes)
                    yield replace(source, made=Joined(((Piece(source.name, index, count),),)), shape=shape, label=label)
    groups = defaultdict[str, dict[int, _Source]](dict)
    for source in whole:
        for found in re.finditer(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", source.name):
            starred = f"{source.name[: found.start()]}*{source.name[found.end() :]}"
            groups[starred][int(found[0])] = source
    for starred, layers in groups.items():
        first, *others = ordered = [layers[index] for index in sorted(layers)]
        if others and {source.shape for source in others} == {first.shape} and not first.weight.is_buffer:
            made = Joined(tuple(part for source in ordered for part in source.made.parts), stacked=True)
            yield replace(first, made=made, label=replace(first.label, words=starred))


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
    formulas: tuple[tuple[str, ...], ...] = ()
    """Parts, sums or several of PyTorch's weights, as the user wrote them."""
    keeps: bool = False

    @property
    def is_said(self) -> bool:
        """Whether the user names PyTorch's weight."""
        return bool(self.targets or self.formulas)

    def allows(self, leaf: Leaf, source: _Source, formula: tuple[str, ...] | None) -> bool:
        """Whether the weight may be made of this source, which was made for a formula of the user's, or for none."""
        if self.keeps or (leaf.is_buffer and not source.weight.is_buffer and not self.is_said):
            return False
        is_asked = formula in self.formulas if self.formulas else formula is None
        return is_asked and all(_pattern(target).search(source.name) for target in self.targets)


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
            wish = replace(wish, formulas=(*wish.formulas, tuple(texts)))
        elif words:
            wish = replace(wish, targets=(*wish.targets, words))
    return wish


def _asked_for(formula: tuple[str, ...], whole: Sequence[_Source]) -> Iterator[_Source]:
    """Make what the user asks for: `c_attn[0/3]` is the first third, several are concatenated, a + is a sum."""
    terms = [[_TERM.findall(term)[0] for term in text.split("+")] for text in formula]
    by_name, pattern = {source.name: source for source in whole}, _pattern(terms[0][0][0])
    for name, source in by_name.items():
        if not pattern.search(name):
            continue
        others = [[(pattern.sub(text, name, count=1), *cut) for text, *cut in part] for part in terms]
        if all(other in by_name for part in others for other, *_ in part):
            made = Joined(tuple(tuple(_piece(by_name[n], *cut) for n, *cut in part) for part in others))
            zeros = {piece.name: np.broadcast_to(0, by_name[piece.name].shape) for piece in made.pieces}
            yield replace(source, made=made, shape=made.fill(zeros, Layout()).shape)


_TERM = re.compile(r"^\s*(.*?)(?:\[(\d+)/(\d+)\])?\s*$")


def _piece(source: _Source, index: str, count: str) -> Piece:
    """Cut along the first axis, or along the last one if that is longer, as in a kernel of GPT-2's own."""
    shape, parts = source.shape, int(count or 1)
    is_first = shape[0] % parts == 0 and (len(shape) == 1 or shape[0] >= shape[-1])
    return Piece(source.name, int(index or 0), parts, 0 if is_first else len(shape) - 1)


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

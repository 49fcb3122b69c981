"""How alike two names are, word by word: the words that the two frameworks use for the same thing count as the same."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

ALIKE = [
    set(line.split())
    for line in """attn attention att
        fc dense linear proj projection lin
        ln norm layernorm
        embed embedding emb embeddings wte
        pos wpe position positional positions
        q query queries
        k key keys
        v value values
        o out output
        h block blocks layer layers
        conv convolution
        bn batch
        mlp ffn feedforward
        i ih x input inputs
        h hh hidden recurrent state
        hn n
        mu mean
        var variance sigma
        self multi""".splitlines()
]
"""Words for the same thing."""
ROLES = {
    "bias": {"bias", "b", "beta", "biases", "offset"},
    "mean": {"mean"},
    "var": {"var", "variance"},
    "weight": {"weight", "kernel", "scale", "embedding", "w", "gamma", "g", "weights"},
}


@cache
def words_of(path: str) -> tuple[str, ...]:
    """Split a path into words and numbers: `layers_0.LayerNorm` is layers, 0, layer, norm."""
    return tuple(word.lower() for word in re.findall(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\*", path))


@cache
def modules_of(path: str) -> tuple[str, ...]:
    """The paths of the modules that hold a weight, the outermost first."""
    parts = path.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts)))


def ranked_words(paths: Iterable[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Split paths into the words of each component, and number siblings anew: conv1 and conv2 as Conv_0 and Conv_1."""
    split, numbers = {}, defaultdict[tuple[str, str], set[int]](set)
    for path in paths:
        components = path.split(".")
        found = [re.fullmatch(r"(.*?)_?(\d*)", component) for component in components]
        parts = [(".".join(components[:depth]), m[1], m[2]) for depth, m in enumerate(found) if m is not None]
        split[path] = parts
        for parent, stem, number in parts:
            if number:
                numbers[parent, stem].add(int(number))

    found_words = {}
    for path, parts in split.items():
        ranks = [[str(sorted(numbers[parent, stem]).index(int(n)))] if n else [] for parent, stem, n in parts]
        found_words[path] = tuple((*words_of(stem), *rank) for (_, stem, _), rank in zip(parts, ranks, strict=True))
    return found_words


def without_role(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in ("weight", "kernel", "bias")) or words


def role_of(words: tuple[str, ...]) -> str | None:
    for word in reversed(words):
        for role, alike in ROLES.items():
            if word in alike:
                return role
    return None


@cache
def similarity(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """The longest common sequence of words, as a share of both lengths."""
    best = [0.0] * (len(other) + 1)
    for word in one:
        row = [0.0]
        for column, candidate in enumerate(other):
            row.append(max(row[-1], best[column + 1], best[column] + _alike(word, candidate)))
        best = row
    return 2 * best[-1] / max(1, len(one) + len(other))


@cache
def _alike(one: str, other: str) -> float:
    if one == other:
        return 1.0
    if one.isdigit() or other.isdigit():
        return 0.0
    if any(one in words and other in words for words in ALIKE):
        return 0.9
    if any(one in words and other in words for words in ROLES.values()):
        return 0.9
    return 0.6 if one.startswith(other) or other.startswith(one) else 0.0

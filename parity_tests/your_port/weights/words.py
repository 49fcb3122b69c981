"""How alike two names are: the words that the two frameworks use for the same thing count as one."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache

ALIKE = """
    attn attention att
    fc dense linear proj projection lin
    ln norm layernorm
    embed embedding emb embeddings wte
    pos wpe position positional positions
    q query queries wq
    k key keys wk
    v value values wv
    o out output wo
    h block blocks layer layers
    conv convolution
    bn batch
    mlp ffn feedforward
    i ih x input inputs
    hh hidden recurrent state
    n hn
    mean mu
    var variance sigma
    self multi
"""
"""Words for the same thing, one thing a line."""
ROLES = """
    bias b beta biases offset
    mean
    var variance
    weight kernel scale embedding w gamma g weights
"""
"""Words for what a weight is in its module."""


def _meanings(table: str) -> dict[str, str]:
    return {word: line.split()[0] for line in table.strip().splitlines() for word in line.split()}


UNNUMBERED = -1
"""The number of a name without one: before all others."""
_MEANING, _ROLE = _meanings(ALIKE), _meanings(ROLES)


@cache
def words_of(path: str) -> tuple[str, ...]:
    """Split a path into words and numbers: `layers_0.LayerNorm` is layers, 0, layer, norm."""
    return tuple(word.lower() for word in re.findall(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\*", path))


@cache
def modules_of(path: str) -> tuple[str, ...]:
    """The paths of the modules that hold a weight, the outermost first."""
    parts = path.split(".")
    return tuple(".".join(parts[:depth]) for depth in range(1, len(parts)))


def renumbered(paths: Iterable[str]) -> list[str]:
    """Number siblings anew: conv1 and conv3 beside each other become conv_0 and conv_1, as Linen would call them.

    One without a number is the first: Haiku and Keras count linear, linear_1, linear_2.
    """
    in_parts, numbers = [path.split(".") for path in paths], defaultdict[tuple[str, ...], set[int]](set)
    for parts in in_parts:
        for depth, part in enumerate(parts):
            stem, number = _numbered(part)
            numbers[*parts[:depth], stem].add(number)

    def anew(parts: list[str]) -> Iterator[str]:
        for depth, part in enumerate(parts):
            stem, number = _numbered(part)
            siblings = sorted(numbers[*parts[:depth], stem])
            yield part if siblings == [UNNUMBERED] else f"{stem}_{siblings.index(number)}"

    return [".".join(anew(parts)) for parts in in_parts]


def layer_first(path: str) -> str:
    """Put the layer of PyTorch's recurrent weights where others have it: `weight_ih_l0` is `l0.weight_ih`."""
    return re.sub(r"(\w+_[ih]h)_(l\d+(?:_reverse)?)$", r"\2.\1", path)


def _numbered(part: str) -> tuple[str, int]:
    """Split a part of a name: `conv_3` is conv and 3, `conv` is conv and UNNUMBERED."""
    found = re.search(r"_?(\d+)$", part)
    return (part[: found.start()], int(found[1])) if found else (part, UNNUMBERED)


def role_of(path: str) -> str:
    """Say what a weight is in its module: weight, bias, mean, var, or nothing that is known."""
    return next((_ROLE[word] for word in reversed(words_of(path)) if word in _ROLE), "")


def units_of(paths: Iterable[str]) -> dict[str, str]:
    """Say what weights belong to: their module, or if it has several of one role, what their names have in common."""
    paths = list(paths)
    roles = Counter((path.rpartition(".")[0], role_of(path)) for path in paths)
    crowded = {module for (module, _), count in roles.items() if count > 1}

    def unit_of(path: str) -> str:
        module, _, leaf = path.rpartition(".")
        words = words_of(leaf)
        role = next((word for word in reversed(words) if word in _ROLE), "")
        return ".".join([module, *(word for word in words if word != role)]) if module in crowded else module

    return {path: unit_of(path) for path in paths}


@cache
def likeness(one: str, other: str) -> float:
    """The share of words that two paths have in common, in the same order."""
    return SequenceMatcher(None, _meanings_of(one), _meanings_of(other), autojunk=False).ratio()


def _meanings_of(path: str) -> list[str]:
    named = [word for word in words_of(path) if word not in ("weight", "kernel", "bias")] or words_of(path)
    return [_MEANING.get(word, word) for word in named]

"""What the user says about names: `names={"h_{i}": "layers.{i}", "q": "c_attn[0/3]", "b": "b_ih + b_hh"}`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity_tests.your_port.weights.layouts import Layout
from parity_tests.your_port.weights.sources import Source
from parity_tests.your_port.weights.weight_map import Joined, Leaf, Piece

Names = Mapping[str, str | Sequence[str] | None]


@dataclass(frozen=True)
class GivenName:
    """What the user says about the name of a JAX weight."""

    path: str
    """With the user's words instead of JAX's."""
    targets: tuple[str, ...] = ()
    """Parts that the name in PyTorch must have."""
    formulas: tuple[tuple[str, ...], ...] = ()
    """Parts, sums or several of PyTorch's weights, as the user wrote them."""
    keeps: bool = False

    @property
    def is_said(self) -> bool:
        """Whether the user names PyTorch's weight."""
        return bool(self.targets or self.formulas)

    def allows(self, leaf: Leaf, source: Source) -> bool:
        """Whether the weight may be made of this source."""
        if self.keeps or (leaf.is_buffer and not source.weight.is_buffer and not self.is_said):
            return False
        is_asked = source.formula in (self.formulas or [()])
        return is_asked and all(name_pattern(target).search(source.name) for target in self.targets)


def is_named(path: str, names: Names) -> bool:
    """Whether the user names PyTorch's weight for a JAX weight."""
    return read_given_name(path, names).is_said


def name_pattern(name: str) -> re.Pattern[str]:
    """Compile `h_{i}`, which stands for whole components of a path."""
    inner = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^.]+?)", re.escape(name.replace("/", ".")))
    return re.compile(rf"(?:^|(?<=\.)){inner}(?=\.|$)")


def read_given_name(path: str, names: Names) -> GivenName:
    """Read what the user says about the weight at this path.

    Raises:
        ValueError: an empty list of names.
    """
    wish = GivenName(path)
    for name, target in names.items():
        found = name_pattern(name).search(path)
        if found is None:
            continue
        if target is None:
            return replace(wish, keeps=True)
        texts = [target] if isinstance(target, str) else list(target)
        if not texts:
            raise ValueError(f"names: {name!r} has an empty list; give names of PyTorch's, or None for JAX's own value")
        for key, value in found.groupdict().items():
            texts = [text.replace(f"{{{key}}}", value) for text in texts]
        words = re.sub(r"\[.*?\]| *\+.*|\.?\{.*?\}", "", texts[0])
        wish = replace(wish, path=name_pattern(found.group()).sub(words, wish.path, count=1))
        if len(texts) > 1 or "[" in texts[0] or "+" in texts[0]:
            wish = replace(wish, formulas=(*wish.formulas, tuple(texts)))
        elif words:
            wish = replace(wish, targets=(*wish.targets, words))
    return wish


def ask_for(formula: tuple[str, ...], whole: Sequence[Source]) -> Iterator[Source]:
    """Make what the user asks for: `c_attn[0/3]` is the first third, several are concatenated, a + is a sum."""
    terms = [[_TERM.findall(term)[0] for term in text.split("+")] for text in formula]
    by_name, pattern = {source.name: source for source in whole}, name_pattern(terms[0][0][0])
    for name, source in by_name.items():
        if not pattern.search(name):
            continue
        others = [[(pattern.sub(text, name, count=1), *cut) for text, *cut in part] for part in terms]
        if all(other in by_name for part in others for other, *_ in part):
            made = Joined(tuple(tuple(_piece(by_name[n], *cut) for n, *cut in part) for part in others))
            zeros = {piece.name: np.broadcast_to(0, by_name[piece.name].shape) for piece in made.pieces}
            label = replace(source.label, unit=(*formula, *source.label.unit))
            shape = made.fill(zeros, Layout()).shape
            yield replace(source, made=made, shape=shape, label=label, formula=formula)


_TERM = re.compile(r"^\s*(.*?)(?:\[(\d+)/([1-9]\d*)\])?\s*$")


def _piece(source: Source, index: str, count: str) -> Piece:
    """Cut along the first axis, or along the last one if that is longer, as in a kernel of GPT-2's own."""
    shape, parts = source.shape, int(count or 1)
    is_first = shape[0] % parts == 0 and (len(shape) == 1 or shape[0] >= shape[-1])
    return Piece(source.name, int(index or 0), parts, 0 if is_first else len(shape) - 1)

"""What a weight of JAX may be made of: PyTorch's weights, the parts of those that are packed, and stacks of layers."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from parity_tests.your_port.weights.layouts import Shape
from parity_tests.your_port.weights.original import Weight
from parity_tests.your_port.weights.weight_map import Joined, Leaf, Piece
from parity_tests.your_port.weights.words import layer_first, modules_of, renumbered, role_of, units_of

Unit = tuple[str, ...]
"""The name of a module, or of weights of a module that belong together."""


@dataclass(frozen=True)
class Label:
    """What the name and the place of a weight say."""

    words: str
    """Its name, with siblings numbered as Linen would."""
    role: str
    sizes: tuple[int, ...]
    """How many numbers each module holds that it is in, without biases, which one side may have or sum otherwise."""
    unit: Unit
    """What it belongs to: its module, or a part of it."""
    order: float
    """The rank of the unit among those that hold as many numbers, from 0 to 1."""


def label_weights(weights: Mapping[str, Leaf | Weight], spelled: Sequence[str]) -> dict[str, Label]:
    """Describe weights by name; `spelled` are their names as they are to be compared."""
    held: Counter[str] = Counter()
    units, sizes = units_of(weights), defaultdict[str, list[tuple[int, bool]]](list)
    for name, w in weights.items():
        size = math.prod(w.shape)
        sizes[units[name]].append((size, w.is_buffer))
        if not w.is_buffer and role_of(name) != "bias":
            held.update(dict.fromkeys(modules_of(name), size))
    alike = defaultdict[tuple[tuple[int, bool], ...], list[str]](list)
    for unit, sizes_of_unit in sizes.items():
        alike[tuple(sorted(sizes_of_unit))].append(unit)
    order = {unit: rank / max(1, len(units) - 1) for units in alike.values() for rank, unit in enumerate(units)}
    return {
        name: Label(
            *(words, role_of(name), tuple(held[module] for module in modules_of(name))),
            *((units[name],), order[units[name]]),
        )
        for name, words in zip(weights, renumbered(map(layer_first, spelled)), strict=True)
    }


@dataclass(frozen=True)
class Source:
    """What a JAX weight may be made of."""

    made: Joined
    shape: Shape
    """Of all together; of each one where they are stacked."""
    label: Label
    weight: Weight
    """The first one."""
    formula: tuple[str, ...] = ()
    """What the user wrote, if it was made for that."""

    @property
    def name(self) -> str:
        return self.weight.name


PARTS = (
    ("in_proj_", 3, ("query", "key", "value")),
    ("_ih", 3, ("ir", "iz", "in")),
    ("_hh", 3, ("hr", "hz", "hn")),
    ("_ih", 4, ("ii", "if", "ig", "io")),
    ("_hh", 4, ("hi", "hf", "hg", "ho")),
)
"""Weights that PyTorch packs: a part of the name, how many there are, and the word for each."""


def find_sources(weights: Sequence[Weight]) -> Iterator[Source]:
    """Yield the weights, the parts of those that are packed, and stacks of those whose names differ in one number."""
    labels = label_weights({w.name: w for w in weights}, [w.name for w in weights])
    whole = [Source(Joined(((Piece(w.first),),)), w.shape, labels[w.name], w) for w in weights]
    yield from whole
    numbers = {w.name: math.prod(w.shape) for w in weights}
    for source in whole:
        path = source.label.words.rpartition(".")[0]
        for text, count, names in PARTS:
            if text in source.name and source.shape and source.shape[0] % count == 0:
                shape = (source.shape[0] // count, *source.shape[1:])
                held = numbers.get(source.name.replace("bias", "weight"), 0) // count  # in JAX, a part is a module
                for index, name in enumerate(names):
                    words, sizes = f"{path}.{name}.{source.label.role}", (*source.label.sizes, held)
                    unit = (*source.label.unit, f"{index}/{count}")
                    label = replace(source.label, words=words, sizes=sizes, unit=unit)
                    yield replace(source, made=Joined(((Piece(source.name, index, count),),)), shape=shape, label=label)
    groups = defaultdict[str, dict[int, Source]](dict)
    for source in whole:
        for found in re.finditer(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", source.name):
            starred = f"{source.name[: found.start()]}*{source.name[found.end() :]}"
            groups[starred][int(found[0])] = source
    for (starred, layers), words in zip(groups.items(), renumbered(groups), strict=True):
        first, *others = ordered = [layers[index] for index in sorted(layers)]
        if others and {source.shape for source in others} == {first.shape}:
            made = Joined(tuple(part for source in ordered for part in source.made.parts), stacked=True)
            unit = (starred.rpartition(".")[0], *first.label.unit)
            yield replace(first, made=made, label=replace(first.label, words=words, unit=unit))

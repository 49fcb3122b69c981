"""The modules: the same weights on both sides, the gradient of each compared under PyTorch's name.

Every attention of the registry gets its variants by itself. What one needs besides stands in the tables below.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import jax_attn
import torch_ref
from jax_attn.modules.attention import ATTENTIONS
from jax_attn.modules.attention import make_attention as make_jax_attention
from parity_tests.this_library.cases.functional import SOFTMAX, TANH, hide_time, ints
from parity_tests.this_library.cases.masking import COMMON, EXTREME, MORE, RAGGED, Masking, draw_inputs
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.measure.case import Case, Variant, random_for
from parity_tests.your_port.measure.torch_side import torch_module
from torch_ref.modules.attention import make_attention as make_torch_attention

QUERY_SIZE, KEY_SIZE, VALUE_SIZE = 4, 6, 3


def size(inputs: Any, name: str) -> int:
    """Return the number of features of an input."""
    return inputs[name].shape[-1]


# Attention

OPTIONS: dict[str, dict[str, Any]] = {"multi_head": {"num_heads": 2, "use_bias": True}}
"""Name of an attention -> its options."""


def make_torch(options: Any, inputs: Any) -> Any:
    return make_torch_attention(**options, num_hiddens=QUERY_SIZE, key_size=size(inputs, "keys"))


def attention_variant(
    title: str, name: str, masking: Masking, more: Any = (), keep_mask: Any = None, slow: bool = False
) -> Variant:
    """Make a variant of the attention called `name`; `more` are options. Keys are wider only where it projects them."""
    options = {"name": name, **OPTIONS.get(name, {}), **dict(more), **masking.options}
    weights = dict(make_torch(options, {"keys": np.empty(KEY_SIZE)}).named_parameters())
    key_size = KEY_SIZE if any(KEY_SIZE in weight.shape for weight in weights.values()) else QUERY_SIZE
    sizes = (QUERY_SIZE, key_size, key_size if "W_v.weight" in weights else VALUE_SIZE)
    inputs = draw_inputs(masking, ("queries", "keys", "values"), "modules", name, sizes=sizes) | {
        "keep_mask": keep_mask
    }
    return Variant(title, inputs, options, dtypes=masking.dtypes, slow=slow)


def attention_variants(first: str, *others: str) -> Iterator[Variant]:
    """Make all maskings and dropout for the first name of a module, and one variant for each other name."""
    for masking in (*COMMON, MORE[5]):
        # All modules share the code of masks, so one module is enough in the quick run.
        slow = masking.name in SLOW_MASKINGS and first != "additive"
        yield attention_variant(masking.name, first, masking, slow=slow)
    heads = (OPTIONS[first]["num_heads"],) if first in OPTIONS else ()
    keep_mask = random_for(first, "keep").random((3, *heads, 2, 5)) < 0.6
    dropped = {"dropout": 0.4}
    yield attention_variant("dropout", first, RAGGED, dropped, keep_mask)
    for name in others:
        yield attention_variant(name, name, RAGGED)
    for title, name, masking, more in MORE_VARIANTS:
        if name in (first, *others):
            yield attention_variant(title, name, masking, more)


SLOW_MASKINGS = ("nothing masked", "lengths of each query", "more leading axes")


LARGE = EXTREME.name
MORE_VARIANTS: tuple[tuple[str, str, Masking, dict[str, Any]], ...] = (
    (LARGE, "dot", EXTREME, {}),
    (f"{LARGE}, scaled", "scaled_dot", EXTREME, {}),
    ("narrow", "gaussian", RAGGED, {"sigma": 0.5}),
    ("without biases", "multi_head", RAGGED, {"num_heads": 4, "use_bias": False}),
)
"""Title, name of the attention, masking, and options. The functions have scores of ±1e4 of each kind."""


def attention_call(module: Any, inputs: Any) -> Any:
    """Call the module, and again in two steps over a prepared memory, unless the lengths depend on the query."""
    direct = module(**inputs)
    lens, mask, keep_mask = inputs["valid_lens"], inputs["mask"], inputs["keep_mask"]
    if mask is not None or (lens is not None and lens.ndim == inputs["keys"].ndim - 1):
        return direct
    # In Flax, bilinear attention must know the size of the queries to come.
    known = {} if isinstance(module, torch.nn.Module) else {"query_size": size(inputs, "queries")}
    memory = module.prepare(inputs["keys"], inputs["values"], lens, **known)
    return *direct, *module.attend(inputs["queries"], memory, keep_mask=keep_mask)


PROJECTED = (
    "scores of size S, projected and summed in another order, differ by S u, and so do the weights; then "
    f"{SOFTMAX}; and {TANH}"
)


def attention_cases() -> Iterator[Case]:
    """Make a case of each module, with all its names in the registry."""
    names: dict[str, list[str]] = {}
    for name in ATTENTIONS:
        names.setdefault(type(make_jax_attention(name, QUERY_SIZE)).__name__, []).append(name)
    outputs = ("context", "weights", "context over a memory", "weights over a memory")
    torch_side = torch_module(make_torch, attention_call)
    jax_side = linen_module(
        lambda options, dtype: make_jax_attention(**options, num_hiddens=QUERY_SIZE, param_dtype=dtype), attention_call
    )
    for module, its_names in names.items():
        variants = tuple(attention_variants(*its_names))
        yield Case(module, variants, torch_side, jax_side, outputs, factor=32, reason=PROJECTED)


# Embeddings


def embedding_variants() -> Iterator[Variant]:
    tokens = random_for("Embeddings").integers(0, 9, (3, 5)).astype(np.int32)
    yield Variant("two axes", {"tokens": tokens}, {"d_model": 4, "vocab_size": 9})
    yield Variant("one axis, 64-bit ids", {"tokens": tokens[0].astype(np.int64)}, {"d_model": 4, "vocab_size": 9})


def position_variants() -> Iterator[Variant]:
    rng = random_for("PositionalEncoding")
    inputs = {"x": rng.normal(size=(3, 7, 6)), "keep_mask": None}
    yield Variant("plain", inputs, {"d_model": 6})
    yield Variant("dropout", {**inputs, "keep_mask": rng.random((3, 7, 6)) < 0.5}, {"d_model": 6, "dropout": 0.5})
    yield Variant("no leading axis", {**inputs, "x": rng.normal(size=(50, 6))}, {"d_model": 6})


def position_call(module: Any, inputs: Any) -> Any:
    return module(inputs["x"], keep_mask=inputs["keep_mask"])


# Recurrent networks


def recurrent_variants(name: str) -> Iterator[Variant]:
    def options(layers: int, bidirectional: bool, **more: Any) -> dict[str, Any]:
        return {"num_hiddens": 4, "num_layers": layers, "bidirectional": bidirectional, **more}

    rng = random_for(name)

    def state(layers: int, *batch: int) -> Any:
        h, c = (rng.normal(size=(layers, *batch, 4)) for _ in range(2))
        return (h, c) if name == "LSTM" else h

    inputs, lens, again = rng.normal(size=(3, 5, 3)), ints(2, 5, 0), ("float64",)  # no arithmetic that others lack
    plain = {"inputs": inputs, "valid_lens": None, "initial_state": None, "keep_masks": None}
    ragged = {**plain, "valid_lens": lens}
    yield Variant("one layer, all of it", plain, options(1, False))
    yield Variant("two layers, ragged", ragged, options(2, False), dtypes=again)
    yield Variant("two layers, NaN past the length", {**ragged, "inputs": hide_time(inputs, lens)}, options(2, False))
    dropped = {**ragged, "initial_state": state(4, 3), "keep_masks": rng.random((3, 1, 5, 8)) < 0.6}
    yield Variant("two layers, both directions, ragged, dropout", dropped, options(2, True, dropout=0.4))
    deep = {**plain, "initial_state": state(3, 3), "keep_masks": rng.random((3, 2, 5, 4)) < 0.6}
    yield Variant("three layers, dropout, no biases", deep, options(3, False, dropout=0.3, use_bias=False))
    yield Variant("both directions, no biases", ragged, options(1, True, use_bias=False), dtypes=again, slow=True)
    leading = {**plain, "inputs": rng.normal(size=(2, 3, 4, 3)), "valid_lens": ints([4, 1, 0], [3, 4, 2])}
    yield Variant("more leading axes", {**leading, "initial_state": state(1, 2, 3)}, options(1, False), dtypes=again)


def recurrent_call(module: Any, inputs: Any) -> Any:
    positional = (inputs["inputs"], inputs["valid_lens"], inputs["initial_state"])
    return module(*positional, keep_masks=inputs["keep_masks"])


def module_case(
    name: str, variants: Iterator[Variant], call: Any = None, outputs: tuple[str, ...] = (), *sized_by: str, **more: Any
) -> Case:
    """Make a case of a class that both libraries have; PyTorch's also takes the sizes of the inputs `sized_by`."""

    def build_torch(options: Any, inputs: Any) -> Any:
        return getattr(torch_ref, name)(*(size(inputs, part) for part in sized_by), **options)

    def build_jax(options: Any, dtype: Any) -> Any:
        fields = getattr(jax_attn, name).__dataclass_fields__
        return getattr(jax_attn, name)(**options, **({"param_dtype": dtype} if "param_dtype" in fields else {}))

    torch_side, jax_side = torch_module(build_torch, call), linen_module(build_jax, call)
    return Case(name, tuple(variants), torch_side, jax_side, outputs, **more)


RECURRENT: Any = (recurrent_call, ("outputs", "state"), "inputs")
ROUNDED: dict[str, Any] = {"factor": 16, "reason": TANH, "slow_dtypes": ("bfloat16",)}
MODULE_CASES = (
    *attention_cases(),
    module_case("Embeddings", embedding_variants()),
    module_case("PositionalEncoding", position_variants(), position_call),
    module_case("LSTM", recurrent_variants("LSTM"), *RECURRENT, **ROUNDED),
    module_case("GRU", recurrent_variants("GRU"), *RECURRENT, **ROUNDED),
)

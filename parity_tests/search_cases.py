"""Greedy and beam search: over a language given as a table, and over whole models."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jax_attn
import torch_ref
from parity_tests.case import Case, Variant, random_for
from parity_tests.functional_cases import function_case, ints
from parity_tests.jax_side import linen_module
from parity_tests.model_cases import SOURCE_VOCAB, jax_translator, tokens, torch_translator, translator_options
from parity_tests.torch_side import torch_module

BATCH, LENGTH, VOCAB, KEYS = 3, 5, 6, 4
EOS = 2

# Over a table: the next token depends on the sentence, the position and the token before.


def tables() -> Iterator[Variant]:
    rng = random_for("search")
    table = rng.normal(size=(BATCH, LENGTH, VOCAB, VOCAB)) * 2
    table -= np.log(np.exp(table).sum(-1, keepdims=True))
    inputs = {"table": table, "attention": rng.normal(size=(BATCH, VOCAB, KEYS))}
    yield Variant("a table", inputs)
    yield Variant("no weights", {**inputs, "attention": None})
    never = np.where(np.arange(VOCAB) == EOS, -1e3, table)
    yield Variant("none ends", {**inputs, "table": never})
    at_once = np.where(np.arange(VOCAB) == EOS, -1e-3, table - 9)
    yield Variant("all end at once", {**inputs, "table": at_once})


def beam_tables() -> Iterator[Variant]:
    for variant in tables():
        for options in ({"beam_size": 3}, {"beam_size": 4, "length_penalty": 0.75}):
            yield Variant(f"{variant.name}, {options}", variant.inputs, options)
    variant = next(tables())
    yield Variant("a beam of 1", variant.inputs, {"beam_size": 1, "length_penalty": 1.0})
    flat = np.full_like(variant.inputs["table"], -np.log(VOCAB))
    yield Variant("equal scores", {**variant.inputs, "table": flat}, {"beam_size": 4})
    only = np.where(np.arange(VOCAB) == EOS, 0.0, -np.inf) + 0 * flat
    only[:, 0, :, 1] = -0.5
    yield Variant(
        "more places than sentences", {**variant.inputs, "table": only}, {"beam_size": 4, "length_penalty": 1.0}
    )


def table_call(name: str) -> Callable[..., Any]:
    def call(library: Any, inputs: Any, options: Any) -> Any:
        numbers = torch if library is torch_ref else jnp

        def step(token: Any, time: Any, memory: Any) -> Any:
            sentences = memory["table"].shape[0]  # PyTorch's search walks through one sentence at a time
            rows = numbers.arange(token.shape[0]) // (token.shape[0] // sentences)
            weights = None if memory["attention"] is None else memory["attention"][rows, token]
            return memory["table"][rows, time, token], time + 1, weights

        state = numbers.zeros(BATCH, dtype=numbers.int32)
        search = getattr(library, name)
        return search(step, state, inputs, bos=1, eos=EOS, max_len=LENGTH, batch_size=BATCH, **options)

    return call


# Over a model, moved from one framework to the other


def models() -> Iterator[Variant]:
    inputs = {"sources": tokens("to translate", SOURCE_VOCAB, 3, 5), "source_lens": ints(5, 2, 3)}
    sharp = {"decoder.dense.weight": 3.0}  # far from ties, so that rounding cannot choose another token
    yield Variant("gru, both directions", inputs, translator_options(bidirectional=True, bridge=True), sharp)
    lstm = translator_options(cell="lstm", num_layers=2, attention="dot", query="new", input_feeding=True)
    yield Variant("lstm, Luong", inputs, lstm, sharp)


def model_call(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    """Encode, and search with the model's own step, which a module of either framework has."""

    def call(module: Any, inputs: Any) -> Any:
        library = torch_ref if isinstance(module, torch_ref.EncoderDecoder) else jax_attn
        memory = module.encode(inputs["sources"], inputs["source_lens"])
        state, search = module.initial_state(memory), getattr(library, name)
        return search(module.step, state, memory, bos=1, eos=EOS, max_len=LENGTH, batch_size=BATCH, **options)

    return call


def table_case(name: str, variants: Iterator[Variant]) -> Case:
    return function_case(name, variants, table_call(name), constants=frozenset({"table", "attention"}))


def model_case(name: str, **options: Any) -> Case:
    call = model_call(name, **options)

    def init(module: Any, inputs: Any) -> Any:
        sources = inputs["sources"]
        return module.init(jax.random.key(0), sources, jnp.zeros_like(sources), inputs["source_lens"])

    return Case(
        f"{name} (model)",
        tuple(models()),
        torch_module(torch_translator, call),
        linen_module(jax_translator, call, init),
        slow_dtypes=("bfloat16",),
    )


SEARCH_CASES = (
    table_case("greedy_search", tables()),
    table_case("beam_search", beam_tables()),
    model_case("greedy_search"),
    model_case("beam_search", beam_size=3, length_penalty=0.5),
)

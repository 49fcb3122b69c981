"""Greedy search, beam search and sampling, over a language that is given as a table."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

import torch_ref
from parity_tests.this_library.cases.functional import function_case, ints
from parity_tests.your_port.measure.case import Case, Variant, random_for

BATCH, LENGTH, VOCAB, KEYS = 3, 5, 6, 4
EOS = 2
SETTINGS = {"bos": 1, "eos": EOS, "max_len": LENGTH, "batch_size": BATCH}
NARROW = ("float32", "bfloat16")

# Over a table: the next token depends on the sentence, the position and the token before.


def draw_table(rng: np.random.Generator) -> np.ndarray:
    table = rng.normal(size=(BATCH, LENGTH, VOCAB, VOCAB)) * 2
    return table - np.log(np.exp(table).sum(-1, keepdims=True))


def tables() -> Iterator[Variant]:
    rng = random_for("search")
    table = draw_table(rng)
    inputs = {"table": table, "attention": rng.normal(size=(BATCH, VOCAB, KEYS))}
    yield Variant("a table", inputs)
    yield Variant("no weights", {**inputs, "attention": None})
    never = np.where(np.arange(VOCAB) == EOS, -1e3, table)
    yield Variant("none ends", {**inputs, "table": never})
    at_once = np.where(np.arange(VOCAB) == EOS, -1e-3, table - 9)
    yield Variant("all end at once", {**inputs, "table": at_once})


def broken_tables() -> Iterator[Variant]:
    """Put −inf or NaN into tables; the last sentence has neither."""
    inputs = next(tables()).inputs
    table = inputs["table"]
    sentence, time = np.arange(BATCH)[:, None, None, None], np.arange(LENGTH)[:, None, None]
    unknown = np.where((sentence == 1) & (time == 2), np.nan, table)
    yield Variant("a NaN in question", {**inputs, "table": unknown})
    impossible = np.where((sentence == 0) | ((sentence == 1) & (time > 0)), -np.inf, table)
    yield Variant("nothing possible", {**inputs, "table": impossible})
    forbidden = np.where((np.arange(VOCAB) == EOS) & (time < 3), np.nan, table)
    yield Variant("NaN where it is forbidden", {**inputs, "table": forbidden}, {"min_len": 4})


def constrained_tables() -> Iterator[Variant]:
    """Try the constraints that every search takes. Variants with the same options share a program."""
    inputs = next(tables()).inputs
    yield Variant("a minimum length", inputs, {"min_len": 4})
    yield Variant("the end forced", inputs, {"force_end": True})
    for n in (1, 2, 3):
        yield Variant(f"no {n} tokens twice", inputs, {"no_repeat_ngram": n})
    babble = np.where(np.arange(VOCAB) == EOS, -9.0, inputs["table"])  # repeats itself unless that is forbidden
    babble[..., 4] += 5
    yield Variant("no 2 tokens twice of a babble", {**inputs, "table": babble}, {"no_repeat_ngram": 2})
    three = {**inputs, "table": babble[..., [0, 1, 2]]}
    yield Variant("nothing left to say", three, {"no_repeat_ngram": 1, "min_len": 5})
    prefix = np.array([[3, 4, 5, 3], [0, 5, 3, 4], [4, 4, 4, 5]], np.int32)
    yield Variant("a prefix", {**inputs, "prefix": prefix})
    yield Variant("ragged prefixes", {**inputs, "prefix": prefix, "prefix_lens": ints(0, 2, 4)})
    ending = np.array([[3, EOS, 5], [0, 5, 3], [4, 4, 4]], np.int32)
    against = {**inputs, "prefix": ending, "prefix_lens": ints(3, 1, 3)}
    yield Variant("prefixes against the rest", against, {"min_len": 4, "no_repeat_ngram": 2})


def greedy_tables() -> Iterator[Variant]:
    yield from (*tables(), *broken_tables(), *constrained_tables())
    inputs = next(tables()).inputs  # in whose sentences of four tokens the first and last weights are the same
    yield Variant("another table", {**inputs, "table": draw_table(random_for("search", "2"))})


def beam_tables() -> Iterator[Variant]:
    plain, penalized = {"beam_size": 3}, {"beam_size": 4, "length_penalty": 0.75}
    for variant in tables():
        yield Variant(f"{variant.name}, {penalized}", variant.inputs, penalized)
    table = next(tables()).inputs
    yield Variant(f"a table, {plain}", table, plain)
    yield Variant("a beam of 1", table, {"beam_size": 1, "length_penalty": 1.0})
    flat = np.full_like(table["table"], -np.log(VOCAB))
    yield Variant("equal scores", {**table, "table": flat}, plain)
    only = np.where(np.arange(VOCAB) == EOS, 0.0, -np.inf) + 0 * flat
    only[:, 0, :, 1] = -0.5
    yield Variant("more places than sentences", {**table, "table": only}, penalized)
    yield Variant("more places than tokens", table, {"beam_size": 9})
    for stop in ("first", "likely", "never"):
        leaving = {"beam_size": 2, "length_penalty": 1.0, "stop": stop}
        for variant in (*tables(), *broken_tables()):
            slow = variant.name != "a table"
            yield Variant(f"{variant.name}, stop {stop}", variant.inputs, leaving, slow=slow)
    yield Variant("no 2 tokens twice, stop first", table, {**leaving, "stop": "first", "no_repeat_ngram": 2})
    for variant in (*broken_tables(), *constrained_tables()):
        if variant.name not in ("no 1 tokens twice", "no 3 tokens twice", "a prefix"):  # greedy search tries all
            slow = variant.name in ("nothing left to say", "ragged prefixes")
            yield Variant(variant.name, variant.inputs, {**variant.options, **plain}, slow=slow)
    yield from penalized_tables()


def penalized_tables() -> Iterator[Variant]:
    """Try GNMT's norm and coverage: over weights that sum to 1, of shorter sources, and all zero."""
    inputs = dict(next(tables()).inputs)
    inputs["attention"] = np.exp(3 * inputs["attention"])
    inputs["attention"] /= inputs["attention"].sum(-1, keepdims=True)
    gnmt = {"beam_size": 4, "length_penalty": 0.6, "length_norm": "gnmt"}
    yield Variant("GNMT's norm", inputs, gnmt)
    yield Variant("coverage", inputs, {"beam_size": 4, "coverage_penalty": 0.7})
    short = np.where(np.arange(KEYS) < np.array([2, 4, 1])[:, None, None], inputs["attention"], 0)
    ragged = {**inputs, "attention": short, "source_lens": ints(2, 4, 1)}
    everything = {**gnmt, "coverage_penalty": 0.4, "min_len": 2, "no_repeat_ngram": 2}
    yield Variant("coverage of ragged sources, and everything else", ragged, everything)
    yield Variant("coverage, stop likely", inputs, {"beam_size": 4, "coverage_penalty": 0.7, "stop": "likely"})
    yield Variant("never attended", {**inputs, "attention": short}, {"beam_size": 4, "coverage_penalty": 0.7})


def sampled_tables() -> Iterator[Variant]:
    """Give the noise, drawn so that no two tokens are closer than rounding."""
    noise = random_for("search", "noise").gumbel(size=(BATCH, 2, LENGTH, VOCAB))

    def sampled(name: str, inputs: Any, **options: Any) -> Variant:
        given = noise[..., : inputs["table"].shape[-1]]
        return Variant(name, {**inputs, "noise": given}, {"num_samples": 2, **options})

    inputs = next(tables()).inputs
    both: dict[str, Any] = {"top_p": 0.8, "top_k": 4, "temperature": 1.7}
    for options in ({"temperature": 0.5}, {"top_k": 3, "temperature": 1.5}, {"top_k": 9}, {"top_p": 0.6}, both):
        yield sampled(f"{options}", inputs, **options)
    yield replace(sampled("no weights", {**inputs, "attention": None}, top_k=2), slow=True)
    flat = np.full_like(inputs["table"], -np.log(VOCAB))
    yield sampled("equal tokens", {**inputs, "table": flat}, top_k=2)
    for variant in (*broken_tables(), *constrained_tables()):
        if variant.name in ("nothing possible", "a NaN in question", "prefixes against the rest"):
            yield sampled(variant.name, variant.inputs, **variant.options, top_p=0.9, top_k=5)


def table_step(numbers: Any) -> Callable[..., Any]:
    def step(token: Any, time: Any, memory: Any) -> Any:
        sentences = memory["table"].shape[0]  # PyTorch's search takes one sentence at a time
        rows = numbers.arange(token.shape[0]) // (token.shape[0] // sentences)
        weights = None if memory["attention"] is None else memory["attention"][rows, token]
        return memory["table"][rows, time, token], time + 1, weights

    return step


# Over several tables at once


def ensembles() -> Iterator[Variant]:
    """Join two models and three; one without attention; one that forbids the best token of another."""
    one, without, *_ = (dict(variant.inputs) for variant in tables())
    rng = random_for("search", "ensemble")
    other = {"table": one["table"][:, ::-1, ::-1], "attention": rng.normal(size=(BATCH, VOCAB, KEYS))}
    veto = {**other, "table": np.where(one["table"] > -0.5, -np.inf, other["table"])}
    nothing = {**one, "table": np.where(np.arange(LENGTH)[:, None, None] == 1, -np.inf, one["table"])}
    for average in ("probability", "log"):
        options, three = {"average": average}, {"models": (without, one, veto)}
        yield Variant(f"two models, {average}", {"models": (one, other)}, options)
        yield Variant(f"three models, a veto, one without weights, {average}", three, options)
    yield Variant("nothing possible", {"models": (nothing, nothing)}, {"average": "probability"})
    yield Variant("no weights", {"models": (without, without)}, {"average": "log"}, slow=True)


def ensemble_call(library: Any, inputs: Any, options: Any) -> Any:
    numbers = torch if library is torch_ref else jnp
    models = tuple(inputs["models"])
    step = library.ensemble([table_step(numbers)] * len(models), **options)
    states = tuple(numbers.zeros(BATCH, dtype=numbers.int32) for _ in models)
    return library.beam_search(step, states, models, **SETTINGS, beam_size=3, length_penalty=1.0)


def table_case(name: str, variants: Iterator[Variant]) -> Case:
    def call(library: Any, inputs: Any, options: Any) -> Any:
        numbers = torch if library is torch_ref else jnp
        memory = {name: inputs[name] for name in ("table", "attention")}
        arrays = {name: x for name, x in inputs.items() if name not in memory}
        state = numbers.zeros(BATCH, dtype=numbers.int32)
        return getattr(library, name)(table_step(numbers), state, memory, **SETTINGS, **arrays, **options)

    constants = frozenset({"table", "attention", "noise"})
    return function_case(name, variants, call, constants=constants, slow_dtypes=NARROW)


SEARCH_CASES = (
    table_case("greedy_search", greedy_tables()),
    table_case("beam_search", beam_tables()),
    table_case("sample_search", sampled_tables()),
    function_case("ensemble", ensembles(), ensemble_call, constants=frozenset({"models"}), slow_dtypes=NARROW),
)

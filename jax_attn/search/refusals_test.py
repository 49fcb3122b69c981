"""What the searches refuse: wrong sizes, constraints, penalties, states, and steps that return something else."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, ensemble, greedy_search, sample_search


def floats(*shape):
    return np.ones(shape, np.float32)


def ints(*shape):
    return np.ones(shape, np.int32)


BATCH, MAX_LEN, VOCAB = 3, 5, 6
FITTING = {
    "state": floats(BATCH, 2),
    "table": floats(VOCAB),
    "bos": 1,
    "eos": 2,
    "max_len": MAX_LEN,
    "batch_size": BATCH,
}
NOISE = {"noise": floats(BATCH, 1, MAX_LEN, VOCAB)}
SEARCHES = {greedy_search: FITTING, beam_search: FITTING, sample_search: FITTING | NOISE}


def over_a_table(search):
    """The search of a model whose next token depends on nothing; `axes` are those of the step's log_probs."""

    def call(*, state, table, axes=2, attends=True, **options):
        def step(tokens, state, memory):
            rows = tokens[:, None] * 0 + table
            weights = rows[:, :4].astype(jnp.float32) if attends else None
            return {1: rows[0], 2: rows, 3: rows[None]}[axes], state, weights

        return search(step, state, None, **options)

    return call


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "wrong",
    [
        [{"batch_size": 0}],
        [{"max_len": 0}],
        [{"bos": VOCAB}],
        [{"bos": -1}],
        [{"eos": VOCAB}],
        [{"eos": -1}],
        [{"state": floats(BATCH + 1, 2)}, "state", ", 2]"],
        [{"state": floats()}, "state", "]"],
        [{"axes": 1}, "step", f"[{VOCAB}]"],
        [{"axes": 3}, "step", f", {VOCAB}]"],
        [{"table": ints(VOCAB)}, "step", "int32"],
        [{"min_len": MAX_LEN + 1}],
        [{"no_repeat_ngram": 0}],
        [{"prefix": ints(BATCH, MAX_LEN + 1)}],
        [{"prefix": ints(BATCH - 1, 4)}],
        [{"prefix": ints(BATCH)}],
        [{"prefix": floats(BATCH, 4)}],
        [{"prefix_lens": ints(BATCH)}, None, "None"],
        [{"prefix_lens": ints(BATCH - 1), "prefix": ints(BATCH, 4)}],
    ],
)
def test_every_search_refuses(refuses, search, wrong):
    refuses(over_a_table(search), SEARCHES[search], *wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        [{"beam_size": 0}],
        [{"length_penalty": -1.0}],
        [{"coverage_penalty": float("inf")}],
        [{"length_norm": "mean"}],
        [{"coverage_penalty": 0.1, "attends": False}, None, "None"],
        [{"source_lens": ints(BATCH - 1), "coverage_penalty": 0.1}],
    ],
)
def test_beam_search_refuses(refuses, wrong):
    refuses(over_a_table(beam_search), FITTING, *wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        [{"num_samples": 0}],
        [{"temperature": 0.0}],
        [{"top_k": 0}],
        [{"top_p": 0.0}],
        [{"top_p": 1.1}],
        [{"num_samples": 2}, "noise", "[3, 1, 5, 6]"],
        [{"noise": ints(BATCH, 1, MAX_LEN, VOCAB)}],
    ],
)
def test_sample_search_refuses(refuses, wrong):
    refuses(over_a_table(sample_search), FITTING | NOISE, *wrong)


@pytest.mark.parametrize("wrong", [[{"steps": ()}, None, "0"], [{"average": "mean"}]])
def test_ensemble_refuses(refuses, wrong):
    refuses(ensemble, {"steps": (lambda *_: None,)}, *wrong)

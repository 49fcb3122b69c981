"""The first tensor that differs is found wherever the fault stands: forward, in a loop, backward, or nowhere."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from parity_tests import Case, JaxSide, Variant, find_divergence, linen_module, tap, torch_function, torch_module
from parity_tests.cases import find_case
from parity_tests.faults import Fault
from parity_tests.faults.in_jax import gates_swapped
from parity_tests.jax_side import forget_programs
from parity_tests.taps import recording

X = np.random.default_rng(0).normal(size=(3, 4))


def torch_stages(inputs: Any, _: Any) -> Any:
    first = tap("first", inputs["x"].tanh())
    second = tap("second", first.exp())
    return tap("third", second * first).sum(-1)


def case_of(port: Any) -> Case:
    return Case("stages", (Variant("random", {"x": X}),), torch_function(torch_stages), JaxSide(port))


def test_two_that_agree_do_not_differ() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        first = jnp.tanh(inputs["x"])
        return (first * jnp.exp(first)).sum(-1)

    assert find_divergence(case_of(port)) is None


def test_the_forward_pass_differs_between_two_taps() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        first = tap("first", jnp.tanh(inputs["x"]))
        second = tap("second", jnp.exp(first) + jnp.arange(4.0))
        return tap("third", second * first).sum(-1)

    found = find_divergence(case_of(port))
    assert found is not None
    assert (found.phase, found.tensor, found.agreed) == ("forward", "second", ("first",))
    assert found.symptoms == ("the difference is the same in every row: a bias",)
    assert "the forward pass differs at second" in str(found)
    assert "the last that agrees is first" in str(found)


def test_the_backward_pass_differs_where_a_gradient_is_stopped() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        first = tap("first", jnp.tanh(inputs["x"]))
        second = tap("second", jnp.exp(jax.lax.stop_gradient(first)))
        return tap("third", second * first).sum(-1)

    found = find_divergence(case_of(port))
    assert found is not None
    assert (found.phase, found.tensor) == ("backward", "gradient of first")
    assert found.agreed[-1] == "gradient of third"
    assert found.traps == ()


class Steps(torch.nn.Module):
    """A layer called once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return torch.stack([self.dense(row) for row in x]).cumsum(0)


class AtOnce(nn.Module):
    """The same layer called once for all steps; then a fault."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return jnp.cumsum(nn.Dense(2, param_dtype=x.dtype, name="dense")(x), 0) ** 2


class Scanned(nn.Module):
    """The same layer called in a compiled loop, where one step is given something else."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def step(dense: Any, total: Any, row: Any) -> Any:
            total = total + dense(jnp.where((row == x[1]).all(), row + 1, row))
            return total, total

        dense = nn.Dense(2, param_dtype=x.dtype, name="dense")
        return nn.scan(step, variable_broadcast="params", split_rngs={"params": False})(dense, jnp.zeros(2), x)[1]


@pytest.mark.parametrize(
    ("module", "tensor", "agreed"), [(AtOnce, "result", ("dense",)), (Scanned, "dense[1]", ("dense[0]",))]
)
def test_submodules_are_followed_call_by_call(module: type[nn.Module], tensor: str, agreed: tuple[str, ...]) -> None:
    torch_side = torch_module(lambda options, inputs: Steps())
    case = Case("steps", (Variant("random", {"x": X}),), torch_side, linen_module(lambda options, dtype: module()))
    found = find_divergence(case)
    assert found is not None
    assert (found.phase, found.tensor, found.agreed) == ("forward", tensor, agreed)


def test_swapped_gates_of_the_encoder_are_found_and_named() -> None:
    case = find_case("Seq2SeqEncoder")
    forget_programs()
    with Fault("", case.name, "modules.recurrent:gru_step", gates_swapped(0, 1, 3)).planted():
        found = find_divergence(case, case.variants[-1])
    forget_programs()
    assert found is not None
    assert found.tensor.startswith("rnn")
    assert found.agreed == ("embedding",)
    assert found.traps == ("gates in another order: JAX takes PyTorch's r, z, n as z, r, n",)


def test_modules_in_the_decoder_s_loop_keep_their_path_and_are_called_step_by_step() -> None:
    decoder = Seq2SeqAttentionDecoder(5, 4, 4)
    model = EncoderDecoder(Seq2SeqEncoder(5, 4, 4), decoder)
    tokens = jnp.ones((2, 3), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)
    with recording() as trace:
        model.apply(params, tokens, tokens)
    assert len(trace.tensors["decoder.attention.W_q"]) == 3
    assert len(trace.tensors["decoder.attention.W_k"]) == 1
    assert not [name for name in trace.tensors if not name.startswith(("encoder", "decoder"))]


def test_a_tap_outside_a_recording_is_the_identity() -> None:
    x = jnp.ones(3)
    assert tap("x", x) is x
    with recording() as trace:
        tap("x", x)
    assert list(trace.tensors) == ["x"]

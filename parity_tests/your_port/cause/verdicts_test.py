"""Small ports that are made to deceive: the verdict must name the right cause, or none, and say what it explains."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from parity_tests import compare

pytestmark = pytest.mark.slow
F = torch.nn.functional
RNG = np.random.default_rng(0)
X, TOKENS = RNG.normal(size=(4, 6)), RNG.normal(size=(3, 5, 6))
BOTH = "(explains outputs and gradients on fresh draws)"
PART = "(lets more values agree on fresh draws; something else differs, too)"


LINE = re.compile(r", at verdicts_test\.py:\d+: .*?(?=; or |; and |; the |; no | \((?:explains|lets))")
"""Where a cause says which line of PyTorch's code it is about."""


class Module(torch.nn.Module):
    """Parts by name, and what is computed with them."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.compute = compute

    def forward(self, *inputs: Any) -> Any:
        return self.compute(self, *inputs)


def cause(module: Any, port: Any, *inputs: Any, dtypes: Sequence[str] = ("float64",), **options: Any) -> str:
    """Return the line with the cause."""
    lines = str(compare(module, port, inputs, dtypes=dtypes, **options)).splitlines()
    assert len(lines) <= 10
    line = next(line.removeprefix("  cause: ") for line in lines if line.startswith("  cause: "))
    return LINE.sub("", re.split("; print what|; once it is mended", line)[0])


def linear(*sizes: int) -> Any:
    return torch.nn.Linear(*sizes)


def dense(w: Any, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


# Parameters that are read off the answer


def test_a_factor_and_a_relu_are_no_dropout() -> None:
    assert cause(linear(6, 5), lambda w, x: 2 * jax.nn.relu(x @ w["weight"].T + w["bias"]), X) == (
        "none of the known mistakes"
    )


def test_a_fixed_mask_is_no_dropout() -> None:
    kept = jnp.array([2.0, 0.0, 2.0, 2.0, 0.0])
    assert cause(linear(6, 5), lambda w, x: (x @ w["weight"].T + w["bias"]) * kept, X) == "none of the known mistakes"


class Dropped(nnx.Module):
    def __init__(self) -> None:
        self.a, self.dropout = nnx.Linear(6, 5, rngs=nnx.Rngs(0)), nnx.Dropout(0.3, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.a(x), deterministic=False)


def test_dropout_is_named_where_random_numbers_change_the_results() -> None:
    assert cause(Module(lambda m, x: m.a(x), a=linear(6, 5)), Dropped(), X) == (
        "random numbers are drawn in JAX, as by dropout or noise that is left on "
        "(JAX's results depend on its random numbers)"
    )


def test_random_numbers_that_reach_no_result_are_no_cause() -> None:
    def port(w: Any, x: Any) -> Any:
        kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        return jnp.where(kept, x, x) @ w["weight"].T

    assert cause(linear(6, 5), port, X) == f"bias is missing in JAX {BOTH}"


def test_an_answer_that_is_copied_is_no_mistake_of_the_table() -> None:
    module = linear(6, 5).double()
    answer = jnp.asarray(module(torch.tensor(X)).detach().numpy())
    found = cause(module, lambda w, x: answer + 0 * x.sum(), X, weights=module.state_dict())
    assert found == "none of the known mistakes"


def test_nothing_is_read_from_nan_alone() -> None:
    """A mask that hides all keys gives NaN everywhere; so does a port that divides by zero."""

    def attend(module: Any, x: Any, hidden: Any) -> Any:
        return (module.q(x) @ x.mT).masked_fill(hidden[:, None], float("-inf")).softmax(-1) @ x

    hidden = np.array([[False] * 5, [False] * 5, [False] * 5])
    found = cause(Module(attend, q=linear(6, 6)), lambda w, x, hidden: dense(w, "q", x) * 0 / 0, TOKENS, hidden)
    assert found == "none of the known mistakes"


# What explains the same numbers


@pytest.mark.parametrize("lengths", [[5, 4, 4], [5, 2, 4], [5, 5, 4]])
def test_lengths_that_are_ignored(lengths: list[int]) -> None:
    def attend(module: Any, x: Any, lengths: Any) -> Any:
        hidden = torch.arange(x.shape[1]) >= lengths[:, None]
        return (module.q(x) @ x.mT).masked_fill(hidden[:, None], -1e9).softmax(-1) @ x

    def port(w: Any, x: Any, lengths: Any) -> Any:
        return jax.nn.softmax(dense(w, "q", x) @ jnp.swapaxes(x, -1, -2)) @ x

    found = cause(Module(attend, q=linear(6, 6)), port, TOKENS, np.array(lengths))
    assert found == f"the mask is ignored in JAX {BOTH}"


def test_terms_that_are_equal() -> None:
    found = cause(Module(lambda m, x: m.a(x) + m.a(x), a=linear(6, 5)), lambda w, x: dense(w, "a", x), X)
    text = "the {} term of a sum is missing: a residual, a position or a bias, in JAX"
    assert found == f"one of: {text.format('first')}; {text.format('second')} {BOTH}"


def test_a_mistake_that_leaves_a_symmetric_input_as_it_is() -> None:
    """A transposed input is the same here; the port reads it in reverse."""
    found = cause(Module(lambda m, x: m.a(x), a=linear(4, 6)), lambda w, x: dense(w, "a", x[::-1]), X @ X.T)
    assert found == f"input0 is read in reverse along axis 0 in JAX {BOTH}"


def test_a_batch_of_one() -> None:
    def loss(module: Any, x: Any, labels: Any) -> Any:
        return F.cross_entropy(module.a(x).mT, labels, ignore_index=0)

    def port(w: Any, x: Any, labels: Any) -> Any:
        taken = jnp.take_along_axis(jax.nn.log_softmax(dense(w, "a", x)), labels[..., None], -1)[..., 0]
        return -jnp.where(labels != 0, taken, 0).sum() / labels.size

    assert cause(Module(loss, a=linear(6, 5)), port, X[None], np.array([[1, 2, 0, 0]])) == (
        f"padding is counted: the loss is divided by the number of all labels in JAX {BOTH}"
    )


# Given weights that hide a mistake


def test_biases_of_zero() -> None:
    module = linear(6, 5)
    given = {**module.state_dict(), "bias": torch.zeros(5)}
    assert cause(module, lambda w, x: x @ w["weight"].T, X, weights=given) == f"bias is missing in JAX {BOTH}"


def test_a_matrix_that_is_almost_the_identity() -> None:
    module = linear(6, 6)
    given = {**module.state_dict(), "weight": torch.eye(6) + 0.1 * torch.eye(6).roll(1, 0)}
    assert cause(module, lambda w, x: x @ w["weight"] + w["bias"], X, weights=given) == (
        f"weight is not transposed in JAX, or twice {BOTH}"
    )


def test_a_layout_that_was_guessed_is_no_mistake_of_the_port() -> None:
    """No layout agrees, since the port has one more residual; so the nearest is kept, which is not the right one."""
    module = Module(lambda m, x: m.b(F.gelu(m.a(x).tanh())), a=linear(6, 6), b=linear(6, 6))

    def port(w: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ w["w1"] + w["c1"])
        return (jax.nn.gelu(hidden, approximate=False) + hidden) @ w["w2"] + w["c2"]

    weights = {name: np.zeros(6 if name[0] == "c" else (6, 6)) for name in ("w1", "c1", "w2", "c2")}
    names = {"w1": "a.weight", "c1": "a.bias", "w2": "b.weight", "c2": "b.bias"}
    assert "is not transposed in JAX" not in cause(module, port, X, variables=weights, names=names)


# Two mistakes, and what is no mistake


class Two(nnx.Module):
    def __init__(self) -> None:
        self.a = nnx.Linear(6, 5, use_bias=False, rngs=nnx.Rngs(0))
        self.b = nnx.Linear(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.b(jax.nn.silu(self.a(x)))


def test_a_port_that_is_wrong_in_two_places() -> None:
    module = Module(lambda m, x: m.b(F.gelu(m.a(x))), a=linear(6, 5), b=linear(5, 3))
    assert cause(module, Two(), X) == f"a.bias is missing in JAX; and gelu is SiLU in JAX {BOTH}"


class TwoAndAnUnknownOne(Two):
    def __call__(self, x: Any) -> Any:
        return self.b(jnp.sin(self.a(x)) ** 3)


def test_beside_an_unknown_mistake_the_one_of_a_submodule_is_named() -> None:
    module = Module(lambda m, x: m.b(F.gelu(m.a(x))), a=linear(6, 5), b=linear(5, 3))
    assert cause(module, TwoAndAnUnknownOne(), X) == (
        "a.bias is missing in JAX (explains this submodule's outputs on fresh draws; something else differs, too)"
    )


def test_beside_an_unknown_mistake_the_one_before_it_is_named() -> None:
    module = Module(lambda m, x: torch.sigmoid(m.b(torch.tanh(m.a(x)))), a=linear(6, 5), b=linear(5, 3))
    port = lambda w, x: jnp.sin(dense(w, "b", jnp.tanh(x @ w["a.weight"].T))) ** 3  # noqa: E731
    assert cause(module, port, X) == f"a.bias is missing in JAX {PART}"


def test_a_cause_that_explains_the_outputs_alone() -> None:
    assert cause(linear(6, 5), lambda w, x: x @ (2 * w["weight"] - jax.lax.stop_gradient(w["weight"])).T, X) == (
        "bias is missing in JAX (explains the outputs on fresh draws, not the gradients)"
    )
    assert cause(linear(6, 5), lambda w, x: x @ jax.lax.stop_gradient(w["weight"]).T, X) == (
        "bias is missing in JAX; and no gradient flows through the second operand of linear in JAX: stop_gradient "
        + BOTH
    )


def of_three(m: Any, x: Any) -> Any:
    y = m.norm(x)
    y = y + m.b(F.gelu(m.a(y)))
    scores = (m.c(y) @ y.mT / 6**0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ y


def in_jax(w: Any, x: Any, *wrong: str) -> Any:
    """Compute the same with some mistakes; the mask is added, and so is computed otherwise, but is right."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jnp.sqrt((x**2 if "rms" in wrong else centred**2).mean(-1, keepdims=True) + 1e-5)
    y = (x if "rms" in wrong else centred) / scale * w["norm.weight"] + w["norm.bias"]
    activated = jax.nn.relu(dense(w, "a", y)) if "relu" in wrong else jax.nn.gelu(dense(w, "a", y), approximate=False)
    y = 0.0 * y + dense(w, "b", activated) if "residual" in wrong else y + dense(w, "b", activated)
    y = jnp.arctan(y) if "unknown" in wrong else y
    y = jax.lax.stop_gradient(y) if "stopped" in wrong else y
    scores = dense(w, "c", y) @ jnp.swapaxes(y, 1, 2) / (7**0.5 if "scale" in wrong else 6**0.5)
    later = jnp.triu(jnp.ones((5, 5)), 1)
    return jax.nn.softmax(scores - 1e9 * later, -1) @ y


RMS = "the norm does not subtract the mean, as an RMS norm, in JAX"
RELU, RESIDUAL = "gelu is ReLU in JAX", "the first term of a sum is missing: a residual, a position or a bias, in JAX"
DIVISOR = "the factor is 2.64575, by √7, and not 2.44949 in JAX"


@pytest.mark.parametrize(
    ("wrong", "causes", "explains"),
    [
        ((), None, ""),
        (("relu", "scale"), [RELU, DIVISOR], BOTH),
        (("rms", "relu", "residual"), [RMS, RELU, RESIDUAL], BOTH),
        (("rms", "unknown"), [RMS], PART),
        (("unknown",), ["none of the known mistakes"], ""),
        (("relu", "stopped"), [RELU, "no gradient flows through add in JAX: stop_gradient"], BOTH),
    ],
)  # fmt: skip
def test_mistakes_at_once_are_named_and_what_is_done_otherwise_is_not(wrong: Any, causes: Any, explains: str) -> None:
    module = Module(of_three, norm=torch.nn.LayerNorm(6), a=linear(6, 7), b=linear(7, 6), c=linear(6, 6))
    port = lambda w, x: in_jax(w, x, *wrong)  # noqa: E731
    if causes is None:
        assert compare(module, port, TOKENS)
        return
    found = cause(module, port, TOKENS)
    assert found == f"{'; and '.join(causes)} {explains}".strip()


def test_gradients_that_are_not_compared() -> None:
    assert cause(linear(6, 5), lambda w, x: x @ w["weight"].T, X, gradients=False) == (
        "bias is missing in JAX (explains the outputs on fresh draws; gradients are not compared)"
    )


class Stopped(nnx.Module):
    def __init__(self) -> None:
        self.a, self.b = nnx.Linear(6, 5, rngs=nnx.Rngs(0)), nnx.Linear(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.b(jax.lax.stop_gradient(jnp.tanh(self.a(x))))


def test_an_idle_weight_explains_no_gradient() -> None:
    parts = {"a": linear(6, 5), "b": linear(5, 3), "aux": linear(6, 2)}
    found = cause(Module(lambda m, x: m.b(torch.tanh(m.a(x))), **parts), Stopped(), X)
    assert found == f"no gradient flows through tanh in JAX: stop_gradient {BOTH}"


class Without(nnx.Module):
    def __init__(self) -> None:
        self.a = nnx.Linear(6, 5, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.a(x)


def test_a_weight_without_a_place_is_named_beside_the_cause() -> None:
    module = Module(lambda m, x: m.a(x) * (1 + m.gain), a=linear(6, 5), gain=torch.nn.Parameter(torch.ones(5)))
    verdict = [LINE.sub("", line) for line in str(compare(module, Without(), X, dtypes=("float64",))).splitlines()]
    assert f"  cause: a gate or a scale is missing: the second factor of a product in JAX {BOTH}" in verdict
    assert "  left over in PyTorch: gain" in "\n".join(verdict)


def test_a_cause_is_searched_in_float64() -> None:
    module = torch.nn.LayerNorm(6, elementwise_affine=False)
    assert cause(module, lambda x: normalize(x, 1e-3), X, dtypes=("float32",)) == f"epsilon is 0.001 in JAX {BOTH}"


def normalize(x: Any, epsilon: float) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + epsilon)


# Mistakes of the table


@pytest.mark.parametrize("outer", [False, True])
def test_a_function_of_each_term_of_a_sum(outer: bool) -> None:
    def torch_side(module: Any, x: Any) -> Any:
        result = module.o(torch.tanh(module.q(x) + module.k(x)))
        return result.softmax(-1) if outer else result

    def port(w: Any, x: Any) -> Any:
        result = dense(w, "o", jnp.tanh(dense(w, "q", x)) + jnp.tanh(dense(w, "k", x)))
        return jax.nn.softmax(result) if outer else result

    found = cause(Module(torch_side, q=linear(6, 5), k=linear(6, 5), o=linear(5, 3)), port, X)
    assert found == f"tanh is applied to each term of a sum, and not to the sum, in JAX {BOTH}"


@pytest.mark.parametrize(
    ("epsilon", "offset", "words"),
    [
        (1e-5, 0, "epsilon is 1e-05 in JAX"),
        (1e-6, 1, "the norm's scale is 1 + weight in JAX"),
    ],
)
def test_a_norm_that_is_written_out(epsilon: float, offset: int, words: str) -> None:
    def torch_side(module: Any, x: Any) -> Any:
        return module.a(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * module.scale)

    def port(w: Any, x: Any) -> Any:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)
        return dense(w, "a", normed * (offset + w["scale"]))

    module = Module(torch_side, a=linear(6, 5), scale=torch.nn.Parameter(torch.ones(6)))
    assert cause(module, port, X) == f"{words} {BOTH}"


def test_a_number_that_a_sum_lacks_is_named_on_whatever_side_it_stands() -> None:
    module = Module(lambda m, x: m.a(x) * (1.0 + m.scale), a=linear(6, 5), scale=torch.nn.Parameter(torch.ones(5)))
    found = cause(module, lambda w, x: dense(w, "a", x) * w["scale"], X)
    assert found == f"the term 1 of a sum is missing in JAX {BOTH}"


@pytest.mark.parametrize(
    ("scale", "axis", "words"),
    [
        (1 / 3, -1, "one of: the factor is 0.333333, by 3, and not 0.57735 in JAX; "
                                "the factor 0.57735 is applied twice in JAX"),
        (6**-0.5, -1, "the factor is 0.408248, by √6, and not 0.57735 in JAX"),
        (3**-0.5, -2, "the softmax goes over axis 2 in JAX"),
    ],
)  # fmt: skip
def test_scale_and_axis_of_attention(scale: float, axis: int, words: str) -> None:
    def torch_side(module: Any, x: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (2, 3)).transpose(1, 2) for part in (module.q, module.k, module.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)

    def port(w: Any, x: Any) -> Any:
        q, k, v = (dense(w, name, x).reshape(3, 5, 2, 3).swapaxes(1, 2) for name in "qkv")
        return (jax.nn.softmax(q @ k.swapaxes(-1, -2) * scale, axis) @ v).swapaxes(1, 2).reshape(3, 5, 6)

    found = cause(Module(torch_side, q=linear(6, 6), k=linear(6, 6), v=linear(6, 6)), port, TOKENS)
    assert found == f"{words} {BOTH}"


def test_a_third_of_a_packed_bias() -> None:
    def port(w: Any, x: Any) -> Any:
        q, k, v = jnp.split(x @ w["in_proj_weight"].T + w["in_proj_bias"].at[12:].set(0), 3, -1)
        q, k, v = (part.reshape(3, 5, 2, 3).swapaxes(1, 2) for part in (q, k, v))
        attended = jax.nn.softmax(q @ k.swapaxes(-1, -2) * 3**-0.5) @ v
        return dense(w, "out_proj", attended.swapaxes(1, 2).reshape(3, 5, 6))

    module = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    found = cause(module, port, TOKENS, torch_call=lambda module, x: module(x, x, x)[0])
    assert found == f"the last third of in_proj_bias is missing in JAX {BOTH}"


def test_kernels_transposed_gate_by_gate() -> None:
    def port(w: Any, x: Any, h: Any, c: Any) -> Any:
        hidden = w["weight_hh"].reshape(4, 6, 6).swapaxes(1, 2).reshape(24, 6)
        i, f, g, o = jnp.split(x @ w["weight_ih"].T + w["bias_ih"] + h @ hidden.T + w["bias_hh"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c

    call = lambda module, x, h, c: module(x, (h, c))  # noqa: E731
    found = cause(torch.nn.LSTMCell(6, 6), port, X, X[::-1].copy(), X[:, ::-1].copy(), torch_call=call)
    assert found == f"weight_hh is transposed gate by gate in JAX {BOTH}"


def test_one_block_for_all() -> None:
    module = torch.nn.Sequential(*(linear(6, 6) for _ in range(3)))
    found = cause(module, lambda w, x: dense(w, "0", dense(w, "0", dense(w, "0", x))), X)
    assert found == f"1.weight, 1.bias, 2.weight, 2.bias are those of the first layer of their kind in JAX {BOTH}"


def normed(w: Any, x: Any, deviation: Any) -> Any:
    return (x - w["running_mean"]) / deviation * w["weight"] + w["bias"]


@pytest.mark.parametrize(
    ("module", "port", "words"),
    [
        (linear(6, 5), lambda w, x: jnp.tanh(x @ w["weight"].T + w["bias"]), "tanh of the result is taken"),
        (
            linear(6, 5),
            lambda w, x: jax.nn.softmax(x @ w["weight"].T + w["bias"]),
            "the result is given as probabilities: a softmax is taken",
        ),
        (
            torch.nn.BatchNorm1d(6),
            lambda w, x: normed(w, x, w["running_var"] + 1e-5),
            "the running variance is taken for a standard deviation",
        ),
        (torch.nn.LayerNorm(6), lambda w, x: normalize(x, 1e-12) * w["weight"] + w["bias"], "epsilon is 1e-12"),
    ],
)
def test_a_row_of_the_table(module: Any, port: Any, words: str) -> None:
    assert cause(module, port, X) == f"{words} in JAX {BOTH}"


LABELS, FRAMES = np.array([[1, 2, 2], [3, 1, 0]]), RNG.normal(size=(2, 12, 5))
NUM_FRAMES, NUM_LABELS = np.array([12, 10]), np.array([3, 2])


def ctc_of_optax(frames: Any, labels: Any) -> Any:
    hidden = [np.arange(size) >= lengths[:, None] for size, lengths in ((12, NUM_FRAMES), (3, NUM_LABELS))]
    return optax.ctc_loss(frames, hidden[0], labels, hidden[1]).mean()


def ctc_of_torch(frames: Any, labels: Any) -> Any:
    lengths = torch.tensor(NUM_FRAMES), torch.tensor(NUM_LABELS)
    return F.ctc_loss(frames.transpose(0, 1).log_softmax(-1), labels, *lengths)


@pytest.mark.parametrize(
    ("function", "port", "inputs", "words"),
    [
        (lambda x: x.var(-1), lambda x: x.var(-1), (X,), "a variance is that of n, not of n − 1,"),
        (lambda x: x.std(-1), lambda x: x.std(-1), (X,), "a standard deviation is that of n, not of n − 1,"),
        (F.mse_loss, lambda *xs: optax.l2_loss(*xs).mean(), (X, X[::-1]), "squared errors are halved"),
        (
            lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
            lambda *xs: optax.huber_loss(*xs, delta=0.5).mean(),
            (X, X[::-1]),
            "the loss is Huber's: its square is not divided by beta",
        ),
        (ctc_of_torch, ctc_of_optax, (FRAMES, LABELS), "the CTC losses are not divided by the lengths of their labels"),
    ],
)
def test_functions_of_the_same_name_differ(function: Any, port: Any, inputs: Any, words: str) -> None:
    assert cause(function, port, *inputs) == f"{words} in JAX {BOTH}"


class Flax(nn.Module):
    momentum: float

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        return nn.BatchNorm(not train, momentum=self.momentum, epsilon=1e-5, name="bn")(x)


@pytest.mark.parametrize(("momentum", "also"), [(0.9, ""), (0.99, " and the momentum is 0.01 in PyTorch's sense,")])
def test_a_running_variance(momentum: float, also: str) -> None:
    module = Module(lambda m, x: m.bn(x), bn=torch.nn.BatchNorm1d(6))
    found = cause(module, Flax(momentum), X, buffers=True)
    assert found == f"the running variance is that of n, not of n − 1,{also} in JAX {BOTH}"


def test_a_step_of_training_is_explained_where_evaluation_differs_by_the_rounding_of_float32_alone() -> None:
    class Cast(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            return nn.BatchNorm(not train, momentum=0.99, epsilon=1e-5, name="bn")(
                x.astype(jnp.float32).astype(x.dtype)
            )

    module = Module(lambda m, x: m.bn(x), bn=torch.nn.BatchNorm1d(6))
    words = "the running variance is that of n, not of n − 1, and the momentum is 0.01 in PyTorch's sense,"
    assert cause(module, Cast(), X, buffers=True) == f"{words} in JAX {BOTH}"


class WrittenOut(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("module", "port", "words"),
    [
        (torch.nn.GELU(), jax.nn.gelu, "gelu is GELU approximated by tanh in JAX"),
        (WrittenOut(), lambda x: jax.nn.gelu(x, False), "WrittenOut is the exact GELU in JAX, in 1"),
        (torch.nn.SiLU(), jax.nn.relu, "silu is ReLU in JAX"),
        (torch.nn.Mish(), jnp.tanh, "mish is tanh in JAX"),
    ],
)
def test_an_activation_that_is_a_module(module: Any, port: Any, words: str) -> None:
    pair = torch.nn.Sequential(linear(6, 5), module, linear(5, 3))
    assert cause(pair, lambda w, x: dense(w, "2", port(dense(w, "0", x))), X) == f"{words} {BOTH}"


def test_the_mean_of_the_means_of_sentences() -> None:
    def loss(module: Any, x: Any, labels: Any) -> Any:
        return F.cross_entropy(module.a(x).flatten(0, 1), labels.flatten(), ignore_index=0)

    def port(w: Any, x: Any, labels: Any) -> Any:
        taken = jnp.take_along_axis(jax.nn.log_softmax(dense(w, "a", x)), labels[..., None], -1)[..., 0]
        seen = labels != 0
        return -(jnp.where(seen, taken, 0).sum(1) / seen.sum(1)).mean()

    labels = np.array([[1, 2, 0, 0, 0], [3, 1, 4, 2, 0], [2, 2, 1, 0, 0]])
    found = cause(Module(loss, a=linear(6, 5)), port, TOKENS, labels)
    assert found == f"the loss is the mean of the sentences' means in JAX {BOTH}"


# Attention: windows, caps, rotations, norms


def rotated(x: Any, like: Any) -> Any:
    """Rotate x[i] and x[i + d/2] by their positions; `like` is torch or jnp."""
    angles = like.arange(x.shape[-2])[:, None] * like.asarray([1.0, 0.1], dtype=x.dtype)
    cos, sin = like.cos(angles), like.sin(angles)
    a, b = x[..., :2], x[..., 2:]
    return like.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def attend(module: Any, x: Any) -> Any:
    q, k = rotated(module.q(x), torch), rotated(module.k(x), torch)
    scores = 5 * torch.tanh(q @ k.mT / 5)
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return scores.masked_fill(~((distance >= 0) & (distance < 3)), -torch.inf).softmax(-1) @ module.v(x)


def attending(window: int = 3, least: int = 0, rotate: str = "qk", capped: str = "before", more: int = 0) -> Any:
    def port(w: Any, x: Any) -> Any:
        q, k, v = (dense(w, name, x) for name in "qkv")
        q, k = (rotated(x, jnp) if name in rotate else x for name, x in (("q", q), ("k", k)))
        distance = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
        hidden = (distance < least) | (distance >= window)
        scores = q @ k.swapaxes(-1, -2)
        scores = jnp.where(hidden, -jnp.inf, scores) if capped == "after" else scores
        scores = 5 * jnp.tanh(scores / 5)
        scores = jnp.where(hidden, -jnp.inf, scores) if capped == "before" else scores
        weights = jnp.exp(scores)
        return weights / (more + weights.sum(-1, keepdims=True)) @ v

    return port


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (attending(window=4), "a limit, such as of a window or a length, is off by one: +1"),
        (attending(window=99), "a condition is ignored, as if it always held"),
        (attending(least=-2), "a window reaches to both sides"),
        (attending(rotate="q"), "features are not rotated by their positions"),
        (attending(capped="after"), "the soft cap is applied after the mask, not before it,"),
        (attending(more=1), "the softmax has one more term, exp(0), in its sum"),
    ],
)
def test_windows_rotations_and_caps_of_attention(port: Any, words: str) -> None:
    module = Module(attend, q=linear(6, 4), k=linear(6, 4), v=linear(6, 6))
    assert compare(module, attending(), TOKENS, dtypes=("float64",)).agrees
    assert cause(module, port, TOKENS) == f"{words} in JAX {BOTH}"


def causal(scores: Any, window: int, like: Any) -> Any:
    """Hide what comes later, or is not within the window."""
    distance = like.arange(5)[:, None] - like.arange(5)
    return like.where((distance >= 0) & (distance < window), scores, -like.inf)


def test_a_window_that_is_one_longer() -> None:
    module = Module(lambda m, x: causal(m.q(x) @ x.mT, 3, torch).softmax(-1) @ x, q=linear(6, 6))
    port = lambda w, x: jax.nn.softmax(causal(dense(w, "q", x) @ x.mT, 4, jnp), -1) @ x  # noqa: E731
    assert cause(module, port, TOKENS) == (f"a limit, such as of a window or a length, is off by one: +1 in JAX {BOTH}")


def test_keys_that_are_not_rotated() -> None:
    parts = {"q": linear(6, 4), "k": linear(6, 4)}
    module = Module(lambda m, x: rotated(m.q(x), torch) @ rotated(m.k(x), torch).mT, **parts)
    port = lambda w, x: rotated(dense(w, "q", x), jnp) @ dense(w, "k", x).mT  # noqa: E731
    assert cause(module, port, TOKENS) == f"features are not rotated by their positions in JAX {BOTH}"


def by_heads(like: Any, q: Any, k: Any, v: Any) -> Any:
    scores = like.einsum("bqhd,bkhd->bhqk", q, k)
    weights = scores.softmax(-1) if like is torch else jax.nn.softmax(scores)
    return like.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*v.shape[:2], -1)


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_heads_that_are_packed_otherwise_are_not_rotated_otherwise(whole: bool, heads: int) -> None:
    """Two rotations one after the other would give the same order, in a program that rotates nothing."""

    def torch_side(module: Any, x: Any) -> Any:
        y = module.qkv(x)
        parts = y.reshape(3, 5, 3, heads, 8).unbind(2) if whole else y.unflatten(-1, (heads, 24)).chunk(3, -1)
        return module.o(by_heads(torch, *parts))

    def port(w: Any, x: Any) -> Any:
        y = dense(w, "qkv", x)
        of_heads, of_parts = y.reshape(3, 5, heads, 24), y.reshape(3, 5, 3, heads, 8)
        parts = jnp.split(of_heads, 3, -1) if whole else jnp.moveaxis(of_parts, 2, 0)
        return dense(w, "o", by_heads(jnp, *parts))

    found = cause(Module(torch_side, qkv=linear(6, 24 * heads), o=linear(8 * heads, 3)), port, TOKENS)
    in_jax, in_torch = (f"[{heads}, 3, 8]", f"[3, {heads}, 8]")[:: 1 if whole else -1]
    what = f"not as {in_torch}" if heads != 3 else "with the first two axes exchanged"
    assert found == f"the rows of qkv.weight are read as {in_jax} in JAX, {what} {BOTH}"


def test_distances_of_the_other_sign_are_named_and_no_inputs_in_reverse() -> None:
    """In reverse, PyTorch's numbers would be those of JAX, but in reverse."""

    def torch_side(module: Any, x: Any) -> Any:
        distance = torch.arange(5) - torch.arange(5)[:, None]
        return (module.q(x) @ module.k(x).mT + module.bias[distance + 4]).softmax(-1) @ x

    def port(w: Any, x: Any) -> Any:
        distance = jnp.arange(5)[:, None] - jnp.arange(5)
        return jax.nn.softmax(dense(w, "q", x) @ dense(w, "k", x).mT + w["bias"][distance + 4]) @ x

    module = Module(torch_side, q=linear(6, 4), k=linear(6, 4), bias=torch.nn.Parameter(torch.ones(9)))
    assert cause(module, port, TOKENS) == f"a difference is taken the other way round in JAX {BOTH}"


class Stacked(nnx.Module):
    def __init__(self) -> None:
        for i in range(3):
            setattr(self, f"norm_{i}", nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)))
            setattr(self, f"fc_{i}", nnx.Linear(6, 6, rngs=nnx.Rngs(0)))

    def __call__(self, x: Any) -> Any:
        for i in (2, 1, 0):
            x = x + jnp.tanh(getattr(self, f"fc_{i}")(getattr(self, f"norm_{i}")(x)))
        return x


def test_layers_in_reverse_have_their_residuals() -> None:
    """Without residuals, each layer of PyTorch would get the same, so that the first one of JAX would agree."""

    def torch_side(module: Any, x: Any) -> Any:
        for norm, fc in zip(module.norm, module.fc, strict=True):
            x = x + torch.tanh(fc(norm(x)))
        return x

    parts = {"norm": [torch.nn.LayerNorm(6) for _ in range(3)], "fc": [linear(6, 6) for _ in range(3)]}
    module = Module(torch_side, **{name: torch.nn.ModuleList(part) for name, part in parts.items()})
    assert cause(module, Stacked(), TOKENS) == "none of the known mistakes"


def rms(module: Any, x: Any) -> Any:
    return module.a(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def scan(module: Any, x: Any) -> Any:
    """Run a state space of 3 for each channel."""
    step, states, result = F.softplus(module.step(x))[..., None], module.b(x), torch.zeros(len(x), 6, 3)
    decay, given = torch.exp(step * -module.rate.exp()), step * states[:, :, None]
    for t in range(x.shape[1]):
        result = decay[:, t] * result + given[:, t] * x[:, t, :, None]
    return result


def scanning(hold: bool = False, softplus: Any = jax.nn.softplus) -> Any:
    def port(w: Any, x: Any) -> Any:
        step, rate, result = softplus(dense(w, "step", x))[..., None], -jnp.exp(w["rate"]), 0.0
        decay = jnp.exp(step * rate)
        given = ((decay - 1) / rate if hold else step) * dense(w, "b", x)[:, :, None]
        for t in range(x.shape[1]):
            result = decay[:, t] * result + given[:, t] * x[:, t, :, None]
        return result

    return port


def centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def root(x: Any) -> Any:
    return jnp.sqrt((x * x).mean(-1, keepdims=True))


def gated(module: Any, x: Any) -> Any:
    gate, reset = torch.sigmoid(module.a(x)), torch.sigmoid(module.c(x))
    return (1 - gate) * x + gate * torch.tanh(module.b(reset * x))


def gating(one: float = 1, sign: float = -1, early: bool = True) -> Any:
    def port(w: Any, x: Any) -> Any:
        gate, reset = jax.nn.sigmoid(dense(w, "a", x)), jax.nn.sigmoid(dense(w, "c", x))
        new = jnp.tanh(dense(w, "b", reset * x) if early else reset * dense(w, "b", x))
        kept = one + sign * gate
        return kept * x + (1 - kept) * new

    return port


def top_two(w: Any, x: Any) -> Any:
    values = jax.lax.top_k(jax.nn.softmax(dense(w, "a", x)), 2)[0]
    return values / values.sum(-1, keepdims=True)


SQUARES = {name: linear(6, 6) for name in "abc"}
STATES = {"step": linear(6, 6), "b": linear(6, 3), "rate": torch.nn.Parameter(torch.ones(6, 3))}


@pytest.mark.parametrize(
    ("torch_side", "parts", "port", "words"),
    [
        (rms, {"a": linear(6, 5)}, lambda w, x: dense(w, "a", centred(x) / jnp.sqrt(root(centred(x)) ** 2 + 1e-5)),
         "the norm subtracts the mean, as a layer norm,"),
        (rms, {"a": linear(6, 5)}, lambda w, x: dense(w, "a", x / (root(x) + 1e-5)),
                     "epsilon is added outside of the root"),
        (scan, STATES, scanning(hold=True), "B is discretised by a zero-order hold, not by Δ B,"),
        (scan, STATES, scanning(softplus=jnp.exp), "softplus is exp"),
        (lambda m, x: F.softplus(30 * m.a(x)), {"a": linear(6, 6)},
         lambda w, x: jax.nn.softplus(30 * dense(w, "a", x)),
         "softplus is never linear, as PyTorch's is above its threshold,"),
        (lambda m, x: m.a(x).roll(2, -1), {"a": linear(6, 6)}, lambda w, x: jnp.roll(dense(w, "a", x), -2, -1),
         "a roll goes the other way round"),
        (lambda m, x: torch.roll(m.a(x), 2, 1), {"a": linear(6, 6)}, lambda w, x: dense(w, "a", x),
         "nothing is rolled"),
        (lambda m, x: m.a(x).softmax(-1).topk(2).values, {"a": linear(6, 6)}, top_two,
         "the largest are divided by their sum: top-k with renormalisation"),
        (lambda m, x: (m.a(x).softmax(-1).topk(2).values * m.b(x)[..., :2]).sum(-1),
         {"a": linear(6, 6), "b": linear(6, 4)},
         lambda w, x: jax.nn.softmax(dense(w, "a", x)).max(-1) * dense(w, "b", x)[..., 0],
         "top-k takes the largest alone"),
        (lambda m, x: m.a(x) * (1 + m.b(x) ** 2), SQUARES,
         lambda w, x: dense(w, "a", x) / (1 + dense(w, "b", x) ** 2), "a quotient is taken for a product"),
        (lambda m, x: m.a(x) / (1 + m.b(x) ** 2), SQUARES,
         lambda w, x: dense(w, "a", x) * (1 + dense(w, "b", x) ** 2), "a product is taken for a quotient"),
        (lambda m, x: torch.min(m.a(x), m.b(x)), SQUARES,
         lambda w, x: jnp.maximum(dense(w, "a", x), dense(w, "b", x)), "the maximum is taken for the minimum"),
        (lambda m, x: m.a(x).amax(-1), SQUARES, lambda w, x: dense(w, "a", x).min(-1),
         "the minimum is taken for the maximum"),
        (gated, SQUARES, gating(one=0, sign=1), "a gate and 1 − the gate are exchanged"),
        (gated, SQUARES, gating(early=False), "a gate is applied after a product with a matrix, not before it,"),
        (lambda m, x: F.gelu(m.n(m.a(x))), {"a": linear(6, 6), "n": torch.nn.LayerNorm(6)},
         lambda w, x: normalize(jax.nn.gelu(dense(w, "a", x), False), 1e-5) * w["n.weight"] + w["n.bias"],
         "the activation stands before the norm, not after it,"),
        (lambda m, x: F.interpolate(m.a(x)[None], (3, 3), mode="bilinear"), {"a": linear(6, 6)},
         lambda w, x: jax.image.resize(dense(w, "a", x)[None], (1, 3, 3, 3), "linear"),
         "the resize is bilinear with antialias"),
        (lambda m, x: F.interpolate(m.a(x)[None], (9, 9), mode="bilinear", align_corners=True), {"a": linear(6, 6)},
         lambda w, x: jax.image.resize(dense(w, "a", x)[None], (1, 3, 9, 9), "linear"),
         "the resize is bilinear without antialias or corners aligned"),
    ],
)  # fmt: skip
def test_norms_state_spaces_and_resizing(torch_side: Any, parts: Any, port: Any, words: str) -> None:
    assert cause(Module(torch_side, **parts), port, TOKENS) == f"{words} in JAX {BOTH}"


@pytest.mark.parametrize("factor", [4, 8])
def test_of_two_mistakes_one_may_fit_the_given_numbers_alone(factor: int) -> None:
    """With the smaller factor only the fresh draws are above softplus's threshold."""

    def torch_side(m: Any, x: Any) -> Any:
        return m.c(F.silu(m.b(x)) * F.softplus(factor * F.silu(m.a(x))))

    def port(w: Any, x: Any) -> Any:
        return dense(w, "c", jax.nn.silu(dense(w, "b", x)) * jax.nn.softplus(factor * dense(w, "a", x)))

    module = Module(torch_side, a=linear(6, 6), b=linear(6, 6), c=linear(6, 3))
    others = "softplus is never linear, as PyTorch's is above its threshold, in JAX"
    assert cause(module, port, TOKENS) == f"silu is missing in JAX; and {others} {BOTH}"


def with_bias(x: Any, bias: Any) -> Any:
    return jax.nn.softmax(x @ x.mT + bias) @ x


def same_convolution(w: Any, x: Any) -> Any:
    return jax.lax.conv_general_dilated(x.mT, w["c.weight"], (1,), "SAME") + w["c.bias"][:, None]


def shuffled(w: Any, x: Any) -> Any:
    """The channels of each of 2 × 2 parts of a pixel, one part after the other."""
    pixels = dense(w, "a", x).mT.reshape(3, 2, 2, 2, 5, 1)
    return pixels.transpose(0, 3, 4, 1, 5, 2).reshape(3, 2, 10, 2)


def lstm(w: Any, x: Any, direction: str = "") -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        of = {name: w[f"r.{name}_l0{direction}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        gates = x @ of["weight_ih"].T + of["bias_ih"] + h @ of["weight_hh"].T + of["bias_hh"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (h := jax.nn.sigmoid(o) * jnp.tanh(c), c), h

    zeros = jnp.zeros((len(x), 4))
    return jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1), reverse=bool(direction))[1].swapaxes(0, 1)


def back_and_there(w: Any, x: Any) -> Any:
    return dense(w, "a", jnp.concatenate([lstm(w, x, "_reverse"), lstm(w, x)], -1))


NEAR = (torch.arange(5)[:, None] - torch.arange(5)).abs() * -0.5


@pytest.mark.parametrize(
    ("torch_side", "parts", "port", "words"),
    [
        (lambda m, x: (m.a(x) @ m.a(x).mT + NEAR).softmax(-1) @ m.a(x), {"a": linear(6, 6)},
         lambda w, x: with_bias(dense(w, "a", x), -NEAR.numpy()), "the second term of a sum has the other sign"),
        (lambda m, x: m.c(x.mT)[..., :5], {"c": torch.nn.Conv1d(6, 4, 4, padding=3)}, same_convolution,
         "both ends are cut off, not one,"),
        (lambda m, x: m.c(F.pad(x.mT, (2, 0))), {"c": torch.nn.Conv1d(6, 4, 3)}, same_convolution,
         "the padding stands at both ends, not at one,"),
        (lambda m, x: m.a(m.r(x)[0]),
         {"r": torch.nn.LSTM(6, 4, batch_first=True, bidirectional=True), "a": linear(8, 5)}, back_and_there,
         "the two directions of a recurrent layer are put together in the other order"),
        (lambda m, x: F.pixel_shuffle(m.a(x).mT[..., None], 2), {"a": linear(6, 8)}, shuffled,
         "the parts of a pixel stand before the channels, not behind them,"),
    ],
)  # fmt: skip
def test_signs_directions_and_pixels(torch_side: Any, parts: Any, port: Any, words: str) -> None:
    assert cause(Module(torch_side, **parts), port, TOKENS) == f"{words} in JAX {BOTH}"


# What fits by accident, and where exactly a mistake is


def test_nothing_is_cut_off_where_the_whole_axis_is_taken() -> None:
    module = Module(lambda m, x: m.a(x)[:, 1:].cumsum(1).mean(1), a=linear(6, 5))
    assert "cut off" not in cause(module, lambda w, x: dense(w, "a", x).cumsum(1).mean(1), TOKENS)
    assert cause(module, lambda w, x: dense(w, "a", x)[:, :-1].cumsum(1).mean(1), TOKENS) == (
        f"the other end is cut off in JAX {BOTH}"
    )


class Additive(nnx.Module):
    def __init__(self) -> None:
        self.q, self.k, self.v = (nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((6, 5), (6, 5), (5, 1)))

    def __call__(self, x: Any) -> Any:
        hidden = jnp.tanh(self.q(x))[:, :, None] + jnp.tanh(self.k(x))[:, None]
        return jax.nn.softmax(self.v(hidden)[..., 0]) @ x


def test_a_term_that_the_softmax_cancels_is_not_missing() -> None:
    def torch_side(module: Any, x: Any) -> Any:
        hidden = torch.tanh(module.q(x)[:, :, None] + module.k(x)[:, None])
        return module.v(hidden)[..., 0].softmax(-1) @ x

    module = Module(torch_side, q=linear(6, 5), k=linear(6, 5), v=linear(5, 1))
    assert cause(module, Additive(), TOKENS) == (
        f"tanh is applied to each term of a sum, and not to the sum, in JAX {BOTH}"
    )


class TwoNorms(nnx.Module):
    def __init__(self) -> None:
        self.first, self.a, self.last = (
            nnx.LayerNorm(6, rngs=nnx.Rngs(0)),
            nnx.Linear(6, 6, rngs=nnx.Rngs(0)),
            nnx.LayerNorm(6, rngs=nnx.Rngs(0)),
        )

    def __call__(self, x: Any) -> Any:
        return self.last(self.a(self.first(x)))


def test_one_mistake_in_modules_of_one_class_is_one() -> None:
    norms = {"first": torch.nn.LayerNorm(6), "a": linear(6, 6), "last": torch.nn.LayerNorm(6)}
    found = cause(Module(lambda m, x: m.last(m.a(m.first(x))), **norms), TwoNorms(), X)
    assert found == f"epsilon is 1e-06 in JAX, in first and last {BOTH}"


def test_an_epsilon_does_not_explain_running_statistics() -> None:
    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            return nn.BatchNorm(not train, momentum=0.99, epsilon=1e-3, name="bn")(x)

    module = Module(lambda m, x: m.bn(x), bn=torch.nn.BatchNorm1d(6))
    assert cause(module, Norm(), X, buffers=True) == (
        "epsilon is 0.001 in JAX "
        "(explains outputs and gradients on fresh draws, but not all that a step of training changes)"
    )


@pytest.mark.parametrize("wrong", [1, 2])
def test_the_line_tells_factors_apart(wrong: int) -> None:
    def torch_side(module: Any, x: Any) -> Any:
        scaled = module.a(x / 2)
        return torch.tanh(scaled) / 2

    def port(w: Any, x: Any) -> Any:
        return jnp.tanh(dense(w, "a", x / (1 if wrong == 1 else 2))) / (1 if wrong == 2 else 2)

    report = compare(Module(torch_side, a=linear(6, 6)), port, X, dtypes=("float64",))
    (found,) = report.divergence.causes
    line = torch_side.__code__.co_firstlineno + wrong
    text = "x / 2" if wrong == 1 else "torch.tanh(scaled) / 2"
    assert str(found) == f"the factor 2 is missing in JAX, at verdicts_test.py:{line}: {text}"


def in_place(module: Any, x: Any) -> Any:
    y = module.a(x) * 2
    y.unsqueeze_(0).transpose_(0, 1)
    return y.relu_()


def differentiated(module: Any, x: Any) -> Any:
    """Forces: the derivative of an energy by the input."""
    x = x.clone().requires_grad_()
    energy = (torch.tanh(module.a(x)) * 2).sum()
    return torch.autograd.grad(energy, x, create_graph=True)[0]


@pytest.mark.parametrize(
    ("compute", "port"),
    [
        (in_place, lambda w, x: jax.nn.relu(dense(w, "a", x))[:, None]),
        (differentiated, lambda w, x: jax.grad(lambda x: jnp.tanh(dense(w, "a", x)).sum())(x)),
    ],
)
def test_a_program_that_writes_in_place_or_differentiates_is_searched_as_others_are(compute: Any, port: Any) -> None:
    assert cause(Module(compute, a=linear(6, 6)), port, X) == f"the factor 2 is missing in JAX {BOTH}"


def test_without_a_known_mistake_it_says_which_step_to_print() -> None:
    def torch_side(module: Any, x: Any) -> Any:
        scores = module.a(x)
        module.dropped = torch.cos(scores)  # as of a pooler whose result nobody takes
        cubed = scores**3
        return torch.tanh(cubed)

    report = compare(Module(torch_side, a=linear(6, 6)), lambda w, x: jnp.tanh(dense(w, "a", x) ** 5), X)
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 3}: scores**3"
    assert f"print what goes into {line}, called at verdicts_test.py:" in str(report)
    said = "self.compute(self, *inputs) and what comes out, in both: JAX has the numbers that go in, perhaps in another"
    assert said in str(report)


def test_what_a_loop_reads_is_no_step_to_print() -> None:
    def torch_side(module: Any, xs: Any) -> Any:
        h = torch.zeros_like(xs[0])
        for x in xs:
            h = torch.tanh(module.a(h)) + x
        return h

    def port(w: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda h, x: (0.9 * jnp.tanh(dense(w, "a", h)) + x, None), jnp.zeros_like(xs[0]), xs)[0]

    report = compare(Module(torch_side, a=linear(6, 6)), port, TOKENS)
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 3}: torch.tanh(module.a(h))"
    assert f"print what goes into {line}" in str(report), report


def test_behind_complex_numbers_the_step_to_print_is_named() -> None:
    def torch_side(module: Any, x: Any) -> Any:
        power = torch.fft.rfft(x).abs() ** 3
        return module.a(torch.log1p(power))

    report = compare(
        Module(torch_side, a=linear(4, 3)), lambda w, x: dense(w, "a", jnp.log1p(jnp.abs(jnp.fft.rfft(x)))), X
    )
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 1}: torch.fft.rfft(x).abs() ** 3"
    assert f"print what goes into {line}" in str(report), report


LABELS, CLASS_WEIGHTS = np.array([2, -100, 1, 3]), torch.tensor([0.5, 1.0, 2.0, 4.0])


def not_by_weights(w: Any, x: Any) -> Any:
    kept = LABELS >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(dense(w, "a", x)[kept], LABELS[kept])
    return (losses * jnp.asarray(CLASS_WEIGHTS)[LABELS[kept]]).mean()


@pytest.mark.parametrize(
    ("compute", "size", "port", "words"),
    [
        (
            lambda module, x: torch.log(module.a(x).exp() + 1),
            (6, 4),
            lambda w, x: jnp.log10(jnp.exp(dense(w, "a", x)) + 1),
            "the logarithm is of base 10",
        ),
        (
            lambda module, x: module.a(torch.fft.rfft(x).abs() ** 2),
            (4, 4),
            lambda w, x: dense(w, "a", jnp.abs(jnp.fft.rfft(x))),
            "nothing is squared, as in a magnitude for a power,",
        ),
        (
            lambda module, x: module.a(torch.vmap(lambda row: torch.fft.rfft(row).abs().mean())(x)[:, None]),
            (1, 4),
            lambda w, x: dense(w, "a", jnp.abs(jnp.fft.rfft(x)).sum(-1, keepdims=True)),
            "a sum is taken for a mean",
        ),
        (
            lambda module, x: F.cross_entropy(module.a(x), torch.tensor(LABELS), CLASS_WEIGHTS.to(x.dtype)),
            (6, 4),
            not_by_weights,
            "the loss is divided by the number of labels, not by the sum of their weights",
        ),
    ],
)
def test_a_spectrum_or_a_weighted_loss(compute: Any, size: Any, port: Any, words: str) -> None:
    assert cause(Module(compute, a=linear(*size)), port, X) == f"{words} in JAX {BOTH}"


def test_all_factors_of_a_line_that_are_missing_are_named() -> None:
    module = Module(lambda module, x: torch.tanh(module.a(x)) * 2 * 3, a=linear(6, 6))
    words = cause(module, lambda w, x: jnp.tanh(dense(w, "a", x)), X)
    assert words == f"the factor 2 and 3 is missing in JAX {BOTH}"


@pytest.mark.parametrize("late", [False, True])
def test_a_part_of_what_jax_has_is_a_step_to_print_unless_it_is_taken_later(late: bool) -> None:
    def torch_side(module: Any, x: Any) -> Any:
        first = module.a(x)[:, 0]
        cubed = module.b(first) ** 3
        return torch.tanh(cubed)

    def port(w: Any, x: Any) -> Any:
        hidden = dense(w, "a", x)
        return jnp.tanh(dense(w, "b", hidden) ** 5)[:, 0] if late else jnp.tanh(dense(w, "b", hidden.mean(1)) ** 3)

    report = compare(Module(torch_side, a=linear(6, 6), b=linear(6, 6)), port, TOKENS)
    text = "module.b(first) ** 3" if late else "module.a(x)[:, 0]"
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 1 + late}: {text}"
    assert f"print what goes into {line}" in str(report), report


def test_heads_that_are_repeated_are_no_step_to_print() -> None:
    """As in attention whose queries share keys and values: JAX need not repeat them."""

    def torch_side(module: Any, x: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (-1, 3)).transpose(1, 2) for part in (module.q, module.k, module.v))
        k, v = (part.repeat_interleave(2, 1) for part in (k, v))
        weights = torch.sigmoid(q @ k.mT)
        return weights @ v

    def port(w: Any, x: Any) -> Any:
        q, k, v = (dense(w, name, x).reshape(*x.shape[:2], 2, -1, 3) for name in "qkv")
        weights = jnp.cos(jnp.einsum("bqkgd,bskd->bqkgs", q, k[..., 0, :]))
        return jnp.einsum("bqkgs,bskd->bkgqd", weights, v[..., 0, :]).reshape(len(x), 4, -1, 3)

    report = compare(Module(torch_side, q=linear(6, 12), k=linear(6, 6), v=linear(6, 6)), port, TOKENS)
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 3}: torch.sigmoid(q @ k.mT)"
    assert f"print what goes into {line}" in str(report), report


def test_free_places_of_a_cache_are_no_difference() -> None:
    def torch_side(module: Any, x: Any) -> Any:
        weights = (module.q(x) @ module.k(x).mT).softmax(-1)
        values = weights @ x
        return torch.sigmoid(values)

    def port(w: Any, x: Any) -> Any:
        keys, values = (jnp.pad(y, ((0, 0), (0, 2), (0, 0))) for y in (dense(w, "k", x), x))
        scores = dense(w, "q", x) @ keys.mT
        weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[1]) < x.shape[1], scores, -1e30), -1)
        return jax.nn.sigmoid(weights @ jnp.cos(values))

    report = compare(Module(torch_side, q=linear(6, 5), k=linear(6, 5)), port, TOKENS)
    line = f"verdicts_test.py:{torch_side.__code__.co_firstlineno + 2}: weights @ x"
    assert f"print what goes into {line}" in str(report), report

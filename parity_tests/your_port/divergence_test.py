"""The first tensor that differs is found wherever the fault stands: forward, in a loop, backward, or nowhere."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
from parity_tests import Case, JaxSide, Variant, compare, find_divergence, tap, torch_function, torch_module
from parity_tests.this_library.cases import find_case
from parity_tests.this_library.faults.fault import Fault, given
from parity_tests.this_library.sides import linen_module
from parity_tests.your_port.divergence import explain_difference
from parity_tests.your_port.measure.draw import Draw
from parity_tests.your_port.measure.jax_side import forget_programs
from parity_tests.your_port.measure.taps import Tensor, recording, tapped
from parity_tests.your_port.place.pairing import align

X = np.random.default_rng(0).normal(size=(3, 4))


def calls(trace: list[Tensor], name: str) -> list[np.ndarray]:
    return [x.value for x in trace if x.name == name]


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


@pytest.mark.usefixtures("place_alone")
def test_the_forward_pass_differs_between_two_taps() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        first = tap("first", jnp.tanh(inputs["x"]))
        second = tap("second", jnp.exp(first) + jnp.arange(4.0))
        return tap("third", second * first).sum(-1)

    found = find_divergence(case_of(port))
    assert found is not None
    assert (found.phase, found.tensor, found.agreed) == ("forward", "second", ("first",))
    assert found.symptoms == ("the difference is the same in every row: a bias",)
    assert "first difference: the forward pass at second, after first: error" in str(found)


def test_the_backward_pass_differs_where_a_gradient_is_stopped() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        first = tap("first", jnp.tanh(inputs["x"]))
        second = tap("second", jnp.exp(jax.lax.stop_gradient(first)))
        return tap("third", second * first).sum(-1)

    found = find_divergence(case_of(port))
    assert found is not None
    assert (found.phase, found.tensor, found.agreed) == ("backward", "gradient of x", ("result",))
    assert [cause.words for cause in found.causes] == ["no gradient flows through exp in JAX: stop_gradient"]


def test_a_mistake_that_the_first_draw_hides_is_placed_in_another_one() -> None:
    def draw(name: str, error: float) -> Draw:
        def port(weights: Any, inputs: Any, options: Any) -> Any:
            product = inputs["input"] @ weights["weight"].T
            return product + weights["bias"] + error * jax.lax.stop_gradient(product)

        torch_side, variant = torch_module(lambda options, inputs: torch.nn.Linear(4, 1)), Variant(name, {"input": X})
        return Draw(Case("hidden", (variant,), torch_side, JaxSide(port), inside="float32"), variant, "float64")

    def hide(name: str) -> float | None:
        """Return an error between what the first draw allows and what most draws do, if there is one."""
        whole = draw(name, 1e-6)
        first, median = (max(m.share for m in found) for found in (whole.measure(), whole.measure_draws()))
        return 1e-6 / (first * median) ** 0.5 if first < 0.95 * median else None

    name, error = next((name, error) for name in "abcdefghijklmnop" if (error := hide(name)))
    hidden = draw(name, error)
    assert not any(m.failed for m in hidden.measure())
    found = explain_difference(hidden, seconds=0)
    assert found is not None
    assert found.tensor == "result"
    assert found.failed


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


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(
    ("module", "tensor", "agreed"), [(AtOnce, "result", ("dense",)), (Scanned, "input of dense[1]", ("dense[0]",))]
)
def test_submodules_are_followed_call_by_call(module: type[nn.Module], tensor: str, agreed: tuple[str, ...]) -> None:
    torch_side = torch_module(lambda options, inputs: Steps())
    case = Case("steps", (Variant("random", {"x": X}),), torch_side, linen_module(lambda options, dtype: module()))
    found = find_divergence(case)
    assert found is not None
    assert (found.phase, found.tensor, found.agreed) == ("forward", tensor, agreed)


@pytest.mark.slow
def test_a_long_loop_is_followed_without_running_its_python_code_at_each_step() -> None:
    calls = 0

    class InTorch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            state = torch.zeros_like(x[0])
            for row in x:
                state = torch.tanh(self.mix(state) + row)
            return self.out(state)

    class InJax(nnx.Module):
        def __init__(self) -> None:
            self.mix, self.out = (nnx.Linear(3, size, rngs=nnx.Rngs(0)) for size in (3, 2))

        def __call__(self, x: Any) -> Any:
            def step(state: Any, row: Any) -> Any:
                nonlocal calls
                calls += 1
                return jnp.tanh(self.mix(state) + row), None

            state, _ = jax.lax.scan(step, jnp.zeros_like(x[0]), x)
            return self.out(jnp.where(state > 0.1, 0.1, state))

    report = compare(InTorch(), InJax(), np.random.default_rng(0).normal(size=(500, 2, 3)), dtypes=("float64",))
    assert "first difference: the forward pass at input of out, after mix[499]: error" in str(report)
    assert calls < 100


def z_before_r(x: Any) -> Any:
    return x[..., np.arange(x.shape[-1]).reshape(3, -1)[[1, 0, 2]].ravel()]


@pytest.mark.slow
def test_swapped_gates_of_the_encoder_are_found_and_named() -> None:
    case = find_case("Seq2SeqEncoder")
    forget_programs()
    swapped = given(**dict.fromkeys(("projected", "kernel_hh", "bias_hh"), z_before_r))
    with Fault("", case.name, swapped, "modules.recurrent:gru_step").planted():
        found = find_divergence(case, case.variants[-1])
    forget_programs()
    assert found is not None
    assert found.tensor.startswith("rnn")
    assert found.agreed == ("embedding",)
    assert [cause.words for cause in found.causes] == [
        "gates in another order: for r, z, n JAX takes PyTorch's z, r, n"
    ]


def test_modules_in_the_decoder_s_loop_keep_their_path_and_are_called_step_by_step() -> None:
    decoder = Seq2SeqAttentionDecoder(5, 4, 4)
    model = EncoderDecoder(Seq2SeqEncoder(5, 4, 4), decoder)
    tokens = jnp.ones((2, 3), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)
    with recording() as trace:
        model.apply(params, tokens, tokens)
    assert len(calls(trace, "decoder.attention.W_q")) == 3
    assert len(calls(trace, "decoder.attention.W_k")) == 1
    assert not [x.of for x in trace if not x.of.removeprefix("input of ").startswith(("encoder", "decoder"))]


class Mixer(torch.nn.Module):
    """A block whose submodules have other names in the port; the first is right, the second inherits an error."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.act = torch.nn.ReLU(inplace=True)
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return x + self.out(self.act(self.norm(x)))


class Mixers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Mixer(), Mixer()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class NnxMixer(nnx.Module):
    def __init__(self, weights: dict[str, Any]) -> None:
        self.norm = nnx.LayerNorm(4, epsilon=1e-5, param_dtype=X.dtype, rngs=nnx.Rngs(0))
        self.proj = nnx.Linear(4, 4, param_dtype=X.dtype, rngs=nnx.Rngs(0))
        self.norm.scale[...], self.norm.bias[...] = weights["norm.weight"], weights["norm.bias"]
        self.proj.kernel[...], self.proj.bias[...] = weights["out.weight"].T, weights["out.bias"]

    def __call__(self, x: Any) -> Any:
        return x + self.proj(jax.nn.silu(self.norm(x)))


class NnxMixers(nnx.Module):
    def __init__(self, weights: dict[str, Any]) -> None:
        layers = [{n[9:]: x for n, x in weights.items() if n.startswith(f"layers.{i}.")} for i in range(2)]
        self.blocks = nnx.List(map(NnxMixer, layers))

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = jax.vmap(block)(x)
        return x


def nnx_mixers(weights: Any, inputs: Any, options: Any) -> Any:
    with tapped(NnxMixers(weights)) as model:
        return model(inputs["x"])


@pytest.mark.usefixtures("place_alone")
def test_what_inherits_an_error_is_cleared_and_what_parts_inside_is_found() -> None:
    """Its record of the norm must be the norm's, which the activation changes in place afterwards."""
    side = torch_module(lambda options, inputs: Mixers())
    paths = {
        f"blocks.{i}{inner[0]}": f"layers.{i}{inner[1]}" for i in range(2) for inner in (("", ""), (".proj", ".out"))
    }
    jax_side = JaxSide(nnx_mixers, paths=paths)
    found = find_divergence(Case("mixers", (Variant("random", {"x": X}),), side, jax_side))
    assert found is not None
    assert (found.module, found.in_jax) == ("layers.0", "blocks.0")
    assert (found.tensor, found.agreed) == ("input of layers.0.out", ("layers.0.norm",))


def test_in_a_function_the_submodule_is_found_whose_result_is_not_computed() -> None:
    def port(weights: Any, inputs: Any, options: Any) -> Any:
        x = inputs["x"]
        for i in range(2):
            w = {name[9:]: weight for name, weight in weights.items() if name.startswith(f"layers.{i}.")}
            variance = x.var(-1, keepdims=True, ddof=1 if i == 1 else 0)
            normal = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(variance + 1e-5)
            y = jax.nn.relu(normal * w["norm.weight"] + w["norm.bias"])
            x = x + y @ w["out.weight"].T + w["out.bias"]
        return x

    side = torch_module(lambda options, inputs: Mixers())
    found = find_divergence(Case("function", (Variant("random", {"x": X}),), side, JaxSide(port)))
    assert found is not None
    assert found.module == "layers.1.norm"
    assert found.causes[0].words.startswith("the norm's variance is divided by n − 1 in JAX")


def test_equinox_submodules_are_recorded_row_by_row_and_under_vmap() -> None:
    eqx = pytest.importorskip("equinox")
    mlp = eqx.nn.MLP(4, 2, 3, 1, key=jax.random.key(0))
    for run in (jax.vmap(mlp), lambda x: jnp.stack([mlp(row) for row in x])):
        with recording() as trace, tapped(mlp):
            run(jnp.asarray(X))
        assert [x.shape for x in calls(trace, "layers.0")] in ([(3, 3)], [(3,)] * 3)
        rows = calls(trace, "layers.1")
        np.testing.assert_array_equal(np.stack(align([np.stack(rows).reshape(3, 2)], rows)), rows)


@pytest.mark.parametrize(
    "transform",
    [
        jax.vmap,
        lambda f: jax.vmap(jax.vmap(f)),
        jax.checkpoint,
        lambda f: lambda x: jax.lax.map(f, x),
        lambda f: jax.vmap(jax.checkpoint(f)),
    ],
)
def test_a_tap_records_values_inside_of_transformations(transform: Any) -> None:
    x = jnp.asarray(X, "float32")
    port = transform(lambda x: tap("x", jnp.sin(x)) * 2)
    with recording() as trace:
        port(x)
    np.testing.assert_allclose(np.stack(calls(trace, "x")).reshape(X.shape), np.sin(X), rtol=1e-6)
    with recording():
        np.testing.assert_allclose(jax.grad(lambda x: port(x).sum())(x), 2 * np.cos(X), rtol=1e-6)


def test_a_case_without_float64_is_searched_in_its_widest_dtype() -> None:
    variant = Variant("narrow", {"x": X}, dtypes=("float32",))
    case = Case("stages", (variant,), torch_function(torch_stages), JaxSide(lambda w, inputs, o: inputs["x"].sum(-1)))
    found = find_divergence(case)
    assert found is not None
    assert found.dtype == "float32"
    with pytest.raises(ValueError, match="stages has no inputs in float64"):
        find_divergence(case, dtype="float64")


def test_a_tap_outside_a_recording_is_the_identity() -> None:
    x = jnp.ones(3)
    assert tap("x", x) is x
    with recording() as trace:
        tap("x", x)
    assert [x.name for x in trace] == ["x"]


# Several blocks of a kind

DEPTH, WRONG = 4, 2


class TorchMlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.proj = torch.nn.Linear(4, 5), torch.nn.Linear(5, 4)

    def forward(self, x: Any) -> Any:
        return self.proj(torch.nn.functional.gelu(self.fc(x)))


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.mlp = torch.nn.LayerNorm(4), TorchMlp()

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.ln(x))


class TorchTower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h, self.ln_f = torch.nn.ModuleList([TorchBlock() for _ in range(DEPTH)]), torch.nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class LinenMlp(nn.Module):
    wrong: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4, name="proj")(nn.gelu(nn.Dense(5, name="fc")(x), approximate=self.wrong))


class LinenBlock(nn.Module):
    bug: str = ""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = LinenMlp(self.bug == "gelu", name="mlp")(nn.LayerNorm(1e-5, name="ln")(x))
        return x + (1.03 if self.bug == "unknown" else 1) * y


class LinenBlocks(nn.Module):
    bugs: tuple[str, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, bug in enumerate(self.bugs):
            x = LinenBlock(bug, name=str(i))(x)
        return x


class LinenTower(nn.Module):
    """Its blocks are in a submodule that is called, which PyTorch's list of them is not."""

    bugs: tuple[str, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.LayerNorm(1e-5, name="ln_f")(LinenBlocks(self.bugs, name="h")(x))


class LinenWrittenOut(nn.Module):
    """Its blocks are no submodules: the outer module adds up the residual stream."""

    bugs: tuple[str, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for i, bug in enumerate(self.bugs):
            y = LinenMlp(bug == "gelu", name=f"h_{i}_mlp")(nn.LayerNorm(1e-5, name=f"h_{i}_ln")(x))
            x = x + (1.03 if bug == "unknown" else 1) * y
        return nn.LayerNorm(1e-5, name="ln_f")(x)


class LinenScanned(nn.Module):
    """Its blocks are one, with all weights stacked."""

    bugs: tuple[str, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def step(block: Any, x: Any, _: Any) -> Any:
            return block(x), None

        scan = nn.scan(step, variable_axes={"params": 0}, split_rngs={"params": True}, length=len(self.bugs))
        return nn.LayerNorm(1e-5, name="ln_f")(scan(LinenBlock(self.bugs[0], name="h"), x, None)[0])


def in_one(bug: str) -> tuple[str, ...]:
    return tuple(bug if i == WRONG else "" for i in range(DEPTH))


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(
    ("port", "bugs", "module", "tensor"),
    [
        (LinenTower, in_one("gelu"), "h.2.mlp", "input of h.2.mlp.proj"),
        (LinenTower, in_one("unknown"), "h.2", "h.2"),
        (LinenTower, ("unknown",) * DEPTH, "h.0", "h.0"),
        (LinenWrittenOut, in_one("unknown"), "", "input of h.3.ln"),
        (LinenScanned, ("gelu",) * DEPTH, "h.0.mlp", "input of h.0.mlp.proj"),
    ],
)
def test_of_several_blocks_the_one_that_differs_is_named(
    port: Any, bugs: tuple[str, ...], module: str, tensor: str
) -> None:
    names = {"h_{i}_mlp": "h.{i}.mlp", "h_{i}_ln": "h.{i}.ln"} if port is LinenWrittenOut else None
    found = compare(TorchTower(), port(bugs), (X,), names=names, gradients=False, dtypes=("float64",)).divergence
    assert found is not None
    assert (found.module, found.tensor) == (module, tensor)


# Submodules of the same name that are given other things


class TorchBranch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.drop, self.act = torch.nn.Dropout(0.5), torch.nn.GELU()

    def forward(self, x: Any) -> Any:
        return x + self.drop(self.out(self.act(x + self.drop(self.query(x) / 2))))


class TorchBranches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([TorchBranch(), TorchBranch()])

    def forward(self, x: Any) -> Any:
        return self.blocks[1](self.blocks[0](x))


class NnxAdd(nnx.Module):
    def __call__(self, x: Any, branch: Any) -> Any:
        return x + branch


class NnxHalf(nnx.Linear):
    """Its result is scaled already."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x) / 2


class NnxAct(nnx.Module):
    def __call__(self, x: Any) -> Any:
        return jax.nn.gelu(x)


class NnxBranch(nnx.Module):
    def __init__(self) -> None:
        self.query, self.out = NnxHalf(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.drop, self.act = NnxAdd(), NnxAct()

    def __call__(self, x: Any) -> Any:
        return self.drop(x, self.out(self.act(self.drop(x, self.query(x)))))


class NnxBranches(nnx.Module):
    def __init__(self) -> None:
        self.blocks = nnx.List([NnxBranch(), NnxBranch()])

    def __call__(self, x: Any) -> Any:
        return self.blocks[1](self.blocks[0](x))


@pytest.mark.usefixtures("place_alone")
def test_a_tensor_that_differs_where_nothing_reads_it_is_not_the_place() -> None:
    def in_torch(inputs: Any, _: Any) -> Any:
        hidden = tap("hidden", inputs["x"].tanh() * inputs["mask"])
        pooled = tap("pooled", (hidden * inputs["mask"]).sum(1))
        return tap("last", pooled.exp()).sum()

    def in_jax(_: Any, inputs: Any, options: Any) -> Any:
        hidden = tap("hidden", jnp.tanh(inputs["x"]))
        pooled = tap("pooled", (hidden * inputs["mask"]).sum(1))
        return tap("last", jnp.exp2(pooled)).sum()

    mask = (np.arange(4) < np.array([[3], [2], [4]])).astype(float)
    found = find_divergence(
        Case("padded", (Variant("random", {"x": X, "mask": mask}),), torch_function(in_torch), JaxSide(in_jax))
    )
    assert found is not None
    assert found.tensor == "last"


def test_a_tensor_from_which_right_ones_follow_is_not_the_place() -> None:
    found = compare(TorchBranches(), NnxBranches(), X, gradients=False, dtypes=("float64",)).divergence
    assert found is not None
    assert (found.module, found.tensor) == ("blocks.0.act", "blocks.0.act")


# A result in another order of axes


class TorchSquare(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.out(self.fc(x).tanh())


class NnxTurned(nnx.Module):
    def __init__(self) -> None:
        self.linear = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.linear(x).T


class NnxSquare(nnx.Module):
    def __init__(self) -> None:
        self.fc, self.out = NnxTurned(), nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.out(jnp.tanh(self.fc(x)))


def turned(weights: Any, x: Any) -> Any:
    y = jnp.tanh(weights["fc.weight"] @ x.T)
    return y @ weights["out.weight"].T + weights["out.bias"]


SQUARE = np.random.default_rng(1).normal(size=(4, 4))


@pytest.mark.usefixtures("place_alone")
@pytest.mark.parametrize(
    ("port", "layout", "expected"),
    [
        (NnxSquare(), None, ("fc", "fc")),
        (NnxSquare(), {"fc": (1, 0)}, ("", "input of out")),
        (turned, None, ("fc", "result")),
    ],
)
def test_a_transposed_result_is_an_error_unless_the_layout_says_so(port: Any, layout: Any, expected: Any) -> None:
    layout = {"*kernel": "transposed", **(layout or {})}
    found = compare(TorchSquare(), port, (SQUARE,), layout=layout, gradients=False, dtypes=("float64",)).divergence
    assert found is not None
    assert (found.module, found.tensor) == expected

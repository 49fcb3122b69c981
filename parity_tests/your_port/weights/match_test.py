"""Weights find each other by name, shape and layout; the map says how."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx

from parity_tests.your_port.weights.adapters import flax_role, make_port
from parity_tests.your_port.weights.match import match_weights
from parity_tests.your_port.weights.original import Inputs
from parity_tests.your_port.weights.torch_program import describe_weights
from parity_tests.your_port.weights.weight_map import Leaf, WeightMap, match_paths

Shape = tuple[int, ...]


def lines(module: torch.nn.Module, shapes: dict[str, Shape], **options: Any) -> dict[str, str]:
    leaves = {path: Leaf(shape) for path, shape in shapes.items()}
    found = match_weights(describe_weights(module), leaves, flax_role, **options)
    return {jax: f"{torch}: {how}" for jax, _, torch, how in found.lines()}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = torch.nn.MultiheadAttention(4, 2)
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(4), torch.nn.LayerNorm(4)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))


class Model(torch.nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.transformer = torch.nn.ModuleDict({"h": torch.nn.ModuleList([Block() for _ in range(layers)])})


BLOCK: dict[str, Shape] = {
    "attention.query.kernel": (4, 2, 2),
    "attention.query.bias": (2, 2),
    "attention.out.kernel": (2, 2, 4),
    "norm1.scale": (4,),
    "norm2.scale": (4,),
    "mlp.Dense_0.kernel": (4, 4),
    "mlp.Dense_1.kernel": (4, 4),
}


def test_a_transformer_s_names_are_found() -> None:
    found = lines(Model(), {f"h_{i}.{path}": shape for i in range(2) for path, shape in BLOCK.items()})
    for i in range(2):
        torch_block = f"transformer.h.{i}"
        reshaped = "transposed, reshaped"
        assert found[f"h_{i}.attention.query.kernel"] == f"{torch_block}.attn.in_proj_weight[0/3]: {reshaped}"
        assert found[f"h_{i}.attention.query.bias"] == f"{torch_block}.attn.in_proj_bias[0/3]: as it is, reshaped"
        assert found[f"h_{i}.attention.out.kernel"] == f"{torch_block}.attn.out_proj.weight: {reshaped}"
        assert found[f"h_{i}.norm2.scale"] == f"{torch_block}.ln_2.weight: as it is"
        assert found[f"h_{i}.mlp.Dense_1.kernel"] == f"{torch_block}.mlp.2.weight: transposed"


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output, self.layernorm_before = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
        self.layernorm_after = torch.nn.LayerNorm(4)


def test_the_weights_of_a_norm_stay_together() -> None:
    norms: dict[str, Shape] = {f"norm{i}.{leaf}": (4,) for i in (1, 2) for leaf in ("bias", "scale")}
    blocks: dict[str, Shape] = {f"layers.{i}.{path}": shape for i in range(3) for path, shape in norms.items()}
    layers = torch.nn.ModuleDict({"layer": torch.nn.ModuleList([Encoder() for _ in range(3)])})
    layers["layernorm"] = torch.nn.LayerNorm(4)
    found = lines(layers, {"ln_post.bias": (4,), "ln_post.scale": (4,), **blocks})
    for i in range(3):
        for ours, theirs in (("norm1", "layernorm_before"), ("norm2", "layernorm_after")):
            name = f"layer.{i}.{theirs}"
            guessed = "as it is; guessed: by size and order alone"
            assert found[f"layers.{i}.{ours}.scale"] == f"{name}.weight: {guessed}"
            assert found[f"layers.{i}.{ours}.bias"] == f"{name}.bias: {guessed}"
    assert found["ln_post.scale"] == "layernorm.weight: as it is"


class Gated(torch.nn.Module):
    """The names of transformers; the names of Meta's own code are in the test."""

    def __init__(self) -> None:
        super().__init__()
        for name, sizes in {"gate": (4, 6), "up": (4, 6), "down": (6, 4)}.items():
            setattr(self, f"{name}_proj", torch.nn.Linear(*sizes, bias=False))
        self.q_proj, self.o_proj = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        self.input_layernorm, self.post_attention_layernorm = torch.nn.RMSNorm(4), torch.nn.RMSNorm(4)


def test_a_kernel_stays_transposed_where_its_shape_fits_another_layer_as_it_is() -> None:
    shapes: dict[str, Shape] = {f"{name}.kernel": (4, 4) for name in ("wq", "wo")}
    shapes |= {"w1.kernel": (4, 6), "w2.kernel": (6, 4), "w3.kernel": (4, 6)}
    shapes |= {f"{name}.weight": (4,) for name in ("attention_norm", "ffn_norm")}
    found = lines(Gated(), shapes, by_order=True)
    guessed = "guessed: by size and order alone"
    assert found == {
        **{f"w{name}.kernel": f"{name}_proj.weight: transposed" for name in "qo"},
        "w1.kernel": f"gate_proj.weight: transposed; {guessed}",
        "w2.kernel": "down_proj.weight: transposed",
        "w3.kernel": f"up_proj.weight: transposed; {guessed}",
        "attention_norm.weight": f"input_layernorm.weight: as it is; {guessed}",
        "ffn_norm.weight": f"post_attention_layernorm.weight: as it is; {guessed}",
    }


def test_a_bias_does_not_go_to_another_layer() -> None:
    """The second layer has a bias in PyTorch, and the first in JAX."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), torch.nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"JAX      a\.bias \[4\]\n  PyTorch  1\.bias \[4\]"):
        lines(module, {"a.kernel": (3, 4), "a.bias": (4,), "b.kernel": (4, 4)})


def test_a_bias_of_a_transposed_convolution_is_not_the_norm_s_behind_it() -> None:
    module = torch.nn.ModuleDict({"up": torch.nn.ConvTranspose2d(3, 6, 2), "norm": torch.nn.GroupNorm(2, 6)})
    shapes: dict[str, Shape] = {"up.kernel": (2, 2, 6, 3), "up.bias": (6,), "norm.scale": (6,), "norm.bias": (6,)}
    found = lines(module, shapes)
    assert [found[f"{name}.bias"] for name in module] == [f"{name}.bias: as it is" for name in module]


def test_a_sibling_without_a_number_is_the_first_one() -> None:
    shapes: dict[str, Shape] = {f"net.~.linear{i}.w": (4, 4) for i in ("", *(f"_{i}" for i in range(1, 12)))}
    module = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(12)))
    found = lines(module, dict(sorted(shapes.items())))
    assert found == {path: f"{i}.weight: as it is" for i, path in enumerate(shapes)}


def test_weights_in_a_dict_are_taken_in_the_order_in_which_they_were_defined() -> None:
    first, last = ({"scale": np.ones(4), "bias": np.ones(4)} for _ in range(2))
    variables = {"pre": [first], "mid": {"b": last, "a": last}}
    port = make_port(lambda weights, x: x, None, variables, Inputs({}, (), {}), {}, {})
    module = torch.nn.ModuleList(torch.nn.LayerNorm(4) for _ in range(3))
    found = match_weights(describe_weights(module), port.leaves, port.role)
    in_order = [f"{path}.{leaf}" for path in ("pre.0", "mid.b", "mid.a") for leaf in ("scale", "bias")]
    assert [*found.entries] == in_order


def test_norms_of_nnx_are_taken_in_the_order_in_which_they_were_defined() -> None:
    class JaxProgram(nnx.Module):
        def __init__(self) -> None:
            self.pre, self.mid = nnx.LayerNorm(4, rngs=nnx.Rngs(0)), nnx.LayerNorm(4, rngs=nnx.Rngs(0))

    class Layers(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([JaxProgram(), JaxProgram()])

    layer = torch.nn.ModuleDict({"first": torch.nn.LayerNorm(4), "last": torch.nn.LayerNorm(4)})
    for model, module, inside in (
        (JaxProgram(), layer, ""),
        (Layers(), torch.nn.ModuleList([layer, copy.deepcopy(layer)]), "1."),
    ):
        port = make_port(model, lambda module, x: x, None, Inputs({}, (), {}), {}, {})
        found = match_weights(describe_weights(module), port.leaves, port.role)
        path = inside and f"layers.{inside}"
        assert str(found.entries[f"{path}pre.scale"].source) == f"{inside}first.weight"
        assert str(found.entries[f"{path}mid.bias"].source) == f"{inside}last.bias"


def test_another_size_is_an_error_that_asks_for_it() -> None:
    with pytest.raises(ValueError, match=r"kernel \[3, 5\]\n  PyTorch  weight \[4, 3\]\n.* the same sizes"):
        lines(torch.nn.Linear(3, 4, bias=False), {"kernel": (3, 5)})


def test_names_decide() -> None:
    shapes: dict[str, Shape] = {f"stage{i}.mlp.Dense_0.kernel": (4, 4) for i in "ab"}
    names = {"stagea": "transformer.h.1", "stage{i}": "transformer.h.0"}
    found = lines(Model(), shapes, names={"stagea": names["stagea"], "stageb": names["stage{i}"]})
    assert found["stagea.mlp.Dense_0.kernel"] == "transformer.h.1.mlp.0.weight: transposed"
    found = lines(Model(), {"blocks.0.w": (4, 4), "blocks.1.w": (4, 4)}, names={"blocks.{i}.w": "h.{i}.mlp.2.weight"})
    assert found["blocks.1.w"].startswith("transformer.h.1.mlp.2.weight")


@pytest.mark.parametrize(("kind", "gates", "bias"), [(torch.nn.LSTM, 4, "dense_h"), (torch.nn.GRU, 3, "dense_i")])
def test_recurrent_layers_of_one_size_know_their_inputs_from_their_states(kind: Any, gates: int, bias: str) -> None:
    shapes: dict[str, Shape] = {f"{i}.cell.dense_{part}.kernel": (4, 4 * gates) for i in range(2) for part in "ih"}
    biases: dict[str, Shape] = {f"{i}.cell.{bias}.bias": (4 * gates,) for i in range(2)}
    found = lines(torch.nn.ModuleDict({"rnn": kind(4, 4, num_layers=2)}), {**shapes, **biases})
    for i in range(2):
        for part in "ih":
            assert found[f"{i}.cell.dense_{part}.kernel"] == f"rnn.weight_{part}h_l{i}: transposed"


def test_parts_sums_and_several_in_one() -> None:
    gru = torch.nn.GRU(3, 5)
    gates = lines(gru, {"cell.in.kernel": (3, 5), "cell.hz.kernel": (5, 5), "cell.hn.bias": (5,)})
    assert gates["cell.in.kernel"] == "weight_ih_l0[2/3]: transposed"
    assert gates["cell.hz.kernel"] == "weight_hh_l0[1/3]: transposed"
    assert gates["cell.hn.bias"] == "bias_hh_l0[2/3]: as it is"
    summed = lines(gru, {"b": (15,)}, names={"b": "bias_ih_l0 + bias_hh_l0"})
    assert summed["b"] == "bias_ih_l0 + bias_hh_l0: as it is"
    blocks = torch.nn.ModuleDict({name: torch.nn.Linear(4, 2) for name in ("q", "k", "v")})
    packed = lines(blocks, {"qkv.kernel": (4, 6), "qkv.bias": (6,)}, names={"qkv": ["q", "k", "v"]})
    assert packed == {
        "qkv.kernel": "q.weight, k.weight, v.weight: transposed",
        "qkv.bias": "q.bias, k.bias, v.bias: as it is",
    }


def test_layers_under_a_scan_are_stacked_and_filled() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(4, 3) for _ in range(12)))
    found = match_weights(describe_weights(module), {"layers.kernel": Leaf((12, 4, 3))}, flax_role)
    weights = {name: x.detach().numpy() for name, x in module.named_parameters()}
    placed = found.place(weights)["layers.kernel"]
    np.testing.assert_array_equal(placed[10], weights["10.weight"].T)
    assert [str(piece) for piece in found.left_in_torch] == [f"{i}.bias" for i in range(12)]


def test_tied_weights_fill_two_places() -> None:
    model = torch.nn.ModuleDict({"emb": torch.nn.Embedding(5, 4), "head": torch.nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["emb"].weight
    found = lines(model, {"emb.embedding": (5, 4), "head.kernel": (4, 5)})
    assert found == {"emb.embedding": "emb.weight: as it is", "head.kernel": "emb.weight: transposed"}


def test_the_second_name_of_a_weight_comes_after_every_other_weight() -> None:
    layer = torch.nn.Linear(4, 4)
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer, layer, torch.nn.Linear(4, 4)])})
    found = lines(model, {"layers.0.kernel": (4, 4), "layers.2.kernel": (4, 4)})
    assert found["layers.0.kernel"] == "layers.0.weight: transposed"
    assert found["layers.2.kernel"] == "layers.2.weight: transposed"


@pytest.mark.parametrize(
    ("module", "jax", "how"),
    [
        (torch.nn.Conv2d(2, 3, 3), (3, 3, 2, 3), "channels last"),
        (torch.nn.Conv1d(3, 3, 3), (3, 3, 3), "channels last"),
        (torch.nn.ConvTranspose2d(2, 3, 4), (4, 4, 2, 3), "channels last, flipped"),
        (torch.nn.Embedding(4, 4), (4, 4), "as it is"),
    ],
)
def test_layouts_of_layers(module: torch.nn.Module, jax: Shape, how: str) -> None:
    assert lines(module, {"kernel": jax})["kernel"] == f"weight: {how}"


def test_channels_last_everywhere_leave_a_square_kernel_transposed() -> None:
    assert lines(torch.nn.Linear(4, 4, bias=False), {"kernel": (4, 4)}, layouts={"*": "NHWC"}) == {
        "kernel": "weight: transposed"
    }


def test_a_bias_follows_its_kernel() -> None:
    """Dense_0 is the outer one of `Dense(6)(Dense(6)(x))`, and only its kernel shows that."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 6))
    shapes: dict[str, Shape] = {"Dense_0.kernel": (6, 6), "Dense_0.bias": (6,)}
    found = lines(module, {**shapes, "Dense_1.kernel": (4, 6), "Dense_1.bias": (6,)})
    assert found["Dense_0.bias"] == "1.bias: as it is"


def test_layers_counted_from_one_and_blocks_counted_through() -> None:
    """PyTorch's layer2.0.conv1 is Block_1.Conv_0 in Linen; only the first layer of a block has a shape of its own."""

    def block(size: int) -> torch.nn.ModuleDict:
        return torch.nn.ModuleDict({f"conv{i}": torch.nn.Conv1d(size if i == 1 else 4, 4, 3) for i in (1, 2, 3)})

    module = torch.nn.ModuleDict({f"layer{i}": torch.nn.Sequential(block(i)) for i in (1, 2)})
    shapes: dict[str, Shape] = {
        f"Block_{b}.Conv_{i}.kernel": (3, b + 1 if i == 0 else 4, 4) for b in (0, 1) for i in (0, 1, 2)
    }
    found = lines(module, shapes)
    for b in (0, 1):
        for i in (0, 1, 2):
            assert found[f"Block_{b}.Conv_{i}.kernel"] == f"layer{b + 1}.0.conv{i + 1}.weight: channels last"


def test_blocks_that_differ_in_size_alone_are_told_apart() -> None:
    """PyTorch's layer2.0 is Bottleneck_3 in Linen, which its modules show and not its name."""

    def block(inputs: int, width: int, first: bool) -> torch.nn.ModuleDict:
        sizes = ((inputs, width, 1), (width, width, 3), (width, 4 * width, 1))
        layers: dict[str, torch.nn.Module] = {
            f"conv{i + 1}": torch.nn.Conv1d(*size, bias=False) for i, size in enumerate(sizes)
        }
        if first:
            layers["downsample"] = torch.nn.Sequential(torch.nn.Conv1d(inputs, 4 * width, 1, bias=False))
        return torch.nn.ModuleDict(layers)

    layers, names, inputs = torch.nn.ModuleDict(), {}, 4
    for stage, (width, depth) in enumerate(((4, 3), (8, 4), (16, 6)), 1):
        layers[f"layer{stage}"] = torch.nn.Sequential()
        for number in range(depth):
            layers[f"layer{stage}"].append(block(inputs, width, number == 0))
            inputs = 4 * width
            kernels = [*("conv1", "conv2", "conv3"), *(["downsample.0"] if number == 0 else [])]
            before = len({name.partition(".")[0] for name in names})
            names |= {f"Bottleneck_{before}.Conv_{k}": f"layer{stage}.{number}.{n}" for k, n in enumerate(kernels)}
    state = layers.state_dict()
    shapes = {path: tuple(reversed(state[f"{name}.weight"].shape)) for path, name in names.items()}
    found = lines(layers, {f"{path}.kernel": shape for path, shape in shapes.items()})
    assert {path.removesuffix(".kernel"): text.partition(".weight")[0] for path, text in found.items()} == names


def test_an_open_layout_is_tried() -> None:
    class Hand(torch.nn.Module):
        def __init__(self, *shapes: Shape) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def only_turned(weight_map: WeightMap) -> float:
        return float("transposed" not in str(weight_map))

    alone = match_weights(describe_weights(Hand((4, 4))), {"w": Leaf((4, 4))}, flax_role)
    assert "transposed; agrees when tried" in str(alone.choose(only_turned))
    assert "as it is; guessed: none of 2 ways agrees" in str(alone.choose(lambda _: 1.0))

    def mostly_turned(weight_map: WeightMap) -> float:
        return 0.1 + abs(str(weight_map).count("transposed") - 11)

    leaves = {f"{i}.w{i}": Leaf((4, 4)) for i in range(13)}
    many = match_weights(describe_weights(Hand(*[(4, 4)] * 13)), leaves, flax_role).choose(mostly_turned)
    assert str(many).count("transposed; guessed: none of 24 ways agrees; 8168 were not tried") == 11


def test_submodules_with_the_same_weights_are_found() -> None:
    shapes = {
        f"h_{i}.mlp.Dense_{k}.{leaf}": Leaf((4, 4) if leaf == "kernel" else (4,))
        for i in range(2)
        for k in range(2)
        for leaf in ("kernel", "bias")
    }
    weights = describe_weights(Model())
    found = match_paths(weights, match_weights(weights, shapes, flax_role))
    assert found["h_1.mlp"] == "transformer.h.1.mlp"
    assert found["h_0.mlp.Dense_1"] == "transformer.h.0.mlp.2"
    assert "h_0" not in found  # PyTorch's has more weights


def test_equal_names_weigh_more_than_the_order_of_definition() -> None:
    """As in ALBERT, whose layer defines its last norm first."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full_layer_norm = torch.nn.LayerNorm(4)
            self.attention = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(4)})

    prefix = "encoder.layer_groups.0.layers.0"
    outer = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Layer()])})
    model = torch.nn.ModuleDict({"encoder": torch.nn.ModuleDict({"layer_groups": torch.nn.ModuleList([outer])})})
    paths = [f"{prefix}.{part}" for part in ("attention.norm", "full_layer_norm")]
    found = lines(model, {f"{path}.{role}": (4,) for path in paths for role in ("scale", "bias")})
    for path in paths:
        assert found[f"{path}.scale"] == f"{path}.weight: as it is"
        assert found[f"{path}.bias"] == f"{path}.bias: as it is"

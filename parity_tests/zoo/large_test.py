"""A large model is compared from a folder, in which PyTorch's side lies tensor by tensor."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parity_tests import GoldenError, compare, load_golden
from parity_tests.your_port.dump import dump_large
from parity_tests.zoo.large import NnxLlama, Sizes, nnx_llama, torch_llama

SIZES = Sizes(vocab=50, width=16, hidden=40, layers=3, heads=4, groups=2)
IDS = np.random.default_rng(0).integers(0, SIZES.vocab, (2, 9))
FACTS = {"versions": {"torch": torch.__version__}}


def dumped(folder: Path, dtype: str = "float32", **options) -> Path:
    torch.manual_seed(0)
    assert tuple(dump_large(torch_llama(SIZES, dtype), IDS, folder / "torch", FACTS, **options)) == (dtype,)
    return folder / "torch"


def lines(report) -> list[str]:
    return [line for line in str(report).splitlines() if not line.startswith("  worst")]


def test_a_right_port_agrees_and_a_mistake_is_located(tmp_path):
    folder = dumped(tmp_path)
    weights = "  weights: 30 placed (print(report.map) shows how)"
    assert lines(compare(folder, nnx_llama(SIZES, "float32"))) == [
        "TorchLlama agrees (1 output, 0 gradients; float32)", weights
    ]  # fmt: skip
    head, place, part, cause, *rest = lines(compare(folder, nnx_llama(SIZES, "float32", wrong=1)))
    assert head == "TorchLlama DIFFERS in 1 of 1 tensors (1 output, 0 gradients; float32)"
    where = "the forward pass at input of layers.1.self_attn.o_proj, after layers.1.self_attn.v_proj: error "
    assert place.startswith(f"  first difference: {where}")
    assert part == "  looks like: only part of it differs: 144 of 288 entries, all within [0:2, 0:9, 4:12]"
    assert [cause, *rest] == ["  cause: not looked for, which needs PyTorch itself", weights]


def test_a_folder_in_float64_has_what_judges_it(tmp_path):
    torch.manual_seed(0)
    dump_large(torch_llama(SIZES, "float32"), IDS, tmp_path / "torch", FACTS, ("float64",))
    report = compare(tmp_path / "torch", nnx_llama(SIZES, "float32"))
    assert lines(report)[0] == "TorchLlama agrees (1 output, 0 gradients; float64)"
    with pytest.raises(ValueError, match="--truth float32 is for bfloat16 alone, and shows no rounding of float32"):
        dump_large(torch_llama(SIZES, "float32"), IDS, tmp_path / "other", FACTS, truth="float32")


@pytest.mark.slow
@pytest.mark.parametrize("truth", ["float32", "float64"])
def test_the_gradients_of_named_parameters_in_bfloat16(tmp_path, truth):
    folder = dumped(tmp_path, "bfloat16", gradients=("layers.1.mlp.*", "norm.weight"), truth=truth)
    report = compare(folder, nnx_llama(SIZES, "bfloat16"))
    assert lines(report)[0] == "TorchLlama agrees (1 output, 4 gradients; bfloat16)"
    assert {m.tensor for m in report.measurements if m.is_gradient} == {
        "gradient of norm.weight", *(f"gradient of layers.1.mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
    }  # fmt: skip
    assert all(m.torch_error > 0 for m in report.measurements)
    assert not compare(folder, nnx_llama(SIZES, "bfloat16", wrong=0)).agrees


def test_the_first_line_says_that_the_dtypes_are_not_the_same(tmp_path):
    said = lines(compare(dumped(tmp_path, "bfloat16"), nnx_llama(SIZES, "float32")))
    assert said[:2] == [
        "NOT THE SAME DTYPE: the weights are bfloat16 in PyTorch, float32 in JAX; both ran on the same numbers",
        "TorchLlama agrees (1 output, 0 gradients; bfloat16)",
    ]


class Scanned(NnxLlama):
    """All layers in one loop, their weights stacked."""

    def __init__(self) -> None:
        super().__init__(SIZES, "float32", None)
        layers = [nnx.split(layer) for layer in self.layers]
        stacked = jax.tree.map(lambda *x: jax.numpy.stack(x), *(state for _, state in layers))
        self.layers = nnx.merge(layers[0][0], stacked)

    def __call__(self, ids):
        def step(x, layer):
            return layer(x, angles), None

        x = self.embed_tokens(ids)
        rates = 10_000.0 ** (-jax.numpy.arange(0, self.head, 2, dtype=x.dtype) / self.head)
        angles = jax.numpy.arange(ids.shape[1], dtype=x.dtype)[:, None] * rates
        x, _ = nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(x, self.layers)
        return self.lm_head(self.norm(x))


@pytest.mark.slow
def test_layers_of_a_loop_are_stacked_while_they_are_read(tmp_path):
    report = compare(dumped(tmp_path), nnx.eval_shape(Scanned))
    assert report.agrees, report
    assert len(report.map.entries) == 12


def test_nothing_of_the_folder_is_held_in_memory(tmp_path):
    golden = load_golden(dumped(tmp_path))
    numbers = golden.numbers("given inputs", "float32")
    run = golden.run("given inputs", "float32", "float64", record=True)
    arrays = [*numbers.buffers.values(), *(x.value for x in run.trace)]
    assert len(arrays) > 100
    assert all(isinstance(x, np.memmap) for x in arrays)


def test_weights_are_put_where_the_port_wants_them(tmp_path):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), "x"), PartitionSpec("x"))
    seen = []

    def port(weights, ids):
        seen.extend(jax.tree.leaves(weights))
        return nnx.merge(graph, weights)(ids)

    graph, state = nnx.split(nnx_llama(SIZES, "float32"))
    described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)
    report = compare(dumped(tmp_path), port, variables=described)
    assert report.agrees, report
    assert {leaf.sharding for leaf in report.map.leaves.values()} == {sharding}
    placed = report.case.jax.prepare(load_golden(tmp_path / "torch").numbers("given inputs", "float32").buffers)
    assert {x.sharding for x in jax.tree.leaves(placed)} == {sharding}
    assert seen


def test_a_folder_that_is_damaged_or_incomplete_is_found(tmp_path):
    folder = dumped(tmp_path)
    array = max(folder.glob("*.npy"), key=lambda file: file.stat().st_size)
    content = array.read_bytes()
    for damaged in (content[:-1], content[:500] + bytes([content[500] ^ 1]) + content[501:]):
        array.write_bytes(damaged)
        with pytest.raises(GoldenError, match=rf"is damaged, cut short.*\b{array.name}\b"):
            load_golden(folder)
    array.unlink()
    with pytest.raises(GoldenError, match=rf"the checksum of {array.name} is wrong"):
        load_golden(folder)
    array.write_bytes(content)
    header = folder / "golden.json"
    header.write_text(header.read_text().replace("TorchLlama", "TorchLlamb"))
    with pytest.raises(GoldenError, match="the checksum of its text is wrong"):
        load_golden(folder)
    header.unlink()
    with pytest.raises(GoldenError, match=r"has no golden\.json, so it was not written to its end"):
        load_golden(folder)


def test_after_an_error_nothing_is_left(tmp_path):
    with pytest.raises(ValueError, match=r"--gradients layer.\* fits no parameter; they are called like embed_tokens"):
        dump_large(torch_llama(SIZES, "float32"), IDS, tmp_path / "torch", FACTS, gradients=("layer.*",))
    with pytest.raises(IndexError):
        dump_large(torch_llama(SIZES, "float32"), IDS + SIZES.vocab, tmp_path / "torch", FACTS)
    assert not (tmp_path / "torch").exists()


@pytest.mark.slow
def test_the_program_writes_a_folder_and_refuses_what_it_cannot(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(2, 3).bfloat16(), (torch.ones(4, 2),)\n"
    )
    command = [sys.executable, "-m", "parity_tests.your_port.dump", str(tmp_path / "model.py:build"), "--out", "out"]
    for status, said in ((0, "out: bfloat16"), (2, "error: out exists already")):
        done = subprocess.run([*command, "--large"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert said in done.stdout + done.stderr
    assert compare(tmp_path / "out", nnx.Linear(2, 3, rngs=nnx.Rngs(0))).measurements[0].dtype == "bfloat16"

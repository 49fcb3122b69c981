"""Dumps of other tools in PyTorch's place: forms of names, right ports, mistakes that are located, bad folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import save_file

from parity_tests.your_port import command
from parity_tests.your_port.compare import compare
from parity_tests.your_port.dumped import compare_dump, read_dump

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(6), torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = torch.nn.ModuleList(Block() for _ in range(3)), torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Port(nnx.Module):
    """The same, perhaps with a mistake in the second block."""

    def __init__(self, mistake: str = "") -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([BlockPort(rngs, mistake if i == 1 else "") for i in range(3)])
        self.head = nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class BlockPort(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, mistake: str) -> None:
        self.norm = nnx.LayerNorm(6, epsilon=1e-2 if mistake == "epsilon" else 1e-5, rngs=rngs)
        self.up, self.down = nnx.Linear(6, 9, rngs=rngs), nnx.Linear(9, 6, rngs=rngs)
        self.mistake = mistake

    def __call__(self, x: Any) -> Any:
        hidden = self.up(self.norm(x))
        hidden = jax.nn.sigmoid(hidden) if self.mistake == "sigmoid" else jax.numpy.tanh(hidden)
        return self.down(hidden) + (0 if self.mistake == "no residual" else x)


torch.manual_seed(0)
MODEL = Model()
for parameter in MODEL.parameters():
    torch.nn.init.normal_(parameter)


def outputs(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Run the model, and keep what each submodule returns, the inputs of some, and the result."""
    found: dict[str, torch.Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda _, given, made, name=name: found.update({name: made.clone()}))
        for name, part in MODEL.named_modules()
        if name and not isinstance(part, torch.nn.ModuleList)
    ]
    with torch.no_grad():
        found[""] = MODEL.to(dtype)(torch.tensor(X, dtype=dtype))
    MODEL.float()
    for hook in hooks:
        hook.remove()
    return found


def in_safetensors(folder: Path, found: dict[str, torch.Tensor]) -> None:
    """Write them as transformers does."""
    for name, x in found.items():
        path = f"Model.{name}" if name else "Model"
        save_file({"data": x.contiguous()}, folder / f"{path}_outputs.safetensors")
        save_file({"data": x.contiguous() + 1}, folder / f"{path}_inputs_args_0.safetensors")


def in_npy(folder: Path, found: dict[str, torch.Tensor]) -> None:
    for name, x in found.items():
        np.save(folder / f"{name or 'result'}.npy", x.float().numpy())


def by_dumper(folder: Path, found: dict[str, torch.Tensor], rank: int = 0) -> None:
    """Write them as SGLang's dumper does."""
    for index, (name, x) in enumerate(found.items()):
        file = f"forward_pass_id=1___rank={rank}___name={name or 'result'}___dump_index={index}.pt"
        torch.save({"value": x, "meta": {"rank": rank, "name": name}}, folder / file)


def by_hooks(folder: Path, found: dict[str, torch.Tensor]) -> None:
    """Write them as SGLang's hooks do."""
    (folder / "TP0_PP0_Rank0_pid7").mkdir()
    torch.save({name or "result": x for name, x in found.items()}, folder / "TP0_PP0_Rank0_pid7" / "Pass00000.pt")


WRITERS: dict[str, Callable[[Path, dict[str, torch.Tensor]], None]] = {
    "transformers": in_safetensors, "npy": in_npy, "dumper": by_dumper, "hooks": by_hooks,
}  # fmt: skip


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump").mkdir()
    in_safetensors(tmp_path / "dump", outputs())
    save_file(MODEL.state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "dump"


@pytest.mark.parametrize("writer", WRITERS)
def test_the_forms_of_names(writer: str, tmp_path: Path) -> None:
    WRITERS[writer](tmp_path, outputs())
    report = compare_dump(tmp_path, Port(), X, weights=MODEL.state_dict())
    assert report.agrees, report
    assert [m.tensor for m in report.measurements][:5] == [
        "blocks.0.norm",
        "blocks.0.up",
        "blocks.0.down",
        "blocks.0",
        "blocks.1.norm",
    ]
    assert [m.tensor for m in report.measurements][-2:] == ["head", "result"]
    assert report.unpaired == ()


def test_names_that_begin_with_a_capital_are_whole(tmp_path: Path) -> None:
    in_npy(tmp_path, {"W_q": torch.ones(2), "W_k": torch.zeros(2), "w_v.norm": torch.ones(3)})
    assert {x.of for x in read_dump(tmp_path)[0]} == {"W_q", "W_k", "w_v.norm"}


def test_only_names_of_transformers_say_what_is_an_input(tmp_path: Path) -> None:
    in_npy(tmp_path, {name: torch.ones(2) for name in ("embed_inputs", "x_outputs_proj", "Net.a_inputs_0")})
    assert {x.of for x in read_dump(tmp_path)[0]} == {"embed_inputs", "x_outputs_proj"}


def test_a_name_that_is_written_several_times_is_read_call_by_call(tmp_path: Path) -> None:
    for index in (2, 3, 10):
        file = f"forward_pass_id=1___rank=0___name=up___dump_index={index}.pt"
        torch.save({"value": torch.full((1,), float(index))}, tmp_path / file)
    assert [(x.of, float(x.value[0])) for x in read_dump(tmp_path)[0]] == [("up", 2), ("up", 3), ("up", 10)]


def test_bfloat16_is_judged_by_the_ports_own_rounding(tmp_path: Path) -> None:
    in_safetensors(tmp_path, outputs(torch.bfloat16))
    report = compare_dump(tmp_path, Port(), X, weights=MODEL.state_dict())
    assert report.agrees, report
    assert "Port agrees (14 tensors of the dump, bfloat16)" in str(report)
    assert 1e-3 < max(m.error for m in report.measurements) < 0.1
    assert not compare_dump(tmp_path, Port("no residual"), X, weights=MODEL.state_dict())


def test_another_dtype_of_a_tensor_is_none_of_the_port_and_nan_is(tmp_path: Path) -> None:
    found = outputs(torch.bfloat16)
    found["head"] = found["head"].float()
    in_safetensors(tmp_path, found)
    assert compare_dump(tmp_path, Port(), X, weights=MODEL.state_dict()).agrees
    found["blocks.1"][0, 0] = torch.nan
    (tmp_path / "second").mkdir()
    in_safetensors(tmp_path / "second", found)
    report = compare_dump(tmp_path / "second", Port(), X, weights=MODEL.state_dict())
    assert (
        "first difference: the forward pass at blocks.1, after blocks.1.down: NaN in 1 places in PyTorch, in 0 in JAX"
        in str(report)
    )


@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        ("epsilon", "blocks.1.norm, after blocks.0"),
        ("sigmoid", "blocks.1.down, after blocks.1.up"),
        ("no residual", "blocks.1, after blocks.1.down"),
    ],
)
def test_a_mistake_is_located(dump: Path, mistake: str, place: str) -> None:
    report = compare_dump(dump, Port(mistake), X, weights=dump.parent / "model.safetensors")
    assert f"  first difference: the forward pass at {place}: error " in str(report)
    assert report.record.verdict == "differs"


def test_a_pretrained_model_of_flax_has_weights_of_its_own(tmp_path: Path) -> None:
    class Pretrained:
        """As those of `transformers`."""

        def __init__(self) -> None:
            self.module = nn.Dense(3)
            self.params = self.module.init(jax.random.key(0), X)["params"]

        def __call__(self, x: Any) -> Any:
            return self.module.apply({"params": self.params}, x)

    model = Pretrained()
    np.save(tmp_path / "result.npy", np.asarray(model(X)))
    assert compare_dump(tmp_path, model, X)


def test_the_ports_own_weights_are_said(dump: Path) -> None:
    report = compare_dump(dump, Port(), X)
    assert not report
    assert "note: the port ran with its own weights" in str(report)
    described = nnx.eval_shape(lambda: Port())
    with pytest.raises(ValueError, match=r"the port has no numbers for .*: give weights="):
        compare_dump(dump, described, X)


class Pairs(nnx.Module):
    """Return two tensors in a submodule and in the whole."""

    def __init__(self, activation: Any = jax.numpy.tanh) -> None:
        self.inner = PairOf(activation)

    def __call__(self, x: Any) -> Any:
        return self.inner(x)


class PairOf(nnx.Module):
    def __init__(self, activation: Any) -> None:
        self.scale, self.activation = nnx.Param(jax.numpy.ones(4)), activation

    def __call__(self, x: Any) -> Any:
        return x * self.scale, self.activation(x)


def as_tuples(folder: Path, tensors: tuple[torch.Tensor, ...]) -> None:
    for name in ("inner", "result"):
        torch.save(tensors, folder / f"{name}.pt")


def as_transformers(folder: Path, tensors: tuple[torch.Tensor, ...]) -> None:
    for number, x in enumerate(tensors):
        for name in ("Pairs.inner", "Pairs"):
            save_file({"data": x}, folder / f"{name}_outputs_{number}.safetensors")


@pytest.mark.parametrize("write", [as_tuples, as_transformers])
def test_each_of_several_results_is_compared(write: Callable[..., None], tmp_path: Path) -> None:
    x = torch.tensor(X[:, :4].copy())
    write(tmp_path, (x, torch.tanh(x)))
    report = compare_dump(tmp_path, Pairs(), x.numpy())
    assert report.agrees, report
    assert [m.tensor for m in report.measurements] == ["inner", "inner.1", "result", "result.1"]
    wrong = compare_dump(tmp_path, Pairs(jax.numpy.sin), x.numpy())
    assert "first difference: the forward pass at inner.1, after inner: error" in str(wrong)


def test_a_dump_of_the_first_results_alone_is_compared_with_these(tmp_path: Path) -> None:
    x = torch.tensor(X[:, :4].copy())
    in_npy(tmp_path, {"inner": x})
    assert [m.tensor for m in compare_dump(tmp_path, Pairs(), x.numpy()).measurements] == ["inner"]


def test_what_is_not_compared_is_said(tmp_path: Path) -> None:
    x = torch.tensor(X[:, :4].copy())
    others = {"ids": torch.arange(3), "inner[1]": torch.ones(4).to(torch.float8_e5m2)}
    for name, tensor in {"inner": x, "result": x.bfloat16(), **others}.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
    report = compare_dump(tmp_path, Pairs(), x.numpy())
    assert report.agrees, report
    assert "left over in the dump: ids, inner[1]" in str(report)
    assert "note: 1 of 2 tensors of the dump are bfloat16, and all are judged by it" in str(report)


def test_numbers_that_are_none_do_not_agree(tmp_path: Path) -> None:
    for name, x in (("nan", np.full((3, 4), np.nan, np.float32)), ("empty", np.ones((0, 4), np.float32))):
        (tmp_path / name).mkdir()
        in_npy(tmp_path / name, {"inner": torch.tensor(x)})
        with pytest.raises(ValueError, match=r"inner is (NaN everywhere on both sides|empty), so nothing"):
            compare_dump(tmp_path / name, Pairs(), x)


def test_a_function_gets_the_weights_under_their_names(tmp_path: Path) -> None:
    x, w = X[:, :4], {"scale": np.arange(4, dtype=np.float32)}
    np.save(tmp_path / "result.npy", x * w["scale"])
    assert compare_dump(tmp_path, lambda w, x: x * w["scale"], x, weights=w).agrees
    assert not compare_dump(tmp_path, lambda w, x: x + w["scale"], x, weights=w)
    assert compare_dump(tmp_path, lambda w, x: x * w["scale"], x, variables=w).agrees


class Scanned(nn.Module):
    """Twelve layers in one loop."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def step(dense: nn.Module, x: Any, _: None) -> Any:
            return jax.numpy.tanh(dense(x)), None

        scan = nn.scan(step, variable_axes={"params": 0}, split_rngs={"params": True}, length=12)
        return scan(nn.Dense(4, name="layers"), x, None)[0]


def test_layers_of_a_dump_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    layers, x, dump = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12)), torch.tensor(X[:, :4].copy()), {}
    given = x.numpy()
    with torch.no_grad():
        for name, layer in layers.named_children():
            dump[f"layers.{name}"] = layer(x)
            x = torch.tanh(dump[f"layers.{name}"])
    in_npy(tmp_path, dump)
    assert [x.of for x in read_dump(tmp_path)[0]] == [f"layers.{i}" for i in range(12)]
    weights = {f"layers.{name}": x for name, x in layers.state_dict().items()}
    report = compare_dump(tmp_path, Scanned(), given, weights=weights)
    assert report.agrees, report
    assert report.measurements[0].tensor.startswith("layers")


@pytest.mark.parametrize(("of_weights", "of_dump"), [("model.", ""), ("", "model."), ("", "a.b.")])
def test_the_names_of_a_dump_may_have_another_prefix(tmp_path: Path, of_weights: str, of_dump: str) -> None:
    in_npy(tmp_path, {of_dump + name if name else "result": x for name, x in outputs().items()})
    weights = {of_weights + name: x for name, x in MODEL.state_dict().items()}
    report = compare_dump(tmp_path, Port(), X, weights=weights)
    assert report.agrees, report
    assert len(report.measurements) == 14
    assert report.unpaired == ()


def test_the_state_of_an_optimiser_is_no_weight(dump: Path) -> None:
    state = {"state": {i: {"exp_avg": torch.ones_like(x)} for i, x in enumerate(MODEL.parameters())}}
    torch.save({"model": MODEL.state_dict(), "optimizer": state}, dump.parent / "all.pt")
    report = compare_dump(dump, Port(), X, weights=dump.parent / "all.pt")
    assert report.agrees, report
    assert len(report.measurements) == 14


def test_what_cannot_be_read_or_paired_says_why(dump: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(2):
        by_dumper(ranks, outputs(), rank)
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    in_npy(other, {"encoder.attention": torch.ones(3, 7)})
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "head.npy").write_bytes((other / "encoder.attention.npy").read_bytes()[:100])
    whole = tmp_path / "ids"
    whole.mkdir()
    np.save(whole / "head.npy", np.arange(3))
    for folder, words in {
        ranks: r"holds more than one rank \(0, 1\): give a folder of one",
        tmp_path / "empty": "holds no tensors",
        other: "no tensor of the dump is one of the port's: the dump has encoder.attention …; the port has ",
        cut: "is damaged, cut short, or not what its name says",
        whole: "holds no outputs of modules in float16, bfloat16",
    }.items():
        with pytest.raises(ValueError, match=words):
            compare_dump(folder, Port(), X, weights=MODEL.state_dict())
    with pytest.raises(ValueError, match="What another tool has dumped is for compare_dump"):
        compare(dump, Port())


def test_the_command_takes_a_dump(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = dump.parent / "port.py"
    given = {"torch_module": str(dump), "weights": str(dump.parent / "model.safetensors")}
    port.write_text(
        "from parity_tests.your_port.dumped_test import Port, X\n"
        f"def build(mistake=''): return dict(jax_module=Port(mistake), inputs=X, **{given})\n"
        "def wrong(): return build('epsilon')\n"
        "def in_order(): return build()['torch_module'], Port(), X\n"
    )
    assert command.main([f"{port}:build"], isolated=False) == 0
    assert command.main([f"{port}:in_order"], isolated=False) == 1
    assert "note: the port ran with its own weights" in capsys.readouterr().out
    assert command.main([f"{port}:wrong"], isolated=False) == 1
    assert "first difference: the forward pass at blocks.1.norm" in capsys.readouterr().out

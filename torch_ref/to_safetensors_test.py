import pickle

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from torch_ref.to_safetensors import main


def model():
    """Make a model with a tied weight, which has two names, and a buffer."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.BatchNorm1d(2))
    layers[1].weight = layers[0].weight
    return layers


def save(path, content):
    torch.save(content, path)
    return path


@pytest.mark.parametrize("wrap", [dict, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s, "lr": 0.1}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_tensor_is_written_bit_for_bit(tmp_path, capsys, wrap, dtype):
    state_dict = model().to(dtype).state_dict()
    assert main([str(save(tmp_path / "model.pt", wrap(state_dict)))]) == 0
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == state_dict.keys()
    for name, tensor in state_dict.items():
        assert written[name].dtype == tensor.dtype
        assert torch.equal(written[name], tensor)
    left_out = {"epoch", "lr"} & set(wrap(state_dict))
    expected = f"model.safetensors: {len(state_dict)} tensors" + "".join(f"; left out: {name}" for name in left_out)
    assert capsys.readouterr().out.endswith(expected + "\n")


def test_a_view_with_strides_is_written_in_order(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    save(tmp_path / "a.pt", {"transposed": whole.T, "row": whole[1], "scalar": torch.tensor(2)})
    assert main([str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]) == 0
    written = load_file(tmp_path / "b.safetensors")
    assert torch.equal(written["transposed"], whole.T)
    assert torch.equal(written["row"], whole[1])
    assert written["scalar"] == 2


def test_an_existing_file_is_not_overwritten(tmp_path, capsys):
    path = save(tmp_path / "a.pt", {"x": torch.zeros(1)})
    (tmp_path / "a.safetensors").write_text("mine")
    assert main([str(path)]) == 2
    assert "a.safetensors: exists already and is not overwritten" in capsys.readouterr().err
    assert (tmp_path / "a.safetensors").read_text() == "mine"
    assert main([str(path), str(path)]) == 2


class Dangerous:
    """An object whose pickle runs a program when it is loaded."""

    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning")  # of torch.load, from 2.14 on
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nn.Linear(2, 2), "save model.state_dict() instead"),
        ({"x": torch.zeros(1), "epoch": 3}, "these are not: epoch"),
        ({"state_dict": {"x": torch.zeros(1)}, "model": {"y": torch.zeros(1)}}, "both 'state_dict' and 'model'"),
        ([torch.zeros(1)], "must hold a state dict; it holds a list"),
        ({}, "holds no tensors"),
        ({"x": torch.eye(2).to_sparse()}, "these are not: x (torch.sparse_coo, torch.float32, cpu); convert them"),
        ({"x": torch.zeros(1, dtype=torch.complex128)}, "these are not: x (torch.strided, torch.complex128, cpu)"),
        ({"x": torch.zeros(1, device="meta")}, "these are not: x (torch.strided, torch.float32, meta)"),
        ({"x": torch.zeros(1), 3: torch.zeros(1)}, "must name its tensors by strings other than '__metadata__'; got 3"),
        ({"__metadata__": torch.zeros(1)}, "got '__metadata__'"),
    ],
    ids=["module", "counter", "two", "list", "empty", "sparse", "dtype", "meta", "number", "reserved"],
)
def test_anything_but_a_state_dict_is_refused(tmp_path, capsys, content, message):
    assert main([str(save(tmp_path / "a.pt", content))]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert message in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_tensor_is_refused(tmp_path, capsys):
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert main([str(save(tmp_path / "a.pt", {"x": quantised, "y": torch.zeros(1)}))]) == 2
    shown = capsys.readouterr().err
    assert "these are not: x (torch.strided, torch.qint8, cpu); convert them, by .to_dense(), .dequantize()" in shown
    assert shown.count("\n") == 1


def test_no_program_in_a_file_is_run(tmp_path, capsys):
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"x": Dangerous()}, protocol=2))
    assert main([str(tmp_path / "a.pt")]) == 2
    assert main([str(save(tmp_path / "b.pt", {"x": Dangerous()}))]) == 2
    assert "it ran" not in capsys.readouterr().out


def test_a_damaged_file_is_refused(tmp_path, capsys):
    content = save(tmp_path / "a.pt", {"x": torch.zeros(50)}).read_bytes()
    for damaged in (b"", b"text", content[:100], content[: len(content) // 2], content[:-30]):
        (tmp_path / "a.pt").write_bytes(damaged)
        assert main([str(tmp_path / "a.pt")]) == 2
        assert "cannot be read with torch.load(weights_only=True)" in capsys.readouterr().err
    assert main([str(tmp_path / "none.pt")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none.pt'}: No such file or directory\n"

"""A file instead of PyTorch gives the same verdict, on a machine that cannot import torch."""

import json
import os
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from parity_tests import GoldenError, compare, load_golden
from parity_tests.your_port import dump
from parity_tests.your_port.golden import HEADER, GoldenFolder, write_golden

ROOT = Path(__file__).parents[2]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)

    def forward(self, x, pair=None):
        return {"y": self.second(torch.tanh(self.first(x))) + pair[0], "ids": x.argmax(-1)}

def build():
    return Net(), (torch.randn(4, 3), (torch.randn(2), torch.arange(3)))

def half():
    return Net().half(), build()[1]

def no_inputs():
    return Net(), {"x": torch.randn(4, 3)}
"""

PORT = """
import sys
sys.modules["torch"] = None                      # any import of it fails
import jax.numpy as jnp
from parity_tests import JaxSide, compare_case, find_divergence, load_golden, tap

def port(activation):
    def call(weights, inputs, options):
        layer = lambda name, x: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        hidden = activation(tap("first", layer("first", inputs["x"])))
        return {"y": tap("second", layer("second", hidden)) + inputs["pair"][0], "ids": inputs["x"].argmax(-1)}
    return JaxSide(call)

from flax import nnx
from parity_tests import compare

class Net(nnx.Module):
    def __init__(self, act):
        rngs = nnx.Rngs(0)
        self.first, self.second, self.act = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs), act

    def __call__(self, x, pair):
        return {"y": self.second(self.act(self.first(x))) + pair[0], "ids": x.argmax(-1)}

print(compare(sys.argv[1], Net(jnp.tanh)).agrees, "|".join(str(compare(sys.argv[1], Net(jnp.sin))).splitlines()))
golden = load_golden(sys.argv[1])
right, wrong = (golden.case(port(activation)) for activation in (jnp.tanh, jnp.sin))
measured = [m for dtype in ("float64", "float32") for m in compare_case(right, dtype)]
print(len(measured), *(m for m in measured if m.failed))
print(*(m.tensor for m in compare_case(wrong, "float64") if m.failed))
found = find_divergence(wrong)
print(found.phase, found.tensor, found.agreed)
"""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        assert run_dump(patch, str(folder / "model.py") + ":build", folder / "torch.npz") == 0
    return folder / "torch.npz"


def run_dump(patch: pytest.MonkeyPatch, build: str, out: Path) -> int:
    patch.setattr(sys, "argv", ["dump", *build.split(), "--out", str(out)])
    patch.setattr(sys, "path", [*sys.path])
    return dump.main()


def test_a_port_is_compared_without_torch(golden: Path) -> None:
    command = [sys.executable, "-c", PORT, str(golden)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    compared, agreed, parted, where = done.stdout.splitlines()
    assert compared.startswith("True Net DIFFERS in")
    assert "first difference: the forward pass at input of second, after first:" in compared
    assert "cause: not looked for, which needs PyTorch itself" in compared
    assert agreed == "16"  # 2 outputs, and the gradients of 4 weights, x and the pair's first, in 2 dtypes; none failed
    assert parted.startswith("gradient of first.bias gradient of first.weight")
    assert where == "forward second ('first',)"


def test_the_file_says_what_wrote_it(golden: Path) -> None:
    record = load_golden(golden)
    header = record.header
    assert header["versions"].keys() == {"torch", "python", "numpy"}
    assert header["format"] == 7
    assert [record.draws(dtype) for dtype in ("float64", "float32")] == [1, 8]
    with pytest.raises(GoldenError, match="has no run in bfloat16: write it again, or pass other dtypes"):
        record.draws("bfloat16")


def test_a_file_that_cannot_be_trusted_is_an_error(golden: Path, tmp_path: Path) -> None:
    bad, whole = tmp_path / "bad.npz", golden.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:cut])
        with pytest.raises(GoldenError, match=r"damaged, cut short, or no golden file .*write it again"):
            load_golden(bad)
    for place in range(200, len(whole), len(whole) // 9):
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(GoldenError):  # unless the byte says nothing, as one of a date does
            jax.tree.map(np.testing.assert_array_equal, load_golden(bad).header, load_golden(golden).header)
    with np.load(golden) as file:
        arrays = dict(file)
    text = json.dumps({**json.loads(str(arrays["header"])), "format": 8})
    np.savez(bad, **{**arrays, "header": np.array(text)})
    with pytest.raises(GoldenError, match=r"has format 8, by .*reads format 7"):
        load_golden(bad)
    np.savez(bad, header=np.array({"a": object()}, dtype=object))
    with pytest.raises(GoldenError, match="no golden file"):
        load_golden(bad)
    np.savez_compressed(bad, header=np.zeros(10_000_000))
    with pytest.raises(GoldenError, match=r"header\.npy is compressed: [\d,]+ bytes of 80,000,128"):
        load_golden(bad)
    with pytest.raises(FileNotFoundError):
        load_golden(tmp_path / "none.npz")


def test_a_golden_folder_reads_no_file_outside_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside.npy"
    np.save(outside, np.ones(3))
    with GoldenFolder(tmp_path / "golden") as folder:
        folder.finish({})
    text = json.dumps({"format": 7, "sums": {"../outside.npy": zlib.crc32(outside.read_bytes())}})
    (tmp_path / "golden" / HEADER).write_text(f"{zlib.crc32(text.encode())}\n{text}", encoding="utf-8")
    with pytest.raises(GoldenError, match=r"the checksum of \.\./outside\.npy is wrong"):
        load_golden(tmp_path / "golden")


def test_a_file_that_somebody_has_edited_is_an_error(golden: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    with np.load(golden) as file:
        arrays = dict(file)
    text = json.dumps({**json.loads(str(arrays["header"])), "weights": 3})
    np.savez(bad, **{**arrays, "header": np.array(text)})
    with pytest.raises(GoldenError, match=r"the checksum of its text is wrong.*write it again"):
        load_golden(bad)
    number = next(name for name in arrays if "/weights/" in name)
    np.savez(bad, **{**arrays, number: arrays[number] + 1})
    with pytest.raises(GoldenError, match=rf"the checksum of {number} is wrong"):
        load_golden(bad)


@pytest.mark.parametrize(
    ("before", "after"), [(b"<f4", b">f4"), (b"<f4", b"<i4"), (b"(2, 3)", b"(3, 2)"), (b": False", b": True ")]
)
def test_what_the_bytes_of_a_folder_mean_is_checked_too(before: bytes, after: bytes, tmp_path: Path) -> None:
    with GoldenFolder(tmp_path / "golden") as folder:
        folder.finish({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    file = tmp_path / "golden" / "0.npy"
    changed = file.read_bytes().replace(before, after)
    assert changed != file.read_bytes()
    file.write_bytes(changed)
    with pytest.raises(GoldenError, match=r"the checksum of 0\.npy is wrong"):
        load_golden(tmp_path / "golden")


@pytest.mark.parametrize("value", [{1: "a"}, 3 + 2j, torch.float32])
def test_what_json_would_change_is_no_input(value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"inputs/others/mode is .*, which JSON cannot hold"):
        write_golden(tmp_path / "golden.npz", {"inputs": {"others": {"mode": value}}})
    assert not (tmp_path / "golden.npz").exists()


def test_a_complex_buffer_keeps_its_imaginary_part_in_a_folder(tmp_path: Path) -> None:
    class Rotated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))
            self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(torch.view_as_complex((x * self.scale).view(-1, 2, 2)) * self.turn).flatten(1)

    x, module = torch.randn(3, 4), Rotated()
    expected = module(x).detach().numpy()
    dump.dump_large(module, (x,), tmp_path / "golden", {})
    run = load_golden(tmp_path / "golden").run("given inputs", "float32", "float64", False)
    np.testing.assert_allclose(run.outputs["result"], expected, rtol=1e-5)


def test_a_constant_input_is_named_without_what_only_pytorch_could_show(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    facts = {"versions": {"torch": torch.__version__}, "build": ""}
    write_golden(tmp_path / "torch.npz", facts | dump.dump(module, (torch.ones(4, 3),), False, ("float64",)))
    report = compare(tmp_path / "torch.npz", nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    assert "  weak: input is 1 everywhere, which may hide mistakes" in str(report).splitlines()


def test_a_wrong_build_is_answered_in_a_line(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = golden.parent / "model.py"
    (tmp_path / "other.py").write_text("def build(): return 3", encoding="utf-8")
    for build, out, message in (
        ("none.py:build", "new.npz", "there is no file 'none.py'"),
        (f"{model}:missing", "new.npz", "has no function missing"),
        (f"{tmp_path / 'other.py'}:build", "new.npz", "must return (nn.Module, inputs); got int"),
        (f"{model}:build", "other.py", "exists already"),
        (
            f"{model}:half --large",
            "new",
            "the module is float16, in which nothing is compared: give --dtype float64 or",
        ),
        (f"{model}:no_inputs --large", "new", "error: TypeError: "),
    ):
        assert run_dump(monkeypatch, build, tmp_path / out) == 2
        assert message in capsys.readouterr().err

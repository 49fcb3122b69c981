"""The page of any model's arrays: both forms of files, and what is wrong with others."""

import errno
import io
import json
import pickle
import re
import zipfile

import numpy as np
import pytest

from jax_attn import commands
from train import page
from train.translating.page import page as page_file

SOURCE, TARGET = ["the", "cat", "</s>"], ["le", "chat"]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


GOOD = {"source": SOURCE, "target": TARGET, "weights": draw(3, 2, 2, 3)}
WITH_ALL = {**GOOD, "source_weights": draw(1, 4, 3, 3), "target_weights": draw(3, 2, 2, 2), "read": ["<s>", "le"]}


@pytest.fixture
def call(capsys, tmp_path):
    """Run the program on a file of this name and content. Return (exit status, errors, data of the page)."""

    def call(name: str, content: object) -> tuple[int, str, list | None]:
        file, out = tmp_path / name, tmp_path / "page.html"
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif file.suffix == ".npz":
            np.savez(file, **content)
        elif content is not None:
            file.write_text(json.dumps(content, default=np.ndarray.tolist), encoding="utf-8")
        out.unlink(missing_ok=True)
        status = commands.main(["page", str(file), "--out", str(out)])
        captured = capsys.readouterr()
        assert captured.out == ""
        if status:
            assert not out.exists()
            return status, captured.err, None
        return status, captured.err, json.loads(re.search(r'id="data">(.*?)</script>', out.read_text())[1])

    return call


@pytest.mark.parametrize("form", ["json", "npz"])
def test_sentences_are_shown(call, form):
    several = {f"{i}.{key}": x for i, given in enumerate((WITH_ALL, GOOD)) for key, x in given.items()}
    status, errors, data = call(f"a.{form}", several if form == "npz" else [WITH_ALL, GOOD])
    assert (status, errors) == (0, "")
    assert [side["name"] for side in data] == [f"a.{form}"]
    first, second = (sentence["hypotheses"][0]["maps"] for sentence in data[0]["sentences"])
    assert [(each["kind"], each["rows"], each["columns"], each["layer"]) for each in first] == [
        ("cross", TARGET, SOURCE, 2),
        ("source", SOURCE, SOURCE, 0),
        ("target", TARGET, ["<s>", "le"], 2),
    ]
    for each, key in zip(first, ("weights", "source_weights", "target_weights"), strict=True):
        np.testing.assert_allclose(each["weights"], 1e4 * WITH_ALL[key], atol=0.5)
    assert [each["kind"] for each in second] == ["cross"]
    assert call(f"b.{form}", GOOD)[2][0]["sentences"] == data[0]["sentences"][1:]


def changed(key: str, change) -> dict:
    return {**WITH_ALL, key: change(WITH_ALL[key])}


def with_nan(weights: np.ndarray) -> np.ndarray:
    weights = weights.copy()
    weights[2, 0, 1, 0] = np.nan
    return weights


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", None, "a.json cannot be read: No such file or directory"),
        ("a.pt", b"", "the file must end in .npz or .json; got "),
        ("a.json", b"{", "a.json is not JSON: "),
        ("a.json", b"\xff", "a.json is not JSON: "),
        ("a.json", [], "a.json holds no sentence"),
        ("a.json", [GOOD, 1], "sentence 1 of {} must be an object with source, target, weights; got int"),
        ("a.json", {"source": ["a"], "target": ["b"]}, "a.json has no weights"),
        ("a.json", {**GOOD, "wieghts": 1}, "a.json has wieghts; it may have source, target, weights, source_weights"),
        ("a.json", {**GOOD, "source": "the cat"}, "source of {} must be a list of one or more texts"),
        ("a.json", {**GOOD, "target": []}, "target of {} must be a list of one or more texts"),
        ("a.json", {**GOOD, "weights": [[[[1], [0.5, 0.5]]]]}, "weights of {} must be numbers [layers, heads, 2, 3]"),
        ("a.json", {**GOOD, "weights": [[[[10**400] * 3] * 2]]}, "weights of {} must be numbers [layers, heads, 2, 3]"),
        ("a.json", changed("weights", lambda x: x[0]), "weights of {} must be [layers, heads, 2, 3], "),
        ("a.json", changed("target", lambda x: [*x, "."]), "must be [layers, heads, 3, 3], "),
        ("a.json", changed("read", lambda x: x[:1]), "target_weights of {} must be [layers, heads, 2, 1], "),
        ("a.npz", changed("source_weights", lambda x: x[:0]), "source_weights of {} must be [layers, heads, 3, 3], "),
        ("a.npz", changed("weights", with_nan), "row 1 of layer 2, head 0 has the sum nan"),
        ("a.json", changed("weights", with_nan), "row 1 of layer 2, head 0 has the sum nan"),
        ("a.npz", changed("weights", lambda x: 3 * x), "with the sum 1; row 0 of layer 0, head 0 has the sum 3 and"),
        ("a.npz", changed("weights", lambda x: np.log(x)), "each row of weights of {} must be probabilities with"),
        ("a.npz", changed("weights", lambda x: x - [1, -1, 0]), "has the sum 1 and the least -"),
        ("a.npz", {**GOOD, "source": np.array(SOURCE, object)}, "a.npz must be of numpy.savez, with tokens as"),
        ("a.npz", pickle.dumps(GOOD), "and no pickle"),
        ("a.npz", b"", "a.npz must be of numpy.savez, "),
        ("a.npz", b"PK\x03\x04", "a.npz must be of numpy.savez, "),
        ("a.npz", {"0.source": SOURCE, "2.source": SOURCE}, "must be numbered 0 to 1; got 2"),
    ],
)
def test_a_file_that_does_not_fit_gives_one_line_of_error(call, tmp_path, name, content, message):
    status, errors, _ = call(name, content)
    assert status == 2
    assert errors.startswith("error: ")
    assert message.format(tmp_path / name) in errors
    assert errors.count("\n") == 1


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_read(call, tmp_path):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, **{**GOOD, "weights": np.zeros((1, 1, 5_000, 6_000))})
    assert file.stat().st_size < 300_000
    status, errors, _ = call("a.npz", file.read_bytes())
    assert status == 2
    assert errors == f"error: {file} unpacks to 240,000,464 bytes; a page has room for 200,000,000\n"


@pytest.mark.parametrize("shape", [(1, 1, 2**20, 2**30), (0, 2**70)])
def test_a_header_that_no_memory_holds_is_an_error(call, shape):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive, archive.open("weights.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
    status, errors, _ = call("a.npz", content.getvalue())
    assert status == 2
    assert "a.npz must be of numpy.savez, " in errors


@pytest.mark.parametrize("form", ["json", "npz"])
def test_a_lone_surrogate_is_shown_escaped(call, form):
    status, errors, data = call(f"b\udcff.{form}", {**GOOD, "target": ["\ud800", "chat"]})
    assert (status, errors) == (0, "")
    assert data[0]["sentences"][0]["hypotheses"][0]["tokens"] == ["\\ud800", "chat"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(call, tmp_path, monkeypatch, capsys):
    call("a.json", GOOD)
    out = tmp_path / "page.html"
    old = out.read_bytes()

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    assert page.main([str(tmp_path / "a.json"), "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"error: {out} cannot be written: No space left on device\n"
    assert out.read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "page.html"}


def test_too_many_weights_are_an_error(call, monkeypatch):
    monkeypatch.setattr(page_file, "MAX_WEIGHTS", 35)
    assert "has 36 weights; a page of more than 35 would be slow" in call("a.json", GOOD)[1]


def test_rounded_weights_are_shown(call):
    assert call("a.npz", {**GOOD, "weights": GOOD["weights"].astype(np.float16)})[0] == 0


def test_no_file_but_a_page_is_overwritten(tmp_path, capsys):
    file, out = tmp_path / "a.json", tmp_path / "a.html"
    file.write_text(json.dumps(GOOD, default=np.ndarray.tolist), encoding="utf-8")
    out.write_text("mine")
    for name, message in (("a.html", "is no picture or page"), ("a.txt", "--out must end in .html or .htm; got ")):
        assert page.main([str(file), "--out", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert page.main([str(file), "--out", str(out), "--force"]) == 0
    assert page.main([str(file), "--out", str(out)]) == 0

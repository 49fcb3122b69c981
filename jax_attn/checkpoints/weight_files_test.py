import os

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save

from jax_attn.checkpoints.weight_files import DTYPES, SafetensorsFile, read_safetensors, write_safetensors


def samples():
    """Return arrays of every dtype with random bits, NaN included, and of unusual shapes and layouts."""
    bits = np.random.default_rng(0).integers(0, 256, 96, dtype=np.uint8)
    arrays = {name: bits.view(dtype).reshape(2, -1) for name, dtype in DTYPES.items() if name != "BOOL"}
    arrays |= {"BOOL": bits > 100, "scalar": np.float32(1.5), "empty": np.zeros((0, 3), np.float64)}
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    return arrays | {"transposed": matrix.T, "every second": matrix[:, ::2], "other end first": matrix.astype(">f4")}


def test_every_dtype_is_written_and_read_bit_for_bit(tmp_path):
    path, arrays = tmp_path / "all.safetensors", samples()
    write_safetensors(path, arrays)
    back, theirs = read_safetensors(path), dict(deserialize(path.read_bytes()))
    assert list(back) == sorted(arrays) == sorted(theirs)
    for name, array in arrays.items():
        assert back[name].dtype == np.asarray(array).dtype.newbyteorder("=")
        assert back[name].shape == np.shape(array)
        assert back[name].tobytes() == np.asarray(array, back[name].dtype, order="C").tobytes() == theirs[name]["data"]
        assert back[name].flags.writeable
        assert back[name].flags.owndata


def test_arrays_of_jax_can_be_written(tmp_path):
    write_safetensors(tmp_path / "jax", {"x": jnp.array([1.0, 1 / 3], jnp.bfloat16)})
    np.testing.assert_array_equal(read_safetensors(tmp_path / "jax")["x"], np.array([1.0, 1 / 3], jnp.bfloat16))


def test_an_existing_file_is_not_overwritten(tmp_path):
    write_safetensors(tmp_path / "a", {"x": np.zeros(1)})
    with pytest.raises(FileExistsError):
        write_safetensors(tmp_path / "a", {"x": np.ones(1)})
    assert read_safetensors(tmp_path / "a")["x"] == 0


def test_an_unknown_dtype_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be written.*complex128"):
        write_safetensors(tmp_path / "a", {"x": np.zeros(1, np.complex128)})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"bad": np.array(["text"])}, r"bad \(<U4\) must be an array of a dtype that safetensors has"),
        ({"bad": {"kernel": np.zeros(1)}}, r"bad \(object\) must be"),
        ({"bad": [[1], [1, 2]]}, "bad must be an array that NumPy can read"),
        ({"bad": np.ma.masked_array([1.0], [True])}, "the mask of bad would be lost"),
        ({3: np.zeros(1)}, "a name must be a string .*; got 3"),
        ({"__metadata__": np.zeros(1)}, "a name must be a string other than '__metadata__'"),
    ],
    ids=["strings", "tree", "ragged", "masked", "number", "reserved"],
)
def test_what_cannot_be_written_is_named(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=f"cannot be written: {message}"):
        write_safetensors(tmp_path / "a", {"good": np.zeros(1), **arrays})
    assert not (tmp_path / "a").exists()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path, content = tmp_path / "cut.safetensors", save({"a": np.arange(3.0), "b": np.ones(2, np.float32)})
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(
            ValueError, match=r"cut\.safetensors is not a safetensors file, or is damaged or cut short: "
        ):
            read_safetensors(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content + b"\0",
        lambda content: b"\xff" * 8 + content[8:],
        lambda content: content.replace(b'"F64"', b'"F99"'),
        lambda content: content.replace(b"[3]", b"[4]"),
        lambda content: content.replace(b"{", b"[", 1),
        lambda content: b"no weights at all, but a letter of some length",
    ],
    ids=["longer", "header too long", "dtype", "shape", "no JSON", "text"],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(damage(save({"a": np.arange(3.0)})))
    with pytest.raises(ValueError, match="is not a safetensors file, or is damaged or cut short"):
        read_safetensors(path)


def test_a_pickle_is_refused_and_the_message_names_the_converter(tmp_path):
    for beginning in (b"PK\x03\x04", b"\x80\x02"):
        path = tmp_path / "model.pt"
        path.write_bytes(beginning + b"0" * 64)
        with pytest.raises(ValueError, match=r"a pickle and is not read here; `python -m torch_ref\.to_safetensors "):
            read_safetensors(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_safetensors(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        read_safetensors(tmp_path)


def test_a_tensor_is_read_when_it_is_asked_for_and_a_file_cut_meanwhile_is_found(tmp_path):
    path, arrays = (
        tmp_path / "w.safetensors",
        {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(2), "c": np.zeros((0, 2))},
    )
    write_safetensors(path, arrays)
    weights = SafetensorsFile(path)
    assert list(weights) == ["a", "b", "c"]
    assert "a" in weights
    assert "d" not in weights
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name], array)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(ValueError, match="was cut short while it was read"):
        [weights[name] for name in weights]

import numpy as np
import pytest

from jax_attn.checkpoints import d2l, write_safetensors
from jax_attn.checkpoints.__main__ import main

OLDER = d2l.GENERATIONS[2]


def write(path, **changes):
    sizes = d2l.Sizes(2, False, 11, 5, 9, 4, 6, 6)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in d2l.layout(OLDER, sizes).items()}
    write_safetensors(path, arrays | changes)
    return arrays


def test_every_tensor_is_listed_and_the_model_described(tmp_path, capsys):
    path = tmp_path / "older.safetensors"
    arrays = write(path)
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    assert f"{path}: {len(arrays)} tensors, " in text
    for name, array in arrays.items():
        assert [name, str(list(array.shape)), "float32"] in [
            [line.split()[0], line[line.index("[") : line.index("]") + 1], line.split()[-1]]
            for line in text.splitlines()
            if line.endswith("float32") and "[" in line
        ]
    for expected in (
        "generation 2020: jax_attn.models.EncoderDecoder in float32",
        "source     11 words, embeddings of 5",
        "target     9 words, embeddings of 4",
        "LSTM, layers: 2, hidden units: 6; the decoder's without biases",
        "additive, hidden units: 6, without tanh",
        f"load(read_safetensors({str(path)!r}))",
    ):
        assert expected in text


def test_the_printed_code_loads_the_model(tmp_path, capsys):
    write(tmp_path / "older.safetensors")
    main([str(tmp_path / "older.safetensors")])
    program = "\n".join(line.strip() for line in capsys.readouterr().out.splitlines()[-2:])
    names: dict = {}
    exec(program, names)
    assert names["module"].encoder.num_hiddens == 6


def test_an_unknown_model_is_listed_and_then_refused(tmp_path, capsys):
    path = tmp_path / "other.safetensors"
    write(path, **{"decoder.extra": np.zeros(3, np.float32)})
    assert main([str(path)]) == 2
    shown = capsys.readouterr()
    assert "decoder.extra " in shown.out
    assert shown.err.startswith("error: the keys resemble generation 2020 ")
    assert shown.err.endswith("unknown: ['decoder.extra']\n")
    write_safetensors(tmp_path / "empty", {})
    assert main([str(tmp_path / "empty")]) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory"),
        (lambda path: path.write_text("text"), "is not a safetensors file, or is damaged or cut short"),
    ],
    ids=["none", "text"],
)
def test_an_unreadable_file_gives_one_line(tmp_path, capsys, make, message):
    path = tmp_path / "file"
    make(path)
    assert main([str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert str(path) in shown.err
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_help_names_the_command_and_the_converter(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "python -m jax_attn.checkpoints FILE" in text
    assert "python -m torch_ref.to_safetensors FILE.pt" in text

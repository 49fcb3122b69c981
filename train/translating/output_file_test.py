"""Long texts: on several devices, killed and going on, and refusing what does not belong together."""

import subprocess
import sys

import pytest

from train import translate
from train.data.embedded import embedded_pairs
from train.translating.output_file import OutputFile

SENTENCES = [pair.source for pair in embedded_pairs()[-50:]]
TEXT = "\ufeff" + "\r\n".join(["", *SENTENCES])
OPTIONS = ["--sample", "--seed", "3", "--nbest", "2", "--scores"]  # what is drawn depends on the line's number

ON_THREE = """
import sys
from train import translate
from train.config import MeshShape
status = translate.main([*sys.argv[1:], "--mesh", "data=3"])
from train.machine.devices import make_mesh
from train.data.embedded import embedded_pairs
sentences = [pair.source for pair in embedded_pairs()[-50:]]

def bits(translations):
    found = [hypothesis for t in translations for hypothesis in t.hypotheses]
    return [(h.ids, h.text, h.score, h.token_scores.tobytes(), h.weights.tobytes()) for h in found]

options = {"sample": True, "num_samples": 3} if "--sample" in sys.argv else {"beam_size": 3}
one, three = (
    bits(translate.Translator.load(sys.argv[1], mesh=mesh, **options)(sentences))
    for mesh in (None, make_mesh(MeshShape(3)))
)
print(len(one), one == three, file=sys.stderr)
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def call(run, text, capsys):
    """Translate the text, 7 lines at a time. Return (exit status, output, errors)."""

    def call(*more: object) -> tuple[int, str, str]:
        status = translate.main([str(run[0]), "--file", str(text), "--batch", "7", *OPTIONS, *map(str, more)])
        return (status, *capsys.readouterr())

    return call


@pytest.mark.parametrize("options", [["--beam", "3"], ["--sample"]])
@pytest.mark.slow
def test_three_devices_translate_with_the_bits_of_one(run, text, capsys, options):
    arguments = [str(run[0]), "--file", str(text), *options, "--nbest", "3", "--alignments", "json"]
    done = subprocess.run([sys.executable, "-c", ON_THREE, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("150 True\n")
    assert translate.main(arguments) == 0  # here programs are compiled with other options, and so with other bits
    assert len(done.stdout.splitlines()) == len(capsys.readouterr().out.splitlines()) == 1 + 3 * len(SENTENCES)


def test_a_killed_translation_goes_on_to_the_same_bytes(call, tmp_path, monkeypatch):
    """It is killed before a block is known, when the record is written, and while a block is being written."""
    out, save, saved = tmp_path / "out.txt", OutputFile.save_record, []

    def killed(output):
        saved.append(output.written.lines)
        if len(saved) in (1, 5, 6):
            raise KeyboardInterrupt
        save(output)

    monkeypatch.setattr(OutputFile, "save_record", killed)
    sizes = []
    for _ in range(3):
        assert call("--out", out, "--resume")[0] == 130
        sizes.append(out.stat().st_size)
        with out.open("ab") as file:
            file.write(b"a torn li" if sizes[-1] else b"")
    assert 0 == sizes[0] < sizes[1] == sizes[2]
    assert call("--out", out, "--resume")[:2] == (0, "")
    expected = call()[1]
    assert out.read_bytes() == expected.encode()
    assert saved == [0, 0, 13, 27, 41, 41, 41, 55, 69, 83, 97, 101]
    assert call("--out", out, "--resume") == (0, "", "")
    assert out.read_bytes() == expected.encode()


def test_what_does_not_belong_together_is_refused(run, call, text, tmp_path):
    out, record = tmp_path / "out.txt", tmp_path / "out.txt.progress.json"
    assert call("--out", out)[0] == 0
    kept, known = out.read_bytes(), record.read_text()
    status, _, errors = call("--out", out)
    assert (status, "out.txt exists: name another file, or go on with --resume" in errors) == (2, True)

    def refusal(*options):
        status, _, errors = call("--out", out, "--resume", *options)
        assert (status, errors.count("\n")) == (2, 1)
        assert errors.startswith(f"error: --resume cannot go on with {out}: ")
        return errors

    assert "begun with another --nbest and another --temperature;" in refusal("--nbest", "1", "--temperature", "2")
    assert "begun with another run" in refusal("--ensemble", run[0])
    text.write_bytes(TEXT.replace("a", "e", 1).encode())
    assert "the text that was translated has changed since" in refusal()
    text.write_bytes(TEXT.encode() + b"\nthe cat sleeps .")  # the last line had no end
    assert "the text that was translated has changed since" in refusal()
    text.write_bytes(TEXT.encode())
    out.write_bytes(kept[:-2] + b"\n\n")
    assert "its lines are not those that were written" in refusal()
    out.write_bytes(kept)
    for content in ("", "{}", '{"settings": 1, "read": 1, "written": 1}', known.replace('"bytes": ', '"bytes": -')):
        record.write_text(content)
        refusal()
    record.unlink()
    assert "does not say how far it is (out.txt.progress.json is missing)" in refusal()
    assert out.read_bytes() == kept


def test_two_programs_do_not_write_the_same_file(call, tmp_path, monkeypatch):
    out, second = tmp_path / "out.txt", []
    monkeypatch.setattr(
        OutputFile, "save_record", lambda output: second or second.append(call("--out", out, "--resume"))
    )
    assert call("--out", out)[0] == 0
    assert second[0][0] == 2
    assert "is in use: another process writes it" in second[0][2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --out"),
        (["--out", "nowhere/a.txt"], "nowhere/a.txt cannot be written: it must be a file in a folder that exists"),
        (["--out", "a.txt", "a sentence"], "--out is for a text"),
        (["--out", "a.txt", "--resume", "--page", "a.html"], "--resume draws nothing"),
        (["--mesh", "data=0"], "the mesh must be data=N"),
        (["--mesh", "data=2,model=2"], "--mesh must be data=N, since each device holds the whole model"),
        (["--mesh", "data=9999", "a sentence"], "9999 devices"),
    ],
)
def test_bad_options_give_one_line_of_error(run, capsys, options, message):
    assert translate.main([str(run[0]), *options]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_a_line_that_is_not_utf8_is_not_passed_over(call, text, tmp_path):
    out, good = tmp_path / "out.txt", TEXT.encode().splitlines(keepends=True)
    text.write_bytes(b"".join([*good[:9], b"\xff\n", *good[9:]]))
    for _ in range(2):
        status, _, errors = call("--out", out, "--resume")
        assert (status, out.read_bytes().count(b"\n")) == (2, 1 + 2 * 8)
        assert "line 10 of" in errors
    text.write_bytes(TEXT.encode())
    assert call("--out", out, "--resume")[0] == 0
    assert out.read_bytes() == call()[1].encode()

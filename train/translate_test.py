"""The command line: its output, the same bits in any batch, and its errors."""

import dataclasses
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jax_attn import sample_search
from train import translate
from train.command_line.terminal import printable
from train.config import SearchConfig
from train.data.embedded import embedded_pairs
from train.machine.whole_files import sha256, write_json
from train.runs.run_folder import read_manifest
from train.setting import ConfigError
from train.translate import Translator
from train.translating import lines
from train.translating.alignments import replace_unknown

SENTENCES = [pair.source for pair in embedded_pairs()[-120:]]

CONSTRAINED = {"beam_size": 4, "min_len": 12, "max_len": 14, "no_repeat_ngram": 1}
CONSTRAINED |= {"coverage_penalty": 5.0, "length_norm": "gnmt"}


@pytest.fixture
def folder(run) -> Path:
    """The folder of a small run: its hypotheses are close, and their lengths differ."""
    return run[0]


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the program with bytes at standard input. Return (exit status, output, errors)."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = translate.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """Copy the run, to change it."""
    return shutil.copytree(folder, tmp_path / "copy")


def sign(folder: Path) -> None:
    """Let the manifest list the files as they are: what was changed is no damage then."""
    names = [name for name in read_manifest(folder) if (folder / name).exists()]
    write_json(folder / "manifest.json", {"files": {name: [sha256(folder / name)] for name in names}})


@pytest.mark.usefixtures("same_bits")
@pytest.mark.parametrize(
    ("search", "count"),
    [
        ({"beam_size": 3}, 48),
        pytest.param({"beam_size": 1}, 120, marks=pytest.mark.slow),
        pytest.param({"sample": True, "num_samples": 2}, 120, marks=pytest.mark.slow),
    ],
)
def test_neither_the_batch_nor_the_order_changes_a_bit(folder, search, count):
    translator, sentences = Translator.load(folder, **search), SENTENCES[-count:]
    together = {text: [t] for text, t in zip(sentences, translator(sentences), strict=True)}
    lengths = {len(t[0].best.ids) for t in together.values()}
    assert len(lengths) > 3
    ways = {1: sentences[:10], 7: sentences, 40: sentences}
    for size, texts in ways.items():
        for start in range(0, len(texts), size):
            batch = texts[start : start + size]
            for text, translation in zip(batch, translator(batch, start + 1), strict=True):
                together[text].append(translation)
    if "sample" not in search:  # sampling draws by a sentence's number in its text
        for text, translation in zip(reversed(sentences), translator(sentences[::-1]), strict=True):
            together[text].append(translation)
    for first, *others in together.values():
        for other in others:
            assert other.source == first.source
            for one, another in zip(first.hypotheses, other.hypotheses, strict=True):
                assert (one.ids, one.score) == (another.ids, another.score)
                assert one.token_scores.tobytes() == another.token_scores.tobytes()
                assert one.weights.tobytes() == another.weights.tobytes()


def test_each_line_gives_one_line_whatever_it_holds(folder, call):
    lines = ["the cat sleeps .", "", "  ", "龍 \U0001f98a \u2028 \x00 <eos> \\n", "the cat sleeps ."]
    source = "\ufeff" + "\r\n".join(lines)  # a byte order mark, and no end to the last line
    status, output, errors = call(folder, stdin=source.encode())
    written = output.split("\n")
    assert status == 0
    assert errors.startswith("warning: the model does not know ")
    assert "\x00" not in errors
    assert len(written) == 6  # the last line has its end
    assert written[1] == written[2] == written[5] == ""
    assert written[0] == written[4] != ""


def test_control_characters_are_not_written():
    assert printable("a\x1b[31m\x85\u200db\u202ec") == "a\ufffd[31m\ufffd\u200db\ufffdc"


def test_sentences_come_from_arguments_a_file_or_standard_input(folder, call, tmp_path):
    two = SENTENCES[:2]
    (tmp_path / "two.txt").write_text("\n".join(two), encoding="utf-8")
    ways = [
        call(folder, *two),
        call(folder, "--file", tmp_path / "two.txt"),
        call(folder, stdin="\n".join(two).encode()),
        call(folder, "--file", "-", stdin="\n".join(two).encode()),
    ]
    assert ways[0] == ways[1] == ways[2] == ways[3]
    assert ways[0][1].count("\n") == 2
    assert call(folder, stdin=b"") == (0, "", "")


def test_a_pipe_is_waited_for_with_a_word_and_a_line_that_never_ends_is_an_error(folder, call, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    said = threading.Event()
    monkeypatch.setattr(sys.stderr, "write", lambda text: said.set())
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(SENTENCES[0] * said.wait(30)))
    writer.start()
    assert call(folder, "--file", tmp_path / "pipe")[1] == call(folder, stdin=SENTENCES[0].encode())[1]
    writer.join()
    monkeypatch.undo()
    monkeypatch.setattr(lines, "LONGEST", 100)
    status, output, errors = call(folder, "--batch", "1", "--file", "/dev/zero")
    assert (status, output) == (2, "")
    assert errors == "error: line 1 of /dev/zero has more than 100 bytes; is it a text?\n"


def test_a_long_line_is_translated_in_part_and_a_warning_says_so(folder, call):
    longest = Translator.load(folder).max_source_len
    words = ("the cat and the dog " * 40).split()
    status, output, errors = call(folder, "--batch", "1", stdin=" ".join(["a .\n", *words]).encode())
    assert status == 0
    assert errors.startswith(
        f"warning: sentence 2 has 200 words and is translated in part: the model reads {longest}, as many as its "
        "longest in training\n"
    )
    assert output.splitlines()[1] == call(folder, " ".join(words[:longest]))[1].rstrip("\n")


def test_columns(folder, call):
    wanted = ("--beam", "3", "--nbest", "2", "--scores", "--alignments", "pharaoh")
    status, output, _ = call(folder, *wanted, "--batch", "1", *SENTENCES[:2])
    rows = [line.split("\t") for line in output.splitlines()]
    assert status == 0
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    expected = Translator.load(folder, beam_size=3)(SENTENCES[0])
    assert rows[0][2] == expected.text
    links = [tuple(map(int, link.split("-"))) for link in rows[0][3].split()]
    best = expected.weights[: len(expected.target), : len(expected.source)].argmax(-1)
    assert links == [(int(i), j) for j, i in enumerate(best)]


def test_soft_alignments_are_json(folder, call):
    _, output, _ = call(folder, "--alignments", "json", SENTENCES[0])
    written = json.loads(output.split("\t")[1])
    expected = Translator.load(folder)(SENTENCES[0])
    assert written["source"] == [*expected.source, "<eos>"]
    assert written["target"] == list(expected.best.tokens)
    np.testing.assert_allclose(written["weights"], expected.weights, atol=1e-6)


def test_unknown_words_are_replaced_by_the_source_word_attended_to(folder):
    translation = Translator.load(folder)(SENTENCES[0])
    best = translation.best
    unknown = dataclasses.replace(best, ids=(3, *best.ids[1:]), target=("<unk>", *best.target[1:]))
    vocabulary = Translator.load(folder).target
    copied = replace_unknown(dataclasses.replace(translation, hypotheses=(unknown,)), vocabulary)
    assert copied.text == vocabulary.join(copied.target)
    peaks = best.weights[: len(best.target), : len(translation.source)].argmax(axis=-1)
    for j, word in enumerate(copied.target):
        assert word == (translation.source[peaks[j]] if unknown.target[j] == "<unk>" else best.target[j])


def test_a_string_gives_one_translation_and_a_list_several(folder):
    translator = Translator.load(folder)
    assert translator(SENTENCES[0]).text == translator([SENTENCES[0]])[0].text
    assert translator("").text == ""
    assert translator([]) == []


def test_options_of_the_search_change_what_is_found(folder):
    assert min(len(t.best.ids) for t in Translator.load(folder)(SENTENCES[:8])) < 12
    for t in Translator.load(folder, **CONSTRAINED)(SENTENCES[:8]):
        length = len(t.best.ids)
        assert length in (12, 13, 14)
        assert len(set(t.best.ids)) == length
        coverage = np.log(np.minimum(t.weights.sum(axis=0), 1)).sum()
        assert t.score == pytest.approx(t.best.token_scores.sum() * 6 / (5 + length) + 5 * coverage, abs=1e-3)


@pytest.mark.slow
def test_a_seed_draws_the_same_and_another_seed_other_translations(folder, call):
    drawn = [call(folder, "--sample", "--seed", seed, "--top-k", "50", *SENTENCES[:9])[1] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    cold = call(folder, "--sample", "--temperature", "0.001", *SENTENCES[:9])[1]
    assert cold == call(folder, *SENTENCES[:9])[1]


def test_sampling_gets_its_options():
    options = {"num_samples": 3, "temperature": 0.5, "top_k": 2, "top_p": 0.9}
    config = SearchConfig(sample=True, min_len=4, **options)
    assert config.function == "sample_search"
    assert config.of(sample_search) == options | {
        "min_len": 4,
        "no_repeat_ngram": None,
        "force_end": False,
        "renormalize": False,
    }


def test_an_ensemble_of_a_run_with_itself_is_the_run(folder):
    alone, twice = Translator.load(folder), Translator.load(folder, folder)
    for one, two in zip(alone(SENTENCES[:2]), twice(SENTENCES[:2]), strict=True):
        assert one.text == two.text
        assert one.score == pytest.approx(two.score, abs=1e-5)


def test_explain_lists_the_probabilities_that_the_search_saw(folder):
    translator = Translator.load(folder, beam_size=3)
    translations = translator(["", *SENTENCES[:4]])
    for translation, explained in zip(translations, translator.explain(translations), strict=True):
        for hypothesis, steps in zip(translation.hypotheses, explained, strict=True):
            assert len(steps) == len(hypothesis.ids)
            for token, log_prob, step in zip(hypothesis.tokens, hypothesis.token_scores, steps, strict=True):
                assert len(step) == 8
                assert [p for _, p in step] == sorted((p for _, p in step), reverse=True)
                assert dict(step).get(token, log_prob) == pytest.approx(log_prob, abs=1e-4)
    best = translations[1].best
    assert max(step[0][1] for step in translator.explain(translations)[1][0]) <= 0
    assert best.tokens[0] in dict(translator.explain(translations)[1][0][0])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda b: b[:100], "config.json is damaged, it is not JSON"),
        ("config.json", lambda b: b"[]", "config.json is damaged: it must hold a JSON dict"),
        ("config.json", lambda b: b.replace(b'"format": 1', b'"format": 9'), "config.json has format 9, and this"),
        ("config.json", lambda b: b.replace(b'"cell"', b'"flux"'), "there is no setting model.flux"),
        ("config.json", lambda b: b.replace(b'"max_source_len": ', b'"max_source_len": -'), "a length; got -"),
        ("config.json", lambda b: b.replace(b'"num_hiddens": 32', b'"num_hiddens": 64'), "does not fit config.json or"),
        ("source.json", lambda b: b'{"a": 1}', "source.json is damaged: it must hold a JSON list"),
        ("target.json", lambda b: b'["a"]', "a vocabulary must begin with"),
        ("model.safetensors", lambda b: b[:-100], "damaged or cut short"),
        ("model.safetensors", lambda b: None, "it has no model.safetensors"),
        ("config.json", lambda b: None, "it has no config.json; name the run folder that"),
    ],
)  # fmt: skip
def test_a_damaged_run_gives_one_line_of_error(copy, call, name, change, message):
    content = change((copy / name).read_bytes())
    if content is None:
        (copy / name).unlink()
    else:
        assert content != (copy / name).read_bytes()
        (copy / name).write_bytes(content)
        sign(copy)
    status, output, errors = call(copy, "the cat sleeps .")
    assert (status, output) == (2, "")
    assert errors.startswith(f"error: {copy} holds no run that can be loaded: ")
    assert message in errors
    assert errors.count("\n") == 1


def test_nan_weights_and_nan_scores_are_errors(copy, call):
    weights = load_file(copy / "model.safetensors")
    weights["decoder.dense.weight"][:] = 3e38  # finite, and their sums are not
    weights["decoder.dense.weight"][1::2] = -3e38
    save_file(weights, copy / "model.safetensors")
    sign(copy)
    status, output, errors = call(copy, "", "the cat sleeps .")
    assert (status, output) == (2, "")
    assert "the model's scores of sentence 2 are NaN" in errors
    weights["decoder.dense.bias"][5] = np.nan
    save_file(weights, copy / "model.safetensors")
    sign(copy)
    status, _, errors = call(copy, "the cat sleeps .")
    assert status == 2
    assert "decoder.dense.bias holds NaN or infinite numbers" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "--beam-size must be in [1, 10000]; got 0"),
        (["--beam", "9999"], "--beam-size must be at most"),
        (["--min-len", "5", "--max-len", "3"], "--min-len must be at most 3, the most tokens; got 5"),
        (["--min-len", "500"], "unless --max-len is given; got 500"),
        (["--nbest", "0"], "--nbest must be in [1, 10000]; got 0"),
        (["--nbest", "3"], "--nbest must be at most --beam-size, which is 1; got 3"),
        (["--length-penalty", "nan"], "--length-penalty must be in [0, 10]; got nan"),
        (["--temperature", "0.5"], "--temperature needs --sample"),
        (["--sample", "--temperature", "0"], "--temperature must be in [0.001, 1000.0]; got 0.0"),
        (["--sample", "--beam", "2"], "--beam-size must be 1 where translations are drawn; got 2"),
        (["--out", "a.html", "--page", "./a.html"], "--out and a picture or page are the same file, a.html"),
        (["--page", "page.txt"], "--page must end in .html or .htm; got page.txt"),
        (["--heatmap", "a.gif"], "--heatmap must end in .png or .svg or .pdf; got a.gif"),
        (["--heatmap", "nowhere/a.png"], "nowhere/a.png cannot be written: it must be a file in a folder that exists"),
        (["--compare", "nowhere"], "--compare needs --page"),
        (["--file", "a.txt", "hello"], "either sentences or --file can be given, and not both"),
        (["--file", "nowhere.txt"], "nowhere.txt cannot be read: No such file or directory"),
        (["--file", "."], ". cannot be read: Is a directory"),
        (["--ensemble", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_bad_options_give_one_line_of_error(folder, call, options, message):
    status, output, errors = call(folder, *options)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_missing_folder_is_an_error(call, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        status, _, errors = call(path, "hello")
        assert status == 2
        assert errors == f"error: there is no folder {path}; name the run folder that `python -m train.nmt` wrote\n"


def test_a_line_that_is_not_utf8_is_an_error_after_the_lines_before_it(folder, call):
    status, output, errors = call(folder, stdin=b"the cat sleeps .\nthe \xe9l\xe9phant .\nthe cat sleeps .\n")
    assert status == 2
    assert output == call(folder, "the cat sleeps .")[1]
    assert "line 2 of standard input is not UTF-8: byte 5 of it is 0xe9" in errors
    status, output, errors = call(folder, "--split", stdin=b"\xe9\n")
    assert (status, output) == (2, "")
    assert "line 1 of standard input is not UTF-8" in errors


def test_runs_with_different_vocabularies_are_no_ensemble(folder, copy):
    words = json.loads((copy / "target.json").read_text(encoding="utf-8"))
    (copy / "target.json").write_text(json.dumps([*words[:-1], "zut"]), encoding="utf-8")
    sign(copy)
    with pytest.raises(ConfigError, match="have different vocabularies, and cannot translate together"):
        Translator.load(folder, copy)


def test_an_unknown_option_of_the_search_is_an_error(folder):
    with pytest.raises(ConfigError, match="a search has no option beam; it has beam_size"):
        Translator.load(folder, beam=3)
    with pytest.raises(ConfigError, match=r"^beam_size must be in \[1, 10000\]; got 0"):
        Translator.load(folder, beam_size=0)


def test_pictures_and_the_page_are_written(folder, call, tmp_path):
    picture, page = tmp_path / "a.svg", tmp_path / "a.html"
    options = ("--beam", "3", "--heatmap", picture, "--page", page, "--compare", folder)
    status, output, errors = call(folder, *options, *SENTENCES[:2], "", "zebra \u9f8d")
    assert (status, errors.count("\n")) == (0, 1)
    assert errors.startswith("warning: the model does not know zebra, 龍: ")
    assert output.count("\n") == 4
    assert "龍" in picture.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert [side["name"] for side in data] == 2 * [str(folder)]
    for side in data:
        assert [len(sentence["hypotheses"]) for sentence in side["sentences"]] == [3, 3, 3]
    assert data[1]["sentences"][0]["against"].endswith("at most 0.0e+00, attention weights by at most 0.0e+00")
    texts = [sentence["hypotheses"][0]["text"] for sentence in data[0]["sentences"]]
    assert texts == [line for line in output.splitlines() if line]


def test_nothing_to_show_gives_warnings_and_no_files(folder, call, tmp_path):
    status, _, errors = call(folder, "--heatmap", tmp_path / "a.png", "--page", tmp_path / "a.html", "")
    assert status == 0
    assert errors.count("is not written: there is no") == 2
    assert list(tmp_path.iterdir()) == []


def test_options_that_need_attention_are_errors_without_it(copy, call):
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["model"]["attention"] = "none"
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sign(copy)
    for options in (["--alignments", "json"], ["--replace-unknown"], ["--coverage-penalty", "1"]):
        status, _, errors = call(copy, *options, "hello")
        assert status == 2
        assert f"{options[0]} needs attention, and the model" in errors


def test_unknown_words_are_named(folder, call):
    status, output, errors = call(folder, "the zebras and the xylophones .", "the cat .", "z" * 50_000)
    assert (status, output.count("\n")) == (0, 3)
    about = "people, families, animals, food, clothes, things of the house, and the places of a village"
    assert errors == (
        f"warning: the model does not know zebras, xylophones, {'z' * 40}…: it reads <unk>, and guesses the rest. "
        f"The embedded corpus has few words, about {about}\n"
    )
    assert call(folder, "the cat .")[2] == ""


def test_a_terminal_is_answered_line_by_line(folder):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "train.translate", str(folder)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        for _ in range(2):
            os.write(ours, b"the cat .\n")
            assert program.stdout.readline().strip()
        os.write(ours, b"\x04")
        assert program.stderr.read() == b"one sentence a line; Ctrl-D ends\n"
        assert program.wait() == 0
    os.close(ours)
    os.close(theirs)


def test_a_closed_pipe_ends_the_program_quietly(folder, call, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        assert call(folder, stdin=b"the cat sleeps .\n") == (141, "", "")
        output.close()  # nor does Python say anything when it writes what is left

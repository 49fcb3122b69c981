"""The scores of a saved run, on its own test set and on files."""

import gzip
import json
import math
import shutil
from dataclasses import replace

import pytest

from train import evaluate
from train.data.corpus import CorpusError, Pair
from train.machine.whole_files import sha256
from train.runs.run_folder import RunFolder
from train.translate import Translator
from train.translating import scoring

TWO = "The cat sleeps.\tLe chat dort.\nI am here.\tJe suis ici.\n"


def call(capsys, *arguments) -> tuple[int, str, str]:
    capsys.readouterr()
    status = evaluate.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_the_runs_own_test_set_gives_the_scores_of_its_summary(run, capsys):
    folder, summary = run
    status, output, errors = call(capsys, folder, "--json")
    assert (status, errors) == (0, "")
    report = json.loads(output)
    assert report["pairs"] == summary["test_pairs"] == 16
    assert report["scores"]["BLEU lower-cased"]["score"] == pytest.approx(summary["bleu"])
    assert (
        report["scores"]["BLEU lower-cased"]["signature"].replace("|bs:1000|seed:12345", "")
        == (summary["bleu_signature"])
    )
    assert report["scores"]["chrF"]["score"] == pytest.approx(summary["chrf"])
    assert report["nats_per_token"] == pytest.approx(summary["test_nats_per_token"])


def test_a_test_set_that_has_changed_since_the_training_is_an_error(run, capsys, tmp_path):
    copy = shutil.copytree(run[0], tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoint", "tensorboard"))
    for name in ("config.json", "manifest.json"):
        path = copy / name
        path.write_text(path.read_text().replace('"train": 600', '"train": 601'))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["config.json"] = [sha256(copy / "config.json")]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    status, output, errors = call(capsys, copy)
    assert (status, output) == (2, "")
    assert f"the sentence pairs have changed since {copy} was trained, and some of them may have been" in errors


def test_the_alignment_error_of_each_head_is_drawn_and_printed(run, capsys, tmp_path):
    folder, summary = run
    path = tmp_path / "heads.svg"
    status, output, errors = call(capsys, folder, "--heads", path)
    assert (status, errors) == (0, "")
    rate = summary["alignment_error_rate"]
    assert output.endswith(
        "alignment error by layer and head (0 is best)\n"
        "  layer   head 0   mean of heads\n"
        f"  0       {rate:.3f}    {rate:.3f}\n"
        "  the model has no other head\n"
    )
    assert f">{rate:.2f}<" in path.read_text(encoding="utf-8")
    status, output, _ = call(capsys, folder, "--heads", path, "--json")
    expected = pytest.approx(rate)
    assert json.loads(output)["alignment_errors"] == {"heads": [[expected]], "mean_of_heads": [expected]}


def test_a_picture_of_heads_that_cannot_be_is_an_error(run, capsys, tmp_path):
    pairs, path = tmp_path / "two.txt", tmp_path / "a.png"
    pairs.write_text(TWO)
    path.write_text("mine")
    for options, message in (
        ([tmp_path / "a.gif"], "--heads must end in .png or .svg or .pdf; got "),
        ([path], "a.png exists, and is no picture or page of this kind: name another file\n"),
        ([tmp_path / "b.png", "--data", pairs], "--heads needs gold alignments: leave out --data, with a run of the "),
    ):
        status, output, errors = call(capsys, run[0], "--heads", *options)
        assert (status, output, errors.count("\n")) == (2, "", 1)
        assert message in errors
    assert path.read_text() == "mine"


def test_languages_without_data_are_an_error(run, capsys):
    assert call(capsys, run[0], "--languages", "de", "en") == (
        2,
        "",
        "error: --languages are the endings of the files of --data: give --data, too\n",
    )


def test_scores_that_cannot_be_written_are_one_line_of_error(run, capsys, monkeypatch):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        for output, status, said in ((full, 1, "the output cannot be written"), (None, 2, "must be open")):
            patch.setattr("sys.stdout", output)
            ended, _, errors = call(capsys, run[0])
            assert (ended, errors.count("\n")) == (status, 1)
            assert said in errors


def test_references_that_are_guessed_worse_than_by_chance_are_a_warning(run, capsys, tmp_path, monkeypatch):
    (tmp_path / "two.txt").write_text(TWO)
    found = scoring.evaluate(Translator.load(run[0]), [Pair("I am here.", "Je suis ici.")])
    chance = len(RunFolder(run[0]).load().target)
    said = f"warning: the perplexity of the references is {chance}: are they in the languages of this run?\n"
    for nats, errors in ((math.log(chance) - 1e-6, ""), (math.log(chance) + 1e-6, said)):
        monkeypatch.setattr(scoring, "evaluate", lambda *_, nats=nats: replace(found, nats=nats, tokens=1))
        assert call(capsys, run[0], "--data", tmp_path / "two.txt")[2] == errors


def test_a_file_and_two_parallel_files_give_the_same_and_a_run_equals_itself(run, capsys, tmp_path):
    (tmp_path / "two.txt").write_text(TWO)
    sides = zip(*(line.split("\t") for line in TWO.splitlines()), strict=True)
    for name, lines in zip("ab", sides, strict=True):
        (tmp_path / name).write_bytes(gzip.compress("\n".join(lines).encode()))
        (tmp_path / f"t.{name}").symlink_to(tmp_path / name)
    ways = ((("two.txt",), ()), (("a", "b"), ()), (("t",), ("a", "b")))
    one, *others = (
        evaluate.given_pairs(evaluate.Options(run[0], tuple(str(tmp_path / name) for name in names), languages))
        for names, languages in ways
    )
    assert (others, len(one)) == ([one, one], 2)
    status, output, _ = call(capsys, run[0], "--data", tmp_path / "two.txt", "--compare", run[0])
    assert status == 0
    assert "+0.00   p 1.0000 by paired bootstrap, 1.0000 by approximate randomisation" in output
    assert "BLEU lower-cased" in output
    assert "case:lc" in output


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([b""], "no pair in {0} (it is empty)"),
        ([b"a\nb\n", b"c\n"], "{1} ends after line 1, and {0} has 2 lines"),
        ([gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9]], "{0} is damaged: gzip cannot unpack it"),
        ([None], "there is no file {0}"),
        ([b"a\tb\n"] * 3, "got 3 names"),
    ],
)
def test_files_that_cannot_be_scored_give_one_line_of_error(capsys, tmp_path, files, message):
    paths = [tmp_path / str(i) for i in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        if content is not None:
            path.write_bytes(content)
    status, output, errors = call(capsys, tmp_path, "--data", *paths)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert message.format(*paths) in errors


def test_lines_that_cannot_be_used_are_a_warning_and_a_public_corpus_gives_its_test_set(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\tb\n" * 99 + b"c\n\xff\tb\n")
    with (
        pytest.warns(UserWarning, match=r"^1 line without a tab \(.*a\.txt\)"),
        pytest.warns(match="^1 line of invalid"),
    ):
        assert evaluate.given_pairs(evaluate.Options(tmp_path, (str(tmp_path / "a.txt"),))) == (Pair("a", "b"),) * 99
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            (tmp_path / f"{part}.{language}").write_text(f"{part} {language}\n")
    named = evaluate.Options(tmp_path, ("multi30k:de-en",), mirror=str(tmp_path))
    assert evaluate.given_pairs(named) == (Pair("test_2016_flickr de", "test_2016_flickr en"),)
    (tmp_path / "fra.txt").write_text("a\tb\n")
    with pytest.raises(CorpusError, match="tatoeba:eng-fra has no test set of its own"):
        evaluate.given_pairs(replace(named, data=("tatoeba:eng-fra",)))


def test_a_large_test_set_is_thinned_with_a_warning(run, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_PAIRS", 3)
    monkeypatch.setattr(scoring, "CHUNK", 2)
    translator = Translator.load(run[0])
    pairs = [Pair(f"the cat sleeps {i} .", "le chat dort .") for i in range(8)]
    with pytest.warns(UserWarning, match="only one in 3 of the 8 pairs is scored"):
        found = scoring.evaluate(translator, pairs)
    assert found.pairs == pairs[::3]
    assert found.tokens == 15
    assert len(found.links) == len(found.texts) == 3
    whole = scoring.evaluate(translator, pairs[:1])
    assert whole.texts == found.texts[:1]
    assert whole.links == found.links[:1]


def test_sentences_of_unknown_words_have_their_own_known_translations(run):
    translator = Translator.load(run[0])
    train = [Pair("zyx zyx .", "eins ."), Pair("xyz xyz .", "zwei .")]
    shown = translator([pair.source for pair in train])
    assert translator.source.encode(train[0].source) == translator.source.encode(train[1].source)
    assert scoring.known_translations(shown, train, translator) == [["eins ."], ["zwei ."]]

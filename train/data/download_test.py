"""Public corpora from a mirror, and what is said without a network."""

import gzip
import io
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pooch
import pytest

from train.config import Config
from train.data import download
from train.data.corpus import CorpusError
from train.data.download import fetch
from train.data.load_corpus import load_corpus
from train.data.pair_files import read_pairs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path)
    return tmp_path / "corpora"


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    return folder


def test_multi30k_has_three_parts(mirror):
    for part, count in (("train", 5), ("val", 2), ("test_2016_flickr", 1)):
        for language in ("de", "en"):
            (mirror / f"{part}.{language}").write_text("".join(f"{part} {language} {i}\n" for i in range(count)))
    name = "multi30k:en-de"
    corpus = load_corpus(Config(data=(name,), mirror=str(mirror)))
    assert [len(part) for part in (list(corpus.train), corpus.valid, corpus.test)] == [5, 2, 1]
    assert corpus.test[0][:2] == ("test_2016_flickr en 0", "test_2016_flickr de 0")
    (mirror / "own.txt").write_text("a\tb\nc\td\n")
    corpus = load_corpus(Config(data=(str(mirror / "own.txt"),), valid=(name,), test=(name,), mirror=str(mirror)))
    assert [len(part) for part in (corpus.valid, corpus.test)] == [2, 1]  # the parts of these names


def test_tatoeba_is_unpacked_once_and_read_in_both_directions(mirror, cache):
    with zipfile.ZipFile(mirror / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", "Go.\tVa !\tCC-BY 2.0\n")
    for name, pair in (("tatoeba:eng-fra", ("Go.", "Va !")), ("tatoeba:fra-eng", ("Va !", "Go."))):
        files = fetch(name, str(mirror)).train
        assert files.paths == tuple(cache.glob("*/fra.txt"))
        assert [found[:2] for found in read_pairs(files, Counter())] == [pair]


def test_the_books_archive_is_not_tatoebas(mirror, cache, monkeypatch):
    with zipfile.ZipFile(mirror / "fra-eng.zip", "w") as archive:
        archive.writestr("fra-eng/fra.txt", "Hi.\tSalut !\n")
    with pytest.raises(CorpusError, match=r"fra-eng\.zip is damaged or another file: its SHA-1 must be 94646ad1"):
        fetch("d2l:eng-fra", str(mirror))
    monkeypatch.setattr(download, "D2L_SHA1", None)
    files = fetch("d2l:eng-fra", str(mirror)).train
    assert files.paths == tuple(cache.glob("*/fra-eng/fra.txt"))
    assert [found[:2] for found in read_pairs(files, Counter())] == [("Hi.", "Salut !")]


def test_another_archive_of_the_same_name_is_another_text(mirror, cache):
    for text in ("Go.\tVa !\n", "Go.\tVas-y !\n"):
        with zipfile.ZipFile(mirror / "fra-eng.zip", "w") as archive:
            archive.writestr("fra.txt", text)
        assert fetch("tatoeba:eng-fra", str(mirror)).train.paths[0].read_text() == text


def test_an_archive_that_would_fill_the_disk_is_refused(mirror, cache, monkeypatch):
    monkeypatch.setattr(download, "LARGEST", 10**6)
    with zipfile.ZipFile(mirror / "fra-eng.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fra.txt", b"\0" * 2 * 10**6)
    with pytest.raises(CorpusError, match=r"fra\.txt of .* has 2,000,000 bytes; a corpus has at most 1,000,000"):
        fetch("tatoeba:eng-fra", str(mirror))
    assert not list(cache.glob("*/*"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("d2l:eng-deu", "the only corpus of d2l is d2l:eng-fra"),
        ("d2l:eng-fra", "there is no fra.txt or fra-eng.zip in"),
        ("multi30k:de-it", "takes two of de, en, fr"),
        ("multi30k:de-de", "takes two of de, en, fr"),
        ("tatoeba:deu-fra", "takes eng and another language"),
        ("tatoeba:../-eng", "takes eng and another language"),
        ("multi30k:de-en", r"no train\.de\.gz in .*; fetch https://raw.*/train\.de\.gz and put it there"),
        ("tatoeba:eng-fra", r"no fra\.txt or fra-eng\.zip in .*; fetch https://www.*/fra-eng\.zip and put it there"),
    ],
)
def test_a_wrong_name_or_a_missing_file_says_what_to_do(mirror, name, said):
    with pytest.raises(CorpusError, match=said):
        fetch(name, str(mirror))


def test_a_damaged_file_of_a_mirror_is_an_error(mirror, cache):
    (mirror / "train.de.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(CorpusError, match="its SHA-256 must be 726e39b2"):
        fetch("multi30k:de-en", str(mirror))
    (mirror / "fra-eng.zip").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(CorpusError, match="is damaged or another file"):
        fetch("tatoeba:eng-fra", str(mirror))
    assert not list(cache.glob("*/*"))
    with pytest.raises(CorpusError, match="there is no folder nowhere"):
        fetch("tatoeba:eng-fra", "nowhere")


class Server(BaseHTTPRequestHandler):
    """Cuts the first answer short."""

    content = b""
    sent: ClassVar[list[int]] = []
    """The size of each answer."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.sent.append(self.wfile.write(self.content if self.sent else self.content[: len(self.content) // 2]))

    def log_message(self, *_):
        pass


@pytest.fixture
def address(monkeypatch):
    """The address of a server that has one corpus, whatever is asked for."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("fra.txt", "Go.\tVa !\n" * 1000)
    monkeypatch.setattr(Server, "content", packed.getvalue())
    monkeypatch.setattr(Server, "sent", [])
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_that_was_cut_leaves_nothing_and_a_whole_one_is_made_once(address, cache):
    with pytest.raises(CorpusError, match=r"fra-eng\.zip cannot be downloaded .* start again"):
        fetch("tatoeba:eng-fra", address)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    for _ in "12":
        assert len(fetch("tatoeba:eng-fra", address).train.paths[0].read_text()) == 9000
    assert len(Server.sent) == 2
    assert next(cache.glob("mirrors/*/fra-eng.zip")).read_bytes() == Server.content


def test_a_file_with_another_checksum_is_an_error_and_removed(address, cache):
    Server.sent.append(0)
    with pytest.raises(CorpusError, match=r"train\.de\.gz cannot be downloaded \(SHA256 hash of downloaded file"):
        fetch("multi30k:de-en", address)
    assert not list(cache.iterdir())


def test_without_a_network_the_error_names_the_file_and_its_place(mirror, cache):
    address = "http://127.0.0.1:9"  # nobody listens there
    with pytest.raises(CorpusError, match=rf"{address}/train\.de\.gz cannot be downloaded .* put it at {cache}/train"):
        fetch("multi30k:de-en", address)
    with pytest.raises(CorpusError, match="put it at") as cut:
        fetch("tatoeba:eng-fra", address)
    with zipfile.ZipFile(str(cut.value).split("put it at ")[1].split(",")[0], "w") as archive:
        archive.writestr("fra.txt", "Go.\tVa !\n")
    assert fetch("tatoeba:eng-fra", address).train.paths[0].read_text() == "Go.\tVa !\n"

"""Public corpora from a mirror, and what is said without a network."""

import gzip
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from train.config import Config
from train.data import download
from train.data.corpus import CorpusError
from train.data.download import fetch
from train.data.files import read_pairs
from train.data.load_corpus import load_corpus


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setattr(download, "_cache", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    return folder


def test_multi30k_has_three_parts(mirror):
    for part, count in (("train", 5), ("val", 2), ("test_2016_flickr", 1)):
        for language in ("de", "en"):
            (mirror / f"{part}.{language}").write_text("".join(f"{part} {language} {i}\n" for i in range(count)))
    corpus = load_corpus(Config(data=("multi30k:en-de",), mirror=str(mirror)))
    assert [len(part) for part in (list(corpus.train), corpus.valid, corpus.test)] == [5, 2, 1]
    assert corpus.test[0][:2] == ("test_2016_flickr en 0", "test_2016_flickr de 0")


def test_tatoeba_is_unpacked_once_and_read_in_both_directions(mirror, cache):
    with zipfile.ZipFile(mirror / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", "Go.\tVa !\tCC-BY 2.0\n")
    for name, pair in (("tatoeba:eng-fra", ("Go.", "Va !")), ("tatoeba:fra-eng", ("Va !", "Go."))):
        files = fetch(name, str(mirror)).train
        assert files.paths == (cache / "fra.txt",)
        assert [found[:2] for found in read_pairs(files, Counter())] == [pair]


@pytest.mark.parametrize(
    ("name", "said"),
    [
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
    assert not list(cache.iterdir())
    with pytest.raises(CorpusError, match="there is no folder nowhere"):
        fetch("tatoeba:eng-fra", "nowhere")


class Server(BaseHTTPRequestHandler):
    """Send half of every file at first, and then whole ones; count the requests."""

    content = b""
    requests = 0

    def do_GET(self):
        Server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: None if Server.requests > 1 else len(self.content) // 2])

    def log_message(self, *_):
        pass


def test_a_download_cut_short_is_an_error_and_a_whole_one_is_made_once(mirror, cache):
    with zipfile.ZipFile(mirror / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", "Go.\tVa !\n" * 1000)
    Server.content = (mirror / "fra-eng.zip").read_bytes()
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(CorpusError, match=r"fra-eng\.zip cannot be downloaded"):
            fetch("tatoeba:eng-fra", address)
        assert not list(cache.iterdir())
        for _ in "12":
            assert fetch("tatoeba:eng-fra", address).train.paths == (cache / "fra.txt",)
        assert Server.requests == 2
        with pytest.raises(CorpusError, match=r"train\.de\.gz cannot be downloaded \(SHA256 hash of downloaded file"):
            fetch("multi30k:de-en", address)
        server.shutdown()


def test_without_a_network_the_error_names_the_file_and_its_place(cache):
    address = "http://127.0.0.1:9"  # nobody listens there
    with pytest.raises(CorpusError, match=rf"{address}/train\.de\.gz cannot be downloaded .* put it at {cache}/train"):
        fetch("multi30k:de-en", address)
    (cache / "fra.txt").write_text("Go.\tVa !\n")
    assert fetch("tatoeba:eng-fra", address).train.paths == (cache / "fra.txt",)

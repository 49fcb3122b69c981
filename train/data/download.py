"""Fetch a public corpus by its name, once: `tatoeba:eng-fra`, `multi30k:de-en`, `d2l:eng-fra`."""

import hashlib
import re
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from train.data.corpus import CorpusError
from train.data.pair_files import PairFiles
from train.machine.whole_files import sha256, write_whole
from train.progress import Bar

TATOEBA = "https://www.manythings.org/anki"
"""Its archives grow, so no checksum is known. A zip archive holds checksums of its own."""

D2L = "https://d2l-data.s3-accelerate.amazonaws.com"
D2L_SHA1 = "sha1:94646ad1522d915e7b0f9296181140edcf86a4f5"
"""The checksum that the d2l.ai book gives for its archive."""

LARGEST = 2**32
"""Bytes of an unpacked corpus, at most: a small archive may hold an endless file."""

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_FILES = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}
"""The files of task 1 and their SHA-256."""


class NamedCorpus(NamedTuple):
    """The files of a public corpus; validation and test are None where it has no such parts."""

    train: PairFiles
    valid: PairFiles | None = None
    test: PairFiles | None = None


def is_name(text: str) -> bool:
    """Whether `--data` names a public corpus, and no file."""
    return text.startswith(("tatoeba:", "multi30k:", "d2l:"))


def fetch(name: str, mirror: str | None = None) -> NamedCorpus:
    """Return the files of a public corpus. Download those that are not in the cache folder yet.

    Args:
        mirror: a folder or an address that has the files, instead of the public address.

    Raises:
        CorpusError: there is no such corpus, or a file cannot be fetched or is damaged.
    """
    collection, _, languages = name.partition(":")
    codes = languages.split("-")
    if collection == "multi30k":
        if len(codes) != 2 or codes[0] == codes[1] or not set(codes) <= {"de", "en", "fr"}:
            raise CorpusError(f"multi30k:SOURCE-TARGET takes two of de, en, fr, as in multi30k:de-en; got {name}")
        parts = ("train", "val", "test_2016_flickr")
        return NamedCorpus(*(PairFiles(tuple(_multi30k(f"{part}.{code}", mirror) for code in codes)) for part in parts))
    if collection == "d2l":
        if languages != "eng-fra":
            raise CorpusError(f"the only corpus of d2l is d2l:eng-fra; got {name}")
        path = _zipped(D2L, "fra-eng.zip", "fra-eng/fra.txt", D2L_SHA1, "d2l", mirror)  # Tatoeba's has the same name
        return NamedCorpus(PairFiles((path,)))
    if len(codes) != 2 or codes.count("eng") != 1 or not all(re.fullmatch("[a-z]{3}", code) for code in codes):
        raise CorpusError(f"tatoeba:SOURCE-TARGET takes eng and another language, as in tatoeba:eng-fra; got {name}")
    other = next(code for code in codes if code != "eng")
    path = _zipped(TATOEBA, f"{other}-eng.zip", f"{other}.txt", None, "", mirror)
    return NamedCorpus(PairFiles((path,), swapped=codes[1] == "eng"))


def _multi30k(stem: str, mirror: str | None) -> Path:
    packed = f"{stem}.gz"
    folder = _mirror_folder(mirror)
    if folder is None:
        return _download(f"{mirror or MULTI30K}/{packed}", MULTI30K_FILES[packed], _cache())
    if (folder / packed).exists():
        return _checked(folder / packed, MULTI30K_FILES[packed])
    if (folder / stem).exists():
        return folder / stem
    raise CorpusError(f"there is no {packed} in {folder}; fetch {MULTI30K}/{packed} and put it there")


def _zipped(public: str, packed: str, name: str, digest: str | None, place: str, mirror: str | None) -> Path:
    """Return a text that a zip archive holds, unpacked in the cache under the archive's hash.

    Args:
        name: the text's path in the archive.
        place: the folder of the cache for the archive.
    """
    text, own = Path(name).name, _mirror_folder(mirror)
    if own is None:
        return _unpack(_download(f"{mirror or public}/{packed}", digest, _cache(mirror) / place), name)
    if (own / text).exists():
        return own / text
    if (own / packed).exists():
        return _unpack(_checked(own / packed, digest), name)
    raise CorpusError(f"there is no {text} or {packed} in {own}; fetch {public}/{packed} and put it there")


def _checked(path: Path, digest: str | None) -> Path:
    """Return a file of a mirror's folder; CorpusError if its checksum is another one."""
    algorithm, _, wanted = (digest or "").rpartition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm or "sha256").hexdigest()
    if digest is not None and found != wanted:
        name = "SHA-1" if algorithm else "SHA-256"
        raise CorpusError(f"{path} is damaged or another file: its {name} must be {wanted}; got {found}")
    return path


def _mirror_folder(mirror: str | None) -> Path | None:
    if mirror is None or "://" in mirror:
        return None
    if not Path(mirror).is_dir():
        raise CorpusError(f"--mirror takes a folder or an address (https://…); there is no folder {mirror}")
    return Path(mirror)


def _cache(mirror: str | None = None) -> Path:
    """Return the folder for downloads. What comes from a mirror stands apart from what has the public address."""
    import pooch

    folder = Path(pooch.os_cache("jax-attn")) / "corpora"
    return folder if mirror is None else folder / "mirrors" / hashlib.sha256(mirror.encode()).hexdigest()[:16]


def _unpack(archive: Path, name: str) -> Path:
    """Unpack a file of a zip archive into the cache, under the archive's hash, completely or not at all."""
    target = _cache() / sha256(archive)[:16] / name
    if target.exists():
        return target

    def unpack(beside: Path) -> None:
        with zipfile.ZipFile(archive) as packed:
            size = packed.getinfo(name).file_size
            if size > LARGEST:
                raise CorpusError(f"{name} of {archive} has {size:,} bytes; a corpus has at most {LARGEST:,}")
            with packed.open(name) as source, beside.open("wb") as file:
                shutil.copyfileobj(source, file)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, unpack)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        if _cache() in archive.parents:
            archive.unlink()  # so that it is downloaded again
        raise CorpusError(f"{archive} is damaged or another file ({error}); fetch it again") from error
    except OSError as error:
        raise CorpusError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def _download(url: str, digest: str | None, folder: Path) -> Path:
    """Download a file into a folder, unless it is there.

    Raises:
        CorpusError: it cannot be downloaded; the message says what to do by hand.
    """
    import pooch
    import requests

    name = url.rsplit("/", 1)[-1]
    pooch.get_logger().setLevel("WARNING")
    try:
        with Bar(name) as bar:
            headers = {"User-Agent": "Mozilla/5.0 (jax-attn)"}
            downloader = pooch.HTTPDownloader(_Counter(bar), headers=headers, timeout=30)
            return Path(pooch.retrieve(url, digest, fname=name, path=folder, downloader=downloader))
    except (requests.RequestException, ValueError, OSError) as error:
        no_server = isinstance(error, requests.ConnectionError)
        reason = "the server cannot be reached" if no_server else " ".join(str(error).split())[:200]
        raise CorpusError(
            f"{url} cannot be downloaded ({reason}); start again, or fetch it by hand and put it at "
            f"{folder / name}, or name its folder with --mirror"
        ) from error


class _Counter:
    """Receives the progress of a download from pooch, with the methods that it calls."""

    def __init__(self, bar: Bar) -> None:
        self.bar, self.done, self.total = bar, 0, 0

    def update(self, amount: int) -> None:
        self.done += amount
        self.bar.update(self.done, f"{self.done / 1e6:,.1f} MB", self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Do nothing: the bar ends by itself."""

import hashlib
import logging
import os
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import kept_program
from train.kept_program import kept, program_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_program, "program_folder", lambda: tmp_path)
    return tmp_path


class Counted:
    """A program, and how often it was traced; each `new` is what another process would make."""

    def __init__(self, **options):
        self.traced, self.options = 0, options

    def new(self, *held):
        def wave(x, y):
            self.traced += 1
            return {"sum": jnp.sin(x) + 3 * y, "none": None, "pair": (x, [y])}

        return kept(jax.jit(wave, **self.options), *held)


X, Y = np.linspace(0, 9, 7, dtype=np.float32), np.float32(0.1)


def same(one, other):
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        (np.asarray(a) == np.asarray(b)).all()
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_another_process_finds_the_program_and_gives_the_same_bits(folder):
    counted = Counted()
    first = counted.new("held")
    answer = first(X, Y)
    assert same(first(X, Y), answer)
    assert (counted.traced, len(list(folder.iterdir()))) == (1, 1)
    second = counted.new("held")
    assert same(second(X, Y), answer)
    assert same(second(X + 1, Y), first.function(X + 1, Y))
    assert counted.traced == 1


def test_it_is_kept_by_name_as_well(folder):
    counted = Counted()
    counted.new()(X, y=Y)
    assert same(counted.new()(X, y=Y), counted.new().function(X, Y))
    assert counted.traced == 2


@pytest.mark.parametrize(
    "changed",
    [
        lambda program: program(X[:3], Y),
        lambda program: program(X.astype(np.int32), Y),
        lambda program: program(X, 0.1),  # weakly typed
        lambda program: program(jnp.asarray(X), Y),
        lambda program: program(jax.device_put(X, jax.devices()[0]), Y),
        lambda program: program(X, Y.reshape(1)),
    ],
)
def test_other_arguments_are_another_program(folder, changed):
    counted = Counted()
    counted.new("held")(X, Y)
    again = counted.new("held")
    found = changed(again)
    assert counted.traced == 2
    assert same(changed(counted.new("held")), found)
    assert counted.traced == 2


def test_other_settings_are_another_program(folder):
    counted = Counted()
    program = counted.new("held")
    program(X, Y)
    with jax.default_matmul_precision("float32"):
        program(X, Y)
    assert len(list(folder.iterdir())) == 2
    counted.new("other")(X, Y)
    assert (counted.traced, len(list(folder.iterdir()))) == (3, 3)


def test_donated_arguments_are_taken(folder):
    counted = Counted(donate_argnums=0)
    for _ in range(2):
        x = jnp.asarray(X)
        counted.new()(x, Y)
        assert x.is_deleted()
    assert counted.traced == 1


def cut(content):
    return content[: len(content) // 2]


def flipped(content):
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def of_another_version(content):
    packed = zlib.compress(pickle.dumps(((0,), None, None, b"another version")))
    return hashlib.sha256(packed).digest() + packed


def on_a_device_that_is_gone(content):
    _, *rest = pickle.loads(zlib.decompress(content[32:]))
    packed = zlib.compress(pickle.dumps(((99,), *rest)))
    return hashlib.sha256(packed).digest() + packed


@pytest.mark.parametrize("damage", [cut, flipped, of_another_version, on_a_device_that_is_gone, lambda content: b""])
def test_a_damaged_file_is_told_and_replaced(folder, caplog, damage):
    counted = Counted()
    answer = counted.new()(X, Y)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert same(counted.new()(X, Y), answer)
    assert f"{file} cannot be used and is compiled anew" in caplog.text
    assert counted.traced == 2
    assert same(counted.new()(X, Y), answer)
    assert counted.traced == 2


@pytest.mark.parametrize("place", ["/proc/nobody", "/dev/null/cache"])
def test_where_nothing_can_be_written_it_runs(monkeypatch, place):
    monkeypatch.setattr(kept_program, "program_folder", lambda: kept_program.Path(place))
    counted = Counted()
    program = counted.new()
    assert same(program(X, Y), program.function(X, Y))
    assert counted.traced == 1


def test_a_file_appears_whole_or_not_at_all(folder, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    counted = Counted()
    assert same(counted.new()(X, Y), counted.new().function(X, Y))
    assert list(folder.iterdir()) == []


def test_several_at_once_do_no_harm(folder):
    counted, settings = Counted(), jax.config.values["jax_enable_compilation_cache"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: counted.new()(X, Y), range(8)))
    assert all(same(answer, answers[0]) for answer in answers)
    assert len(list(folder.iterdir())) == 1
    before = counted.traced
    counted.new()(X, Y)
    assert counted.traced == before
    assert jax.config.values["jax_enable_compilation_cache"] == settings


def test_those_not_used_for_longest_are_forgotten(folder, monkeypatch):
    monkeypatch.setattr(kept_program, "MOST_FILES", 2)
    (folder / "of_jax-cache").write_bytes(b"")
    counted = Counted()
    for held in range(2):
        counted.new(held)(X, Y)
        for file in folder.glob("*.program"):
            os.utime(file, (file.stat().st_mtime - 100,) * 2)
    counted.new(0)(X, Y)  # used again
    counted.new(2)(X, Y)
    assert len(list(folder.glob("*.program"))) == 2
    counted.new(0)(X, Y)
    assert counted.traced == 3
    counted.new(1)(X, Y)
    assert counted.traced == 4
    assert (folder / "of_jax-cache").exists()


def test_what_cannot_be_told_is_not_kept(folder):
    counted = Counted()
    for held in (lambda: 1, np.ones(2), jax.nn.relu, Counted):
        program = counted.new(held)
        assert same(program(X, Y), program.function(X, Y))
    assert (counted.traced, list(folder.iterdir())) == (4, [])


def test_what_jax_refuses_is_refused_as_it_does(folder):
    with pytest.raises(TypeError, match="called with a non-array argument"):
        Counted().new()("words", Y)


def test_it_can_be_traced_through(folder):
    def loss(x):
        return Counted().new()(x, Y)["sum"].sum()

    np.testing.assert_allclose(jax.grad(loss)(X), np.cos(X), rtol=1e-6)
    assert list(folder.iterdir()) == []


def test_jax_s_own_settings_say_where_and_whether(monkeypatch, tmp_path):
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_enable_compilation_cache": True}

    def with_settings(**changed):
        before = {name: jax.config.values[name] for name in settings | changed}
        for name, value in (settings | changed).items():
            jax.config.update(name, value)
        try:
            return program_folder()
        finally:
            for name, value in before.items():
                jax.config.update(name, value)

    assert with_settings() == tmp_path
    assert with_settings(jax_enable_compilation_cache=False) is None
    assert with_settings(jax_compilation_cache_dir=None) is None
    assert with_settings(jax_compilation_cache_dir="gs://bucket/cache") is None
    for name in ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs"):
        assert with_settings(**{name: True}) is None

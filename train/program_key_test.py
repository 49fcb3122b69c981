import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from train import program_key
from train.config import ModelConfig, SearchConfig, TrainingConfig
from train.devices import batch_mesh
from train.model import build_model
from train.program_key import describe, function_key, processor, sources


def test_different_values_have_different_descriptions():
    values = [None, 1, 1.0, True, "1", b"1", (1,), [1], (1, (2,)), ((1, 2),), {"a": 1}, {"a": 2}, ("a", 1), jnp.float32]
    values += [
        jnp.bfloat16,
        np.dtype("int32"),
        0.1,
        0.1 + 2**-56,
        "a, b",
        ("a", "b"),
        ("a, b",),
        float("inf"),
        batch_mesh(8),
    ]
    told = [describe(value) for value in values]
    assert len(set(told)) == len(told)
    assert told == [describe(value) for value in values]


def test_every_setting_is_told():
    other = {str: "x", bool: None, int: 12, float: 0.125}
    for config in (ModelConfig(), TrainingConfig(), SearchConfig()):
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            changed = not value if isinstance(value, bool) else other.get(type(value), 7)
            assert describe(dataclasses.replace(config, **{field.name: changed})) != describe(config), field.name


@pytest.mark.parametrize(
    "changed",
    [
        {"attention": "multi_head", "num_heads": 2},
        {"attention": "multi_head"},
        {"attention": "scaled_bilinear"},
        {"attention": "bilinear"},
        {"attention": "sum"},
        {"dropout": 0.1},
        {"cell": "lstm"},
        {"input_feeding": False},
        {"num_layers": 2},
        {"stop_at_length": False},
    ],
)
def test_a_model_is_told_in_full(changed):
    told = [describe(build_model(config, 7, 8)) for config in (ModelConfig(), ModelConfig(**changed))]
    assert told[0] != told[1]
    assert describe(build_model(ModelConfig(**changed), 7, 8)) == told[1]
    assert describe(build_model(ModelConfig(**changed), 7, 9)) != told[1]


@pytest.mark.parametrize("value", [lambda x: x, np.ones(2), object(), jnp.tanh, np.random.default_rng(0)])
def test_what_cannot_be_told_is_refused(value):
    with pytest.raises(TypeError, match="is not kept"):
        describe((1, {"of": value}))


def test_an_object_whose_code_is_not_in_the_key_is_refused():
    @dataclasses.dataclass
    class Mine:
        x: int = 1

    with pytest.raises(TypeError, match="its code is not in the key"):
        describe(Mine())


@pytest.fixture
def surroundings():
    program_key.surroundings.cache_clear()
    yield lambda: (program_key.surroundings.cache_clear(), function_key("f", ()))[1]
    program_key.surroundings.cache_clear()


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("version", lambda name: "9.9"),
        ("sources", lambda: "other sources"),
        ("processor", lambda: "another processor"),
        ("usable_cores", lambda: 1000),
    ],
)
def test_another_machine_version_or_source_is_another_key(surroundings, monkeypatch, changed, value):
    before = surroundings()
    assert surroundings() == before
    monkeypatch.setattr(program_key, changed, value)
    assert surroundings() != before


def test_another_python_or_other_flags_are_another_key(surroundings, monkeypatch):
    keys = [surroundings()]
    monkeypatch.setattr("platform.python_version", lambda: "3.99")
    keys.append(surroundings())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    keys.append(surroundings())
    assert len(set(keys)) == 3


def test_a_changed_source_is_another_digest_and_a_changed_test_is_not(tmp_path):
    for package in program_key.SOURCES:
        (tmp_path / package / "deep").mkdir(parents=True)
        (tmp_path / package / "deep" / "a.py").write_text("x = 1\n")
        (tmp_path / package / "a_test.py").write_text("")
    digests = [sources(tmp_path)]
    (tmp_path / "train" / "a_test.py").write_text("y = 2\n")
    assert sources(tmp_path) == digests[0]
    (tmp_path / "train" / "deep" / "a.py").write_text("x = 2\n")
    digests.append(sources(tmp_path))
    (tmp_path / "train" / "deep" / "a.py").rename(tmp_path / "train" / "deep" / "b.py")
    digests.append(sources(tmp_path))
    (tmp_path / "jax_attn" / "b.py").write_text("")
    digests.append(sources(tmp_path))
    assert len(set(digests)) == 4


def test_packages_without_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no files"):
        sources(tmp_path)


def test_the_processor_is_told_by_the_system_where_it_tells(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor: 0\nmodel name\t: A\nflags\t: sse avx\ncpu MHz : 1\n\nmodel name\t: B\n")
    first = processor(told)
    told.write_text("processor: 0\nmodel name\t: A\nflags\t: sse avx\ncpu MHz : 2\n\nmodel name\t: C\n")
    assert processor(told) == first
    told.write_text("processor: 0\nmodel name\t: A\nflags\t: sse\ncpu MHz : 2\n")
    assert processor(told) != first
    assert processor(tmp_path / "none")

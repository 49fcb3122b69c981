import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh

from jax_attn.models import build_model
from jax_attn.settings import RecurrentConfig, TransformerConfig
from train.config import MeshShape
from train.machine.devices import DATA, MODEL, make_mesh, own_rows, placement, start_jax
from train.setting import ConfigError

PROGRAM = """
import dataclasses, json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from train.data import dataset
from train.config import Config, CorpusConfig, DevicesConfig
from train.training.loop import JaxLearner

config = Config(epochs=3, corpus=CorpusConfig(train=150, valid=20, test=20), model=model)
if len(sys.argv) > 2:
    config = dataclasses.replace(config, devices=DevicesConfig(mesh=sys.argv[2]))
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **more: compiled.append(more.get("fun_name"))
    if event == "/jax/core/compile/backend_compile_duration" else None
)
learner = JaxLearner(config, dataset.load(config))
devices, before = learner.state.step.sharding.num_devices, learner.state
losses = []
class Recorder:
    def report(self, report): losses.extend([report.loss, report.valid_loss])
    def keep(self, weights): self.weights = weights
    def kept(self): return self.weights
    def should_stop(self): return False
    def restore(self, like): return None
    progress = compiling = save = lambda *_: None
learner.fit(Recorder())
reused = all(x.is_deleted() for x in jax.tree.leaves(before))
# The gradient of a Transformer's W_k.bias is rounding alone, which Adam makes as large as any other.
weights = [float(abs(x).sum()) for name, x in learner.weights().items() if not name.endswith("W_k.bias")]
print(json.dumps({"devices": devices, "losses": losses + weights, "compiled": compiled, "reused": reused}))
"""

STEP = """
import re
import jax, numpy as np, optax
jax.config.update("jax_num_cpu_devices", 4)
from train.config import MeshShape
from jax_attn.settings import RecurrentConfig
from train.data.batches import Examples
from train.machine.devices import make_mesh
from jax_attn.models import build_model
from train.training.step import make_init, make_train_steps

settings = RecurrentConfig(attention="additive", embed_size=8, num_hiddens=8, dropout=0.2, bidirectional=False)
model, optimizer = build_model(settings, 50, 60), optax.adam(1e-3)
ids, lens = np.ones((3, 16, 7), np.int32), np.full((3, 16), 7, np.int32)
batches = Examples(ids, lens, ids, lens)
state = jax.eval_shape(make_init(model, optimizer), np.uint32(0), jax.tree.map(lambda x: x[0], batches))
program = make_train_steps(model, optimizer, mesh=make_mesh(MeshShape(4))).lower(state, batches).compile().as_text()
print(*(len(re.findall(kind, program)) for kind in ("all-reduce[(]", "all-gather[(]", "all-to-all[(]")))
"""

RECURRENT = RecurrentConfig(attention="dot", embed_size=8, num_hiddens=8, dropout=0.2, bidirectional=False)
TRANSFORMER = TransformerConfig(embed_size=8, num_hiddens=8, num_layers=1, dropout=0.2)

PROGRAMS = ["jit(init)", "jit(train_steps)"]

CACHED = """
import jax, jax.numpy as jnp
from train.machine.devices import start_jax
start_jax()
jax.jit(lambda x: jnp.sin(x) + {number})(jnp.ones(3))
print(jax.config.jax_compilation_cache_dir)
"""


def train(*devices, model=RECURRENT, **environment):
    program = f"from jax_attn.settings import *\nmodel = {model!r}\n{PROGRAM}"
    command = [sys.executable, "-c", program, *map(str, devices)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def compiled(run):
    return sorted(name for name in run["compiled"] if name in PROGRAMS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The folder of JAX's compilation cache, which the first run fills."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def on_two(cache):
    return train_cached(cache)


def train_cached(cache):
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    return train(2, **environment, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")


@pytest.mark.slow
def test_four_devices_train_as_two_do_and_each_program_is_compiled_once(on_two):
    four = train(4, "data=2,model=2")
    assert (four["devices"], on_two["devices"]) == (4, 2)
    np.testing.assert_allclose(on_two["losses"], four["losses"], rtol=1e-5)
    for run in (four, on_two):
        assert compiled(run) == PROGRAMS
        assert run["reused"]


@pytest.mark.slow
def test_a_transformer_is_trained_alike_on_devices_that_share_its_parameters():
    alone, four = train(1, model=TRANSFORMER), train(4, "data=2,model=2", model=TRANSFORMER)
    np.testing.assert_allclose(alone["losses"], four["losses"], rtol=1e-5)


@pytest.mark.slow
def test_a_second_run_reads_the_cache_and_has_the_same_bits(on_two, cache):
    programs = set(cache.glob("jit_train_steps*"))
    assert programs
    assert train_cached(cache)["losses"] == on_two["losses"]
    assert set(cache.glob("jit_train_steps*")) == programs


@pytest.mark.slow
def test_the_gradients_of_a_step_are_added_up_once():
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    sums, *others = map(int, done.stdout.split())
    assert (1 <= sums <= 4, others) == (True, [0, 0])  # of the gradients, and of single numbers; not in each time step


def cache_folder(environment, number=1, before=""):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", before + CACHED.format(number=number)]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "Failed to dump" not in line]  # of XLA in JAX 0.7
    assert (done.returncode, said) == (0, [])
    return done.stdout.strip()


def test_a_second_process_finds_what_the_first_has_compiled(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert cache_folder(environment).startswith(str(tmp_path / "jax-attn"))
    programs = set(tmp_path.rglob("jit_*-cache"))
    assert programs
    cache_folder(environment)
    assert set(tmp_path.rglob("jit_*-cache")) == programs


@pytest.mark.slow
def test_a_disk_that_fills_while_programs_compile_is_no_warning_of_each(tmp_path):
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))"
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}, before=full) != "None"


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Return a function that starts JAX with a folder of the user's caches, and returns that of the programs."""
    settings = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs")
    settings = [f"jax_{name}" for name in (*settings, "persistent_cache_min_entry_size_bytes")]
    before = {name: getattr(jax.config, name) for name in settings}

    def started(home=tmp_path, chosen=None):
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        jax.config.update("jax_compilation_cache_dir", chosen)
        start_jax()
        return jax.config.jax_compilation_cache_dir

    yield started
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null/cache"])
def test_a_folder_that_cannot_be_written_is_no_error(started, home):
    assert started(home) is None


def test_a_disk_that_is_full_keeps_no_programs(started, monkeypatch):
    assert started() is not None
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**7))
    assert started() is None


def test_the_user_s_own_cache_folder_stays(started, tmp_path):
    assert started(chosen=str(tmp_path / "chosen")) == str(tmp_path / "chosen")


@pytest.fixture
def four_of_two(monkeypatch):
    """Two processes with two devices each, seen from process 1."""
    devices = [SimpleNamespace(process_index=i) for i in (0, 0, 1, 1)]

    def mesh(devices, names):
        return SimpleNamespace(devices=devices, shape=dict(zip(names, devices.shape, strict=True)))

    monkeypatch.setattr("train.machine.devices.Mesh", mesh)
    for name, value in {"devices": devices, "process_count": 2, "process_index": 1, "local_device_count": 2}.items():
        monkeypatch.setattr(f"jax.{name}", lambda value=value: value)


@pytest.mark.parametrize(("batch_size", "shape"), [(64, (4, 1)), (16, (2, 1)), (6, (2, 1)), (None, (4, 1))])
def test_the_devices_of_all_processes_share_a_batch_evenly(four_of_two, batch_size, shape):
    assert make_mesh(batch_size=batch_size).devices.shape == shape


@pytest.mark.parametrize(("shape", "rows"), [((4, 1), (4, 8)), ((2, 2), (4, 8)), ((1, 4), (0, 8)), ((2, 1), (4, 8))])
def test_a_process_reads_the_rows_of_its_devices(four_of_two, shape, rows):
    assert own_rows(make_mesh(MeshShape(*shape)), 8) == slice(*rows)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 1), "has 3 devices, which 2 processes cannot share evenly"),
        ((3, 2), "mesh data=3,model=2 needs 3 devices in each process; there are 2"),
        ((4, 1), "cannot share a batch of 6 rows: data must divide it"),
    ],
)
def test_a_mesh_that_cannot_be_is_an_error(four_of_two, shape, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(MeshShape(*shape), batch_size=6)


@pytest.mark.parametrize(
    "settings",
    [
        RecurrentConfig(),
        RecurrentConfig(attention="multi_head", query="between", tie_embeddings="all"),
        TransformerConfig(positions="learnt", max_len=33),
        TransformerConfig(norm="pre", tie_embeddings="all"),
    ],
    ids=["recurrent", "recurrent, tied", "transformer", "transformer, tied"],
)
def test_every_matrix_and_its_moments_are_divided_among_the_devices_of_a_group(settings):
    model = build_model(settings, 403, 403)  # an odd vocabulary
    token = np.zeros((1, 1), np.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), token, token)
    state = {"params": params, "moments": optax.adam(1.0).init(jax.tree.map(lambda x: np.zeros(x.shape), params))}
    mesh = AbstractMesh((2, 4), (DATA, MODEL))
    for x, place in zip(jax.tree.leaves(state), jax.tree.leaves(placement(state, mesh)), strict=True):
        if np.ndim(x) > 1:
            assert np.prod(place.shard_shape(x.shape)) == x.size / 4

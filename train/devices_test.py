import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from train.devices import data_mesh

PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from train.data import dataset
from train.config import Config, CorpusConfig, ModelConfig
from train.loop import JaxLearner

model = ModelConfig("dot", embed_size=8, num_hiddens=8, dropout=0.2, bidirectional=False)
config = Config(epochs=3, corpus=CorpusConfig(train=150, valid=20, test=20), model=model)
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
    progress = save = lambda *_: None
learner.fit(Recorder())
reused = all(x.is_deleted() for x in jax.tree.leaves(before))
weights = [float(abs(x).sum()) for x in learner.weights().values()]
print(json.dumps({"devices": devices, "losses": losses + weights, "compiled": compiled, "reused": reused}))
"""

PROGRAMS = ["jit(init)", "jit(train_steps)"]

CACHED = """
import jax, jax.numpy as jnp
from train.devices import start_jax
start_jax()
jax.jit(lambda x: jnp.sin(x) + {number})(jnp.ones(3))
print(jax.config.jax_compilation_cache_dir)
"""


def train(devices, **environment):
    command = [sys.executable, "-c", PROGRAM, str(devices)]
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


def test_two_devices_train_as_one_does_and_each_program_is_compiled_once(on_two):
    one = train(1)
    assert (one["devices"], on_two["devices"]) == (1, 2)
    np.testing.assert_allclose(on_two["losses"], one["losses"], rtol=1e-5)
    for run in (one, on_two):
        assert compiled(run) == PROGRAMS
        assert run["reused"]


def test_a_second_run_reads_the_cache_and_has_the_same_bits(on_two, cache):
    programs = set(cache.glob("jit_train_steps*"))
    assert programs
    assert train_cached(cache)["losses"] == on_two["losses"]
    assert set(cache.glob("jit_train_steps*")) == programs


def cache_folder(environment, number=1):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", CACHED.format(number=number)]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_second_process_finds_what_the_first_has_compiled(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert cache_folder(environment).startswith(str(tmp_path / "jax-attn"))
    programs = set(tmp_path.rglob("jit_*-cache"))
    assert programs
    cache_folder(environment)
    assert set(tmp_path.rglob("jit_*-cache")) == programs


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null/cache"])
def test_a_folder_that_cannot_be_written_is_no_error(home):
    assert cache_folder({"XDG_CACHE_HOME": home}) == "None"


def test_the_user_s_own_cache_folder_stays(tmp_path):
    chosen = str(tmp_path / "chosen")
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": chosen}) == chosen


@pytest.mark.parametrize(("flag", "unrolling"), [("", "true"), ("xla_cpu_disable_loop_unrolling=false", "false")])
def test_xla_compiles_with_our_options_unless_the_user_has_others(tmp_path, flag, unrolling):
    flags = f"--xla_dump_to={tmp_path}" + (f" --xla_backend_extra_options={flag}" if flag else "")
    cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
    written = next(tmp_path.glob("*debug_options")).read_text()
    options = dict(re.findall(r'key: "(.*)"\s+value: "(.*)"', written))
    assert options == {"xla_cpu_use_multi_output_fusion": "true", "xla_cpu_disable_loop_unrolling": unrolling}


@pytest.mark.parametrize(("batch_size", "devices", "used"), [(64, 2, 2), (64, 3, 2), (9, 2, 1), (15, 4, 1), (48, 4, 4)])
def test_the_devices_share_a_batch_evenly(monkeypatch, batch_size, devices, used):
    monkeypatch.setattr("jax.local_devices", lambda: [object()] * devices)
    monkeypatch.setattr("train.devices.Mesh", lambda devices, names: devices)
    assert len(data_mesh(batch_size)) == used

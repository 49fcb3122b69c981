import json
import os
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from train.data import dataset
from train.config import Config, CorpusConfig, ModelConfig
from train.loop import JaxLearner

model = ModelConfig(embed_size=8, num_hiddens=8)
config = Config(epochs=3, corpus=CorpusConfig(train=150, valid=20, test=20), model=model)
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **more: compiled.append(more.get("fun_name"))
    if event == "/jax/core/compile/backend_compile_duration" else None
)
learner = JaxLearner(config, dataset.load(config))
devices, before = learner.state.step.sharding.num_devices, learner.state
losses = []
learner.fit(lambda epoch: (losses.append(epoch.loss), losses.append(epoch.valid_loss)))
taken = all(x.is_deleted() for x in jax.tree.leaves(before))
weights = [float(abs(x).sum()) for x in learner.weights().values()]
print(json.dumps({"devices": devices, "losses": losses + weights, "compiled": compiled, "taken": taken}))
"""

PROGRAMS = ["jit(evaluate)", "jit(init)", "jit(train_epoch)"]


def train(devices, **environment):
    command = [sys.executable, "-c", PROGRAM, str(devices)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def own_programs(run):
    return sorted(name for name in run["compiled"] if name in PROGRAMS)


@pytest.fixture(scope="module")
def on_two():
    return train(2)


def test_two_devices_train_as_one_does_and_each_program_is_compiled_once(on_two):
    one = train(1)
    assert (one["devices"], on_two["devices"]) == (1, 2)
    np.testing.assert_allclose(on_two["losses"], one["losses"], rtol=1e-5)
    for run in (one, on_two):
        assert own_programs(run) == PROGRAMS
        assert run["taken"]


def test_a_second_run_compiles_none_of_them_and_has_the_same_bits(on_two, tmp_path):
    kept = {"JAX_ENABLE_COMPILATION_CACHE": "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    first, second = train(2, **kept), train(2, **kept)
    assert own_programs(first) == PROGRAMS
    assert own_programs(second) == []
    assert first["losses"] == second["losses"] == on_two["losses"]
    assert first["taken"]
    assert second["taken"]

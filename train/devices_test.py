import json
import subprocess
import sys

import numpy as np

PROGRAM = """
import json, sys
import jax
from train import data
from train.batches import plan
from train.config import Config, CorpusConfig, ModelConfig
from train.loop import JaxLearner

jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
model = ModelConfig(embed_size=8, num_hiddens=8)
config = Config(epochs=3, corpus=CorpusConfig(train=150, valid=20, test=20), model=model)
learner = JaxLearner(config, data.load(config))
devices = learner.state.step.sharding.num_devices
losses = []
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **more: compiled.append(more.get("fun_name"))
    if event == "/jax/core/compile/backend_compile_duration" else None
)
learner.fit(lambda epoch: (losses.append(epoch.loss), losses.append(epoch.valid_loss)))
print(json.dumps({"devices": devices, "losses": losses, "compiled": compiled}))
"""


def train(devices):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(devices)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_two_devices_train_as_one_does_and_each_program_is_compiled_once():
    one, two = train(1), train(2)
    assert (one["devices"], two["devices"]) == (1, 2)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-5)
    for run in (one, two):
        programs = [name for name in run["compiled"] if name in ("jit(train_epoch)", "jit(evaluate)")]
        assert sorted(programs) == ["jit(evaluate)", "jit(train_epoch)"]

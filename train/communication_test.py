"""What a training step sends: with the data divided, one sum of all gradients."""

import json
import subprocess
import sys

import pytest

from train.communication import Collective, collectives

STEP = """
import json, sys
import jax, numpy as np, optax
jax.config.update("jax_num_cpu_devices", 4)
from train.communication import collectives
from train.config import MeshShape, ModelConfig
from train.data.batches import Examples
from train.training.devices import make_mesh
from train.training.model import build_model
from train.training.step import make_init, make_train_steps

settings = ModelConfig("additive", embed_size=8, num_hiddens=8, num_layers=1, dropout=0.2, bidirectional=False)
model, optimizer = build_model(settings, 50, 60), optax.adam(1e-3)
ids, lens = np.ones((3, 16, 7), np.int32), np.full((3, 16), 7, np.int32)
batches = Examples(ids, lens, ids, lens)
state = jax.eval_shape(make_init(model, optimizer), np.uint32(0), jax.tree.map(lambda x: x[0], batches))
program = make_train_steps(model, optimizer, mesh=make_mesh(MeshShape(4))).lower(state, batches).compile().as_text()
print(json.dumps([sum(x.size for x in jax.tree.leaves(state.params)), collectives(program)]))
"""

PROGRAM = """\
HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%inner (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %all-gather.1 = bf16[8,4]{1,0:T(8,128)} all-gather(%x), channel_id=1, dimensions={0}
}

%until (p: (s32[], f32[4])) -> pred[] {
  ROOT %all-reduce.9 = pred[] all-reduce(%y), to_apply=%or
}

%outer (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %while.1 = (s32[], f32[4]{0}) while(%t), condition=%until, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %all-reduce.1 = (f32[3,8]{1,0}, /*index=1*/f32[]) all-reduce(%a, %b), to_apply=%add
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %all-reduce-start = f32[4]{0} all-reduce-start(%x), to_apply=%add
  %all-reduce-done = f32[4]{0} all-reduce-done(%all-reduce-start)
  %w = (s32[], f32[4]{0}) while(%t), condition=%until, body=%outer
  ROOT %c = f32[4]{0} conditional(%i, %x, %x), branch_computations={%inner, %add}
}
"""


def test_operations_in_loops_and_branches_are_counted():
    gather, end = Collective("all-gather", 1, 64, 1), Collective("all-reduce", 1, 1, 1)
    assert sorted(collectives(PROGRAM)) == sorted(
        [
            Collective("all-reduce", 1, 16, 1),
            Collective("all-reduce", 2, 100, 1),
            gather,
            gather._replace(times=5),
            end,
            end._replace(times=5),
        ]
    )
    with pytest.raises(ValueError, match="it has no line that begins with ENTRY"):
        collectives("module @jit_f {")


def test_a_step_sends_one_sum_of_the_gradients_and_a_few_numbers():
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    parameters, found = json.loads(done.stdout)
    sent = [Collective(*each) for each in found]
    assert {each.kind for each in sent} == {"all-reduce"}
    (gradients,) = [each for each in sent if each.bytes > 64]
    assert gradients.times == 1
    assert 4 * parameters <= gradients.bytes
    assert sum(each.bytes * each.times for each in sent) <= 4 * parameters + 64

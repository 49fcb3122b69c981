"""A checkpoint of the book's code becomes a run folder that translates as the checkpoint does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import greedy_search
from jax_attn.checkpoints import load, write_safetensors
from jax_attn.checkpoints.d2l import GENERATIONS
from train.runs.importing import import_checkpoint
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.translating.translator import Translator

SOURCE = ("!", ".", "<bos>", "<eos>", "<pad>", "<unk>", "go", "home", "now", "run", "you")  # as release 1.0 sorts them
TARGET = ("<unk>", "<pad>", "<bos>", "<eos>", "va", "vite", "chez", "toi", ".", "!")
STEPS = 6


def checkpoint(path, generation):
    """Write drawn weights of a generation of the book's code; return them."""
    gates, rng = 3 if generation.cell == "gru" else 4, np.random.default_rng(1)
    shapes = {"encoder.embedding.weight": (len(SOURCE), 5), "decoder.embedding.weight": (len(TARGET), 5)}
    shapes |= {"decoder.dense.weight": (len(TARGET), 8), "decoder.dense.bias": (len(TARGET),)}
    shapes |= {f"{name}.weight": (8, 8) for name in (generation.query_projection, generation.key_projection)}
    shapes[f"{generation.score}.weight"] = (1, 8)
    for name, size in ((generation.encoder_rnn, 5), ("decoder.rnn", 13)):
        for layer in range(2):
            shapes |= {f"{name}.bias_{part}_l{layer}": (gates * 8,) for part in ("ih", "hh")}
            shapes[f"{name}.weight_ih_l{layer}"] = (gates * 8, 8 if layer else size)
            shapes[f"{name}.weight_hh_l{layer}"] = (gates * 8, 8)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    write_safetensors(path, arrays)
    return arrays


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)
@pytest.mark.slow
def test_the_run_translates_as_the_checkpoint_does(tmp_path, generation):
    arrays = checkpoint(tmp_path / "book.safetensors", generation)
    folder = import_checkpoint(tmp_path / "book.safetensors", tmp_path / "run", SOURCE, TARGET, steps=STEPS)
    found = Translator.load(folder.path)("go home now .").best

    module, params = load(arrays)
    ids = [*(SOURCE.index(word) for word in ("go", "home", "now", ".", "<eos>")), SOURCE.index("<pad>")]
    memory = module.apply(params, jnp.array([ids]), jnp.array([5]), method="encode")
    state = module.apply(params, memory, method="initial_state")
    step = lambda tokens, state, memory: module.apply(params, tokens, state, memory, method="step")  # noqa: E731
    options = {"bos": TARGET.index("<bos>"), "eos": TARGET.index("<eos>"), "max_len": STEPS, "batch_size": 1}
    expected = jax.device_get(greedy_search(step, state, memory, **options))
    words = [TARGET[i] for i in expected.ids[0, 0, : expected.lengths[0, 0]]]
    assert list(found.tokens) == words
    np.testing.assert_allclose(found.score, expected.scores[0, 0], rtol=1e-5)
    assert RunFolder(folder.path).load().target.tokens[:4] == ("<pad>", "<bos>", "<eos>", "<unk>")


def test_words_that_do_not_fit_are_an_error_and_leave_no_folder(tmp_path):
    checkpoint(tmp_path / "book.safetensors", GENERATIONS[0])
    for words in (SOURCE[:-1], tuple(word.strip("<>") for word in SOURCE)):
        with pytest.raises(ConfigError, match=r"^source must be 11 words, <pad>, <bos>, <eos>, <unk> among them; got"):
            import_checkpoint(tmp_path / "book.safetensors", tmp_path / "run", words, TARGET)
    assert not (tmp_path / "run").exists()

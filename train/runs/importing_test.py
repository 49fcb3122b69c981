"""A checkpoint of the book's code becomes a run folder that translates as the checkpoint does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import greedy_search
from jax_attn.checkpoints import load, write_safetensors
from jax_attn.checkpoints.d2l import GENERATIONS, Sizes, layout
from train.runs.importing import import_checkpoint
from train.runs.run_folder import RunFolder
from train.setting import ConfigError
from train.translating.translator import Translator

SOURCE = ("!", ".", "<bos>", "<eos>", "<pad>", "<unk>", "go", "home", "now", "run", "you")  # as release 1.0 sorts them
TARGET = ("<unk>", "<pad>", "<bos>", "<eos>", "va", "vite", "chez", "toi", ".", "!")
STEPS = 6


def checkpoint(path, generation):
    """Write drawn weights of a generation of the book's code; return them."""
    sizes = Sizes(2, True, len(SOURCE), 5, len(TARGET), 5, 8, 8)
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in layout(generation, sizes).items()}
    write_safetensors(path, arrays)
    return arrays


@pytest.mark.parametrize(
    "generation",
    [GENERATIONS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in GENERATIONS[1:])],
    ids=lambda generation: generation.name,
)
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

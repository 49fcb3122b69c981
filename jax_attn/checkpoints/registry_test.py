import numpy as np
import pytest
from flax import linen as nn

from jax_attn.checkpoints import d2l, load, registry, write_safetensors
from jax_attn.checkpoints.__main__ import main

TOY = registry.Format(
    "toy layers",
    recognise=lambda arrays: "toy" in arrays,
    load=lambda arrays: (nn.Dense(1), {"params": {"kernel": arrays["toy"]}}),
    describe=lambda arrays: f"a toy of {len(arrays['toy'])} numbers",
)


def test_a_checkpoint_is_loaded_by_the_format_that_recognises_it():
    sizes = d2l.Sizes(2, False, 11, 5, 9, 4, 6, 6)
    layout = d2l.layout(d2l.GENERATIONS[2], sizes)
    module, params = load({name: np.zeros(shape, np.float32) for name, shape in layout.items()})
    assert module.decoder.num_hiddens == params["params"]["encoder"]["embedding"]["embedding"].shape[1] + 1 == 6


def test_one_line_adds_a_format(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(registry.FORMATS, "toy", TOY)
    module, params = load({"toy": np.ones(3)})
    assert isinstance(module, nn.Dense)
    np.testing.assert_array_equal(params["params"]["kernel"], 1)
    write_safetensors(tmp_path / "toy", {"toy": np.ones(3)})
    assert main([str(tmp_path / "toy")]) == 0
    assert "\na toy of 3 numbers\n" in capsys.readouterr().out


def test_unknown_keys_are_refused_with_the_known_formats():
    with pytest.raises(
        KeyError, match=r"no known format has these keys: \['other'\]; known formats: d2l \(translators"
    ):
        load({"other": np.ones(3)})

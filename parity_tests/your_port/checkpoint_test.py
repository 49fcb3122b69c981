"""Two checkpoints: right ones in every format, planted mistakes, and files that are damaged."""

import argparse
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.torch
import torch
from flax import nnx
from safetensors.numpy import save_file

from parity_tests.your_port import command
from parity_tests.your_port.checkpoint import compare_weights

RNG = np.random.default_rng(0)


def torch_weights() -> dict[str, np.ndarray]:
    """Make the state dict of two blocks with packed and with square weights."""
    weights = {"embed.weight": RNG.normal(size=(11, 6))}
    for i in range(2):
        weights |= {
            f"layers.{i}.attn.in_proj_weight": RNG.normal(size=(18, 6)),
            f"layers.{i}.attn.in_proj_bias": RNG.normal(size=18),
            f"layers.{i}.attn.out_proj.weight": RNG.normal(size=(6, 6)),
            f"layers.{i}.attn.out_proj.bias": RNG.normal(size=6),
            f"layers.{i}.fc1.weight": RNG.normal(size=(10, 6)),
            f"layers.{i}.fc2.weight": RNG.normal(size=(6, 10)),
            f"layers.{i}.norm.weight": RNG.normal(size=6),
        }
    return {name: x.astype(np.float32) for name, x in weights.items()}


def ported(weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """Put them where a Flax model has them."""
    layers: dict[str, Any] = {}
    for i in range(2):
        own = {name.removeprefix(f"layers.{i}."): x for name, x in weights.items() if name.startswith(f"layers.{i}.")}
        parts = zip(*(np.split(own[f"attn.in_proj_{kind}"], 3) for kind in ("weight", "bias")), strict=True)
        layers[f"layers_{i}"] = {
            "attention": {
                **{n: {"kernel": w.T, "bias": b} for n, (w, b) in zip(("query", "key", "value"), parts, strict=True)},
                "out": {"kernel": own["attn.out_proj.weight"].T, "bias": own["attn.out_proj.bias"]},
            },
            "mlp": {"fc1": {"kernel": own["fc1.weight"].T}, "fc2": {"kernel": own["fc2.weight"].T}},
            "norm": {"scale": own["norm.weight"]},
        }
    return {"embed": {"embedding": weights["embed.weight"]}, **layers}


WEIGHTS = torch_weights()


def write_orbax(path: Path, tree: Any) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), jax.tree.map(np.ascontiguousarray, tree))
    return path


def parts_of(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    """Write a sharded checkpoint as the hub has them."""
    folder.mkdir()
    names = list(weights)
    files = {"model-1-of-2.safetensors": names[:7], "model-2-of-2.safetensors": names[7:]}
    for file, inside in files.items():
        save_file({name: weights[name] for name in inside}, folder / file)
    index = {"weight_map": {name: file for file, inside in files.items() for name in inside}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_every_format_on_both_sides(tmp_path: Path) -> None:
    tree = ported(WEIGHTS)
    tensors = {name: torch.tensor(x) for name, x in WEIGHTS.items()}
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    np.savez(tmp_path / "arrays.npz", **WEIGHTS)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    torch.save({"state_dict": tensors, "optimizer": {"m": torch.ones(3)}, "epoch": 3}, tmp_path / "nested.pt")
    (tmp_path / "npy").mkdir()
    for name, x in WEIGHTS.items():
        np.save(tmp_path / "npy" / f"{name}.npy", x)
    state = {"params": tree, "opt_state": [{"mu": tree}, np.int32(3)], "step": np.int32(4)}
    flat = {
        ".".join(map(str, (k.key for k in path))): np.ascontiguousarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
    save_file(flat, tmp_path / "jax.safetensors")
    in_torch = [tmp_path / n for n in ("whole.safetensors", "arrays.npz", "pytorch_model.bin", "nested.pt", "npy")]
    in_torch.append(parts_of(tmp_path / "parts", WEIGHTS))
    in_jax = [write_orbax(tmp_path / "state" / "5", state).parent, tmp_path / "jax.safetensors", tree]
    for one, other in [(one, in_jax[0]) for one in in_torch] + [(in_torch[0], other) for other in in_jax]:
        report = compare_weights(one, other)
        assert report.agrees, report
        assert len(report.measurements) == len(flat)
    lines = str(compare_weights(in_torch[3], in_jax[0])).splitlines()
    assert lines[0] == "state against nested.pt agrees (23 tensors, bit for bit)"
    assert "optimizer.m of PyTorch is no weight, and is not compared" in lines[1]
    assert "opt_state.0.mu.embed.embedding, opt_state.0.mu.layers_0.attention.key.bias and 23 more of JAX" in lines[2]


def kernel(tree: dict[str, Any], *path: str) -> dict[str, np.ndarray]:
    """Return the record that holds a weight, to change it."""
    for name in path:
        tree = tree[name]
    return tree


Change = Callable[[dict[str, Any]], object]


def exchange_query_and_key(tree: dict[str, Any]) -> None:
    inside = tree["layers_1"]["attention"]
    inside["query"], inside["key"] = inside["key"], inside["query"]


def exchange_layers(tree: dict[str, Any]) -> None:
    tree["layers_0"]["mlp"], tree["layers_1"]["mlp"] = tree["layers_1"]["mlp"], tree["layers_0"]["mlp"]


def change(path: str, new: Callable[[np.ndarray], np.ndarray]) -> Change:
    *modules, leaf = path.split(".")

    def apply(tree: dict[str, Any]) -> None:
        inside = kernel(tree, *modules)
        inside[leaf] = new(np.array(inside[leaf]))

    return apply


def last_bit(x: np.ndarray) -> np.ndarray:
    x.view(np.uint32)[2, 3] ^= 1
    return x


MISTAKES: dict[str, tuple[Change, int, list[str]]] = {
    "one bit": (
        change("layers_0.mlp.fc1.kernel", last_bit),
        1,
        [r"layers_0.mlp.fc1.kernel: 1 of 60 numbers differ, first at [2, 3]: ", " in JAX, ", " in PyTorch"],
    ),
    "query and key": (
        exchange_query_and_key,
        4,
        [
            "layers_1.attention.query.kernel: it holds the numbers of PyTorch's layers.1.attn.in_proj_weight[1/3], "
            "not of layers.1.attn.in_proj_weight[0/3]",
            "layers_1.attention.key.bias: it holds the numbers of PyTorch's layers.1.attn.in_proj_bias[0/3], not of ",
        ],
    ),
    "two layers": (
        exchange_layers,
        4,
        ["it holds the numbers of PyTorch's layers.1.fc1.weight, not of layers.0.fc1.weight"],
    ),
    "a square one that is not transposed": (
        change("layers_1.attention.out.kernel", np.transpose),
        1,
        ["out.kernel: it is square and stands as it is, unlike the 4 others called kernel; if that is meant: layout={"],
    ),
    "rows in another order": (
        change("embed.embedding", lambda x: x[::-1]),
        1,
        ["embed.embedding: 60 of 66 numbers differ, first at [0, 0]", "they are the same numbers in another order"],
    ),
    "reshaped instead of transposed": (
        change("layers_0.mlp.fc2.kernel", lambda x: x.T.reshape(x.shape)),
        1,
        ["they are the same numbers in another order"],
    ),
    "never loaded": (
        change("layers_0.norm.scale", np.ones_like),
        1,
        ["layers_0.norm.scale: 6 of 6 numbers differ, first at [0]: 1.0 (0x3f800000) in JAX", "it is 1.0 everywhere"],
    ),
    "through bfloat16": (
        change("layers_1.mlp.fc1.kernel", lambda x: x.astype(jnp.bfloat16).astype(x.dtype)),
        1,
        ["JAX has PyTorch's rounded to bfloat16"],
    ),
    "scaled": (change("embed.embedding", lambda x: x * np.float32(6**0.5)), 1, ["JAX has 2.44949 times PyTorch's"]),
    "1 + weight": (change("layers_1.norm.scale", lambda x: x - 1), 1, ["JAX has PyTorch's plus -1"]),
    "one is missing": (
        lambda tree: tree["layers_1"].pop("norm"),
        1,
        ["layers.1.norm.weight: JAX has no counterpart"],
    ),
    "one more": (
        lambda tree: tree["layers_1"].update(gate={"bias": np.ones(7, np.float32)}),
        1,
        ["layers_1.gate.bias: PyTorch has no counterpart"],
    ),
    "NaN": (
        change("layers_0.mlp.fc1.kernel", lambda x: x * np.float32(np.nan)),
        1,
        [": nan (0x", "it is nan everywhere"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    apply, failed, words = MISTAKES[mistake]
    tree = ported(WEIGHTS)
    apply(tree)
    report = compare_weights(WEIGHTS, tree)
    assert len(report.failed) == failed, report
    assert [text for text in words if text not in str(report)] == []


def test_weights_that_are_found_by_their_numbers_are_said_and_complex_ones_are_weights() -> None:
    rng = np.random.default_rng(0)
    gate, up, down = (rng.normal(size=size).astype(np.float32) for size in ((8, 4), (8, 4), (4, 8)))
    in_torch = {f"mlp.{name}_proj.weight": x for name, x in (("gate", gate), ("up", up), ("down", down))}
    exchanged = {name: {"kernel": x.T} for name, x in (("w1", up), ("w3", gate), ("w2", down))}
    assert "found by numbers, since names leave it open: w1.kernel is mlp.up_proj" in str(
        compare_weights(in_torch, exchanged)
    )
    for dtype in (np.complex64, np.complex128):
        x = rng.normal(size=(3, 4)).astype(dtype)
        assert compare_weights({"w": x}, {"w": x})
        assert "12 of 24 numbers differ" in str(compare_weights({"w": x}, {"w": x + 1}))


def test_a_difference_in_8_or_16_bits_is_no_rounding_and_no_offset() -> None:
    for dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.bfloat16):
        x = np.array([[0.125, 2, 3], [1.5, -1, 0.5]], dtype)
        y = x.copy()
        y[0, 0] = 2
        assert str(compare_weights({"w": x}, {"w": y})).endswith("in JAX, 0.125 (0x" + f"{bits(x):x}) in PyTorch")


def bits(x: np.ndarray) -> int:
    return int(x.view(f"u{x.itemsize}").flat[0])


def test_every_tensor_of_a_tree_is_kept_whatever_its_keys_are() -> None:
    """Keys of two types, and a name that is another one's without its `params` or `value`."""
    x, y = np.ones(3, np.float32), np.zeros((2, 3), np.float32)
    right({"a": x, "b": {1: y, "c": x}}, {"a": x, "b": {1: y, "c": x}})
    assert "b.1: JAX has no counterpart" in str(compare_weights({"a": x, "b": {1: y, "c": x}}, {"a": x}))
    for name in ("params.a", "a.value"):
        assert f"{name}: JAX has no counterpart" in str(compare_weights({name: y, "a": x}, {"a": x}))


def test_a_tensor_that_numpy_cannot_show_is_read_or_named(tmp_path: Path) -> None:
    turned = torch.complex(torch.arange(3.0), torch.ones(3)).conj()
    torch.save({"w": turned}, tmp_path / "conj.pt")
    right(tmp_path / "conj.pt", {"w": turned.resolve_conj().numpy()})
    for x in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(ValueError, match="w is no plain array of numbers"):
            compare_weights({"w": x}, WEIGHTS)
    for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, "f4,i4"):
        np.savez(tmp_path / "a.npz", w=np.zeros(3, dtype), v=np.ones(2))
        with pytest.raises(ValueError, match=r"w has the dtype .*save it as float32"):
            compare_weights(tmp_path / "a.npz", WEIGHTS)


def test_an_index_is_held_to_its_parts(tmp_path: Path) -> None:
    folder = parts_of(tmp_path / "lost", WEIGHTS)
    part = folder / "model-2-of-2.safetensors"
    save_file({name: WEIGHTS[name] for name in list(WEIGHTS)[8:]}, part)
    with pytest.raises(ValueError, match=f"lacks {list(WEIGHTS)[7]}, which its index says to be in model-2-of-2"):
        compare_weights(folder, WEIGHTS)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')
    with pytest.raises(ValueError, match="3 is of no kind that is read"):
        compare_weights(folder, WEIGHTS)
    two = parts_of(tmp_path / "two", WEIGHTS)
    (two / "model.fp16.safetensors.index.json").write_bytes((two / "model.safetensors.index.json").read_bytes())
    with pytest.raises(ValueError, match=r"holds 2 checkpoints \(model\.fp16\..*\): give a folder of one"):
        compare_weights(two, WEIGHTS)


def test_a_file_that_holds_more_than_tensors_is_no_damaged_one(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(3)}, "args": argparse.Namespace(lr=1)}, tmp_path / "all.pth")
    with pytest.raises(OSError, match=r"holds more than tensors \(argparse\.Namespace\).*save its state dict alone"):
        compare_weights(tmp_path / "all.pth", {"a": np.ones(3, np.float32)})


def test_a_square_weight_of_a_name_that_many_kinds_have_is_said() -> None:
    rng = np.random.default_rng(0)
    table, linear, square = (rng.normal(size=size).astype(np.float32) for size in ((7, 4), (6, 4), (4, 4)))
    in_torch = {"embed.weight": table, "fc.weight": linear, "mix.weight": square}
    report = compare_weights(in_torch, {"embed": {"w": table}, "fc": {"w": linear.T}, "mix": {"w": square}})
    assert "note:" in str(report), report


@pytest.mark.parametrize("transposed", [False, True])
def test_a_square_weight_is_described_in_the_layout_that_is_nearest(transposed: bool) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    wrong = weight.T.copy() if transposed else weight.copy()
    wrong[2, 3] += 1
    assert ": 1 of 36 numbers differ, first at [2, 3]" in str(compare_weights({"w": weight}, {"w": wrong}))


def test_a_bias_that_is_zero_in_pytorch_is_compared() -> None:
    zeros, ones = ({"dense": {"bias": np.full(3, x, np.float32)}} for x in (0, 1))
    assert "it is 1.0 everywhere in JAX" in str(compare_weights(zeros, ones))
    assert "3 of 3 numbers differ" in str(compare_weights(zeros, {"dense": {"bias": np.arange(1, 4, dtype="f")}}))


def test_what_a_trainer_of_transformers_writes_beside_the_weights_is_not_read(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n.")
    right(tmp_path, ported(WEIGHTS))


def test_what_is_right_is_not_called_wrong() -> None:
    tree, tied = ported(WEIGHTS), {**WEIGHTS, "lm_head.weight": WEIGHTS["embed.weight"].copy()}
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
    assert "float32 in PyTorch is bfloat16 in JAX, in 23 of 23 tensors" in str(right(WEIGHTS, narrow))
    assert "lm_head.weight is embed.weight once more in PyTorch" in str(right(tied, tree))
    right(WEIGHTS, {**tree, "lm_head": {"kernel": WEIGHTS["embed.weight"].T}})  # JAX holds it twice
    right({**WEIGHTS, "pooler.weight": np.ones((3, 2), np.float32)}, tree, ignore=["pooler.*"])
    right(WEIGHTS, {**tree, "rope": np.ones(5, np.float32)}, names={"rope": None})
    counters = {"layers.0.num_batches_tracked": np.int64(3), "embed.position_ids": np.arange(8)[None]}
    assert "position_ids of PyTorch, in whole numbers" in str(right({**WEIGHTS, **counters}, tree))
    as_it_is = ported(WEIGHTS)
    change("layers_1.attention.out.kernel", np.transpose)(as_it_is)
    right(WEIGHTS, as_it_is, layout={"layers_1.attention.out.kernel": "as it is"})
    plain = {name: x for name, x in WEIGHTS.items() if "in_proj" not in name}
    layers = jax.tree.map(lambda *x: np.stack(x), *(tree[f"layers_{i}"] for i in range(2)))
    layers["attention"] = {"out": layers["attention"]["out"]}
    report = right(plain, {"embed": tree["embed"], "layers": layers})
    assert "layers.0.fc1.weight … layers.1.fc1.weight, stacked" in str(report.map)


def test_a_dtype_that_cannot_hold_the_weights_is_no_conversion() -> None:
    weights = {"a.weight": np.full((3, 2), 0.5, np.float32)}
    for x, words in (
        (np.zeros((3, 2), np.int8), "int8 in JAX cannot hold a.weight, which is float32 in PyTorch"),
        (np.full((3, 2), np.inf, np.float16), "float16 in JAX cannot hold a.weight, in which there is 7e+04"),
    ):
        given = weights if x.dtype == np.int8 else {"a.weight": np.full((3, 2), 7e4, np.float32)}
        report = compare_weights(given, {"a": {"weight": x}, "keys": jax.random.key(0)})
        assert words in str(report)


def test_whole_numbers_that_wrap_are_no_conversion() -> None:
    ids = np.array([[300, 2], [3, 4]])
    report = compare_weights({"a.codes": ids, **WEIGHTS}, {"a": {"codes": ids.astype(np.int8)}, **ported(WEIGHTS)})
    assert "a.codes: int8 in JAX cannot hold a.codes, in which there is 300" in str(report)


def test_numbers_that_are_all_the_same_do_not_stand_for_others() -> None:
    """A bias of zeros that one side lacks is not another one of zeros."""
    zero = {f"layers.{i}.norm.bias": np.zeros(6, np.float32) for i in range(2)}
    tree = ported(WEIGHTS)
    tree["layers_0"]["norm"]["bias"] = np.zeros(6, np.float32)
    assert "layers.1.norm.bias: JAX has no counterpart" in str(compare_weights({**WEIGHTS, **zero}, tree))
    tree["layers_1"]["norm"]["bias"] = np.zeros(6, np.float32)
    right({**WEIGHTS, **zero}, tree)
    del zero["layers.1.norm.bias"]
    assert "layers_1.norm.bias: PyTorch has no counterpart" in str(compare_weights({**WEIGHTS, **zero}, tree))


def right(*arguments: Any, **options: Any) -> Any:
    report = compare_weights(*arguments, **options)
    assert report.agrees, report
    return report


def test_names_that_say_nothing_are_found_by_their_numbers() -> None:
    weights = {f"layers.{i}.{name}": RNG.normal(size=(5, 7)) for i in range(4) for name in ("up.weight", "down.weight")}
    shuffled = {f"t{number}": weights[name].T for number, name in enumerate(RNG.permutation(list(weights)))}
    assert str(right(weights, shuffled).map).count("found by its numbers") > 4


def test_a_square_weight_whose_kind_shows_nothing_is_said() -> None:
    weights = {f"{i}.weight": RNG.normal(size=(4, 4)) for i in range(2)}
    report = right(weights, {f"dense_{i}": {"kernel": weights[f"{i}.weight"].T} for i in range(2)})
    assert "the shape of 2 square tensors do not show whether they stand transposed rightly" in str(report)


def test_a_function_that_loads_is_held_to_the_file(tmp_path: Path) -> None:
    saved = write_orbax(tmp_path / "orbax", ported(WEIGHTS))
    right(WEIGHTS, saved, load=ported)

    def wrong(weights: dict[str, np.ndarray]) -> dict[str, Any]:
        return ported({**weights, "layers.0.norm.weight": 2 * weights["layers.0.norm.weight"]})

    assert "layers_0.norm.scale: 6 of 6" in str(compare_weights(WEIGHTS, saved, load=wrong))
    missing = compare_weights(WEIGHTS, saved, load=lambda weights: {"embed": ported(weights)["embed"]})
    assert len(missing.failed) == 22


def test_an_nnx_model_is_found_under_its_names(tmp_path: Path) -> None:
    module = nnx.Sequential(
        nnx.Linear(3, 5, rngs=nnx.Rngs(0)), nnx.BatchNorm(5, rngs=nnx.Rngs(0)), nnx.Dropout(0.1, rngs=nnx.Rngs(0))
    )
    twin = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    state = nnx.to_pure_dict(nnx.state(module))
    layers = state["layers"]
    layers[0] |= {"kernel": twin[0].weight.detach().numpy().T, "bias": twin[0].bias.detach().numpy()}
    norm = twin[1].state_dict()
    layers[1] |= {"mean": norm["running_mean"].numpy(), "var": norm["running_var"].numpy()}
    arrays = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state
    )
    report = right(twin.state_dict(), write_orbax(tmp_path / "nnx", arrays))
    assert len(report.measurements) == 6


def test_the_fixture_takes_a_report(parity: Callable[..., None]) -> None:
    counted = {"ids.weight": np.arange(6, dtype=np.int8).reshape(2, 3), **WEIGHTS}
    parity(compare_weights(counted, {**ported(WEIGHTS), "ids": {"kernel": counted["ids.weight"].T}}))
    with pytest.raises(pytest.fail.Exception, match=r"ids.weight: JAX has no counterpart|left|DIFFERS"):
        parity(compare_weights({"x": np.ones(3), **WEIGHTS}, ported(WEIGHTS)))


def run(*arguments: Any) -> int:
    return command.main([str(argument) for argument in arguments], isolated=False)


def test_a_builder_that_goes_elsewhere_finds_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(WEIGHTS, "model.safetensors")
    Path("port.py").write_text("import os\ndef build(): os.chdir('/'); return {}\n")
    assert run("--weights", "model.safetensors", "model.safetensors", "port.py:build") == 0


def test_the_command_says_it_by_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    saved = write_orbax(tmp_path / "orbax", ported(WEIGHTS))
    pair, out = ("--weights", tmp_path / "model.safetensors", saved), tmp_path / "weights.json"
    assert run(*pair, "--json", out) == 0
    assert capsys.readouterr().out == "orbax against model.safetensors agrees (23 tensors, bit for bit)\n"
    record = json.loads(out.read_text("utf-8"))
    assert {"jax": "embed.embedding", "shape": "[11, 6]", "torch": "embed.weight", "layout": "as it is"} in record[
        "weights"
    ]
    port = tmp_path / "port.py"
    port.write_text(
        "def names(): return {'names': {'embed': 'layers.0'}}\n"
        "def option(): return {'inputs': 3}\n"
        "def ignore(): return {'ignore': ['head.*']}\n"
    )
    assert run(*pair, f"{port}:names") == 1
    assert "embed.embedding: it holds the numbers of PyTorch's embed.weight" in capsys.readouterr().out
    for arguments, words in {
        (*pair, f"{port}:option"): "must return a dict of some of names, layout, load, ignore; got {'inputs': 3}",
        (*pair, f"{port}:ignore"): "ignore: head.* fits none of PyTorch's names",
        (*pair, "--blind"): "--weights runs no program: leave --compiled and --blind out",
        (): "give a file and a function in it, such as port.py:build, or --weights",
    }.items():
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("file", ["a.safetensors", "a.npz", "a.npy", "a.pt", "a.bin"])
def test_a_file_that_is_cut_is_an_error_of_one_line(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / file
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **WEIGHTS)
    np.save(tmp_path / "a.npy", WEIGHTS["embed.weight"])
    for name in ("a.pt", "a.bin"):
        torch.save({name: torch.tensor(x) for name, x in WEIGHTS.items()}, tmp_path / name)
    cut(path)
    assert run("--weights", path, tmp_path / "a.safetensors") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path} is damaged, cut short, or not what its name says: ")
    assert said.count("\n") == 1


def test_numbers_of_8_bits_are_read_and_another_dtype_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
    torch.save({name: torch.linspace(-4, 4, 6).view(2, 3).to(x) for x, name in kinds.items()}, tmp_path / "a.pt")
    safetensors.torch.save_file(torch.load(tmp_path / "a.pt"), tmp_path / "a.safetensors")
    assert run("--weights", tmp_path / "a.pt", tmp_path / "a.safetensors") == 0
    capsys.readouterr()
    data = (tmp_path / "a.safetensors").read_bytes()
    strange = tmp_path / "strange.safetensors"
    strange.write_bytes(data.replace(b'"dtype":"F8_E5M2"', b'"dtype":"F8_E8M0"'))
    assert run("--weights", strange, strange) == 0
    capsys.readouterr()
    packed = re.sub(rb'"dtype":"F8_E5M2","shape":\[2,3\]', b'"dtype":"F4","shape":[4,3]     ', data)
    strange.write_bytes(packed)
    assert run("--weights", strange, strange) == 2
    assert f"{strange} is damaged, cut short, or not what its name says: F8_E5M2 is of F4, which is not read" in (
        capsys.readouterr().err
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves tasks after an error
def test_damaged_and_strange_folders_are_errors_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.safetensors"
    save_file(WEIGHTS, good)
    parts = parts_of(tmp_path / "parts", WEIGHTS)
    (parts / "model-2-of-2.safetensors").unlink()
    orbax = write_orbax(tmp_path / "orbax", ported(WEIGHTS))
    for data in (orbax / "d").iterdir():
        cut(data)
    described = write_orbax(tmp_path / "described", ported(WEIGHTS))
    (described / "_METADATA").write_text("{")
    steps = tmp_path / "steps"
    for step in ("1", "2"):
        write_orbax(steps / step, {"w": np.ones(3)})
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x04cos\nsystem\n.")
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.h5").write_bytes(b"")
    save_file({"ids": np.arange(3)}, tmp_path / "ids.safetensors")
    for path, words in {
        parts: "No such file or directory",
        orbax: "is damaged, or of another version of Orbax",
        described: "is damaged, or of another version of Orbax",
        steps: "holds 2 checkpoints of Orbax: give one of 1, 2",
        tmp_path / "pickle.pt": "is damaged, cut short, or not what its name says",
        tmp_path / "empty": "holds no tensors",
        tmp_path / "weights.h5": "is of no kind that is read; these are: .safetensors, .npz",
        tmp_path / "ids.safetensors": "JAX has no weights: ids.safetensors holds no floating tensors",
        tmp_path / "nothing.safetensors": "No such file or directory",
    }.items():
        assert run("--weights", good, path) == 2, path
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1

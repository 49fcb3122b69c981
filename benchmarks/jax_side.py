"""The implementations in JAX: ours, what JAX and Flax offer instead, and the ceilings."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import jax_attn
from benchmarks import inputs, jax_training
from benchmarks.jax_training import Training, make_model
from benchmarks.process import FOLDER, Program
from jax_attn.weights import from_torch, to_torch
from parity_tests.this_library.cases import find_case
from train.config import SearchConfig
from train.devices import start_jax
from train.translation.search import make_search


def use_device(device: str) -> None:
    """Make JAX use `device` ("cpu" or "cuda"), compile without a cache, and multiply in full float32 as PyTorch."""
    jax.config.update("jax_enable_compilation_cache", False)
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    else:
        jax.config.update("jax_default_matmul_precision", "float32")


def naive_additive(queries: Any, keys: Any, w_v: Any) -> Any:
    """Compute w_vᵀ tanh(q + k) as the formula says."""
    return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def naive_softmax(scores: Any, valid_lens: Any) -> Any:
    """Apply `jax.nn.softmax` to the keys within the length."""
    return jax.nn.softmax(scores, axis=-1, where=jnp.arange(scores.shape[-1]) < valid_lens[:, None, None])


def call_case(name: str, **arrays: Any) -> Any:
    """Call the JAX side of a parity case, so that what is timed is what is proved equal to PyTorch."""
    options = {"causal": False, "scaled": True} if name.startswith("DotProduct") else {}
    return find_case(name).jax.call({}, arrays, options)


def attention(device: str, *, function: Callable[..., Any], arguments: str, backward: bool = False) -> Program:
    """Compute a function of attention under jit; with `backward`, also the gradients of its arguments."""
    use_device(device)
    moved, fixed = (jax.tree.map(jnp.asarray, arrays) for arrays in inputs.attention_arguments(arguments))

    @jax.jit
    def forward(moved: Any, fixed: Any) -> Any:
        return {"output": function(**moved, **fixed)}

    @jax.jit
    def both(moved: Any, fixed: Any, along: Any) -> Any:
        output, pull_back = jax.vjp(lambda moved: function(**moved, **fixed), moved)
        return {"output": output, **pull_back(along)[0]}

    if not backward:
        return _program(lambda: (forward(moved, fixed), None))
    along = jnp.asarray(inputs.cotangent(arguments, jax.eval_shape(forward, moved, fixed)["output"].shape))
    return _program(lambda: (both(moved, fixed, along), None))


def _program(compute: Callable[[], tuple[Any, Any]]) -> Program:
    """Make a program of a function that returns what is compared, and what is computed besides."""
    return Program(
        lambda: jax.block_until_ready(compute()), lambda: {name: np.asarray(x) for name, x in compute()[0].items()}
    )


def lstm_params(weights: Any, suffix: str) -> dict[str, dict[str, Any]]:
    """Convert a layer's weights to those of Linen's LSTM cells, whose one bias is the sum of ours."""
    kernels = [jnp.split(weights[f"weight_{kind}_{suffix}"].T, 4, axis=-1) for kind in ("ih", "hh")]
    biases = jnp.split(weights[f"bias_ih_{suffix}"] + weights[f"bias_hh_{suffix}"], 4)
    params: dict[str, dict[str, Any]] = {}
    for gate, of_input, of_state, bias in zip("ifgo", *kernels, biases, strict=True):
        params |= {f"i{gate}": {"kernel": of_input}, f"h{gate}": {"kernel": of_state, "bias": bias}}
    return params


def recurrent(device: str, *, module: str) -> Program:
    """Run an LSTM of two layers, with the gradients of inputs and weights; `module` is "ours" or "Flax"."""
    use_device(device)
    x, along, weights = inputs.recurrent_inputs()
    *_, num_hiddens, num_layers = inputs.RECURRENT_SIZES
    lstm = jax_attn.LSTM(num_hiddens=num_hiddens, num_layers=num_layers)
    layer = nn.RNN(nn.OptimizedLSTMCell(num_hiddens))
    params: Any
    if module == "ours":
        params = from_torch(weights, jax.eval_shape(lstm.init, jax.random.key(0), x))
    else:
        arrays = jax.tree.map(jnp.asarray, weights)
        params = [{"params": {"cell": lstm_params(arrays, f"l{i}")}} for i in range(num_layers)]

    def forward(params: Any, x: Any) -> Any:
        if module == "ours":
            return lstm.apply(params, x)[0]
        for layer_params in params:
            x = layer.apply(layer_params, x)
        return x

    @jax.jit
    def both(params: Any, x: Any, along: Any) -> Any:
        outputs, pull_back = jax.vjp(forward, params, x)
        d_params, d_x = pull_back(along)
        return {"output": outputs, "gradient of inputs": d_x}, d_params

    arguments = jax.device_put((params, x, along))
    return _program(lambda: both(*arguments))


def draw_params(model: Any, name: str, scales: Any = None) -> Any:
    """Draw a model's parameters by PyTorch's names."""
    example = jax_training.EXAMPLE
    params = jax.jit(model.init)(jax.random.key(0), example.sources, example.targets, example.source_lens)
    shapes = {key: x.shape for key, x in to_torch(params).items()}
    return from_torch(inputs.draw_weights(name, shapes, scales), params)


def train(device: str, *, translator: inputs.Translator, attention: str = "additive") -> Program:
    """Train as `python -m train.nmt` does. Compare the losses of the first steps, without dropout."""
    use_device(device)
    start_jax(translator.decoder["num_hiddens"])
    groups = inputs.draw_training(translator.name)

    def make_training(translator: inputs.Translator) -> Training:
        model = make_model(translator.encoder, translator.decoder, attention)
        return Training(model, groups[0].sources.shape[1], **translator.training)

    training = make_training(translator)
    params = draw_params(training.model, translator.name)
    batches = [training.place(group) for group in groups]
    state = training.start(params)

    def run() -> None:
        nonlocal state
        state, _ = training.run(state, batches)

    def first_losses() -> dict[str, np.ndarray]:
        compared = make_training(translator.without_dropout()) if translator.dropout else training
        _, (losses, *_) = compared.run(compared.start(params), batches[:1])
        return {"losses": np.asarray(losses.nats / np.maximum(losses.tokens, 1))[: inputs.COMPARED]}

    return Program(run, first_losses)


def search(device: str, *, beam_size: int) -> Program:
    """Encode and search as `python -m train.translate` does, all sentences at once; none ends before the last step."""
    use_device(device)
    model = make_model(inputs.W2.encoder, inputs.W2.decoder)
    params = draw_params(model, "w2", inputs.SHARP)
    config = SearchConfig(beam_size=beam_size, length_penalty=0.0, min_len=inputs.STEPS, max_len=inputs.STEPS)
    translate = make_search((model,), config, inputs.STEPS)
    arguments = jax.device_put((*inputs.draw_sources(), np.arange(inputs.SENTENCES, dtype=np.int32)))

    def run() -> Any:
        return jax.block_until_ready(translate([params], *arguments))

    def best() -> dict[str, np.ndarray]:
        found = run()
        return {"ids": np.asarray(found.ids[:, 0]), "scores": np.asarray(found.scores[:, 0])}

    return Program(run, best)


FIRST_STEP = """
import json, sys, time
import flax, jax, optax
start = time.perf_counter()
import jax_training
assert jax_training.take_first_step(json.loads(sys.argv[1])) == 1
print(time.perf_counter() - start)
"""


def first_step(device: str, *, translator: inputs.Translator) -> Program:
    """Take the first step of a translator in a fresh process, with everything compiled by an earlier one.

    The process imports JAX, Flax and Optax. Then the clock starts: our own imports, the initialisation of the model,
    and one step with one batch. JAX's compilation cache and Python's bytecode are in place.
    """
    folder, here = os.environ[FOLDER], Path(__file__).parent
    group = inputs.draw_training(translator.name)[0]
    shape = [*group.sources.shape[1:], group.targets.shape[2]]
    settings = {"encoder": translator.encoder, "decoder": translator.decoder, "training": translator.training}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "JAX_ENABLE_COMPILATION_CACHE": "1",
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **({"JAX_PLATFORMS": "cpu"} if device == "cpu" else {}),
    }

    def run() -> float:
        command = [sys.executable, "-c", FIRST_STEP, json.dumps({**settings, "shape": shape})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the process failed before the end of its first step:\n{done.stderr[-2000:]}")
        return float(done.stdout)

    def fill_cache() -> dict[str, np.ndarray]:
        run()
        return {}

    return Program(run, fill_cache)


def ceiling(device: str, *, operation: str, repeats: int, shape: tuple[int, ...]) -> Program:
    """Repeat the operation in one program."""
    use_device(device)

    def gemm(carry: Any, _: Any, other: Any) -> Any:
        return carry + (carry @ other).max(axis=1, keepdims=True) * 1e-9  # each product needs the one before

    def tanh(total: Any, i: Any, x: Any) -> Any:
        return total + jnp.tanh(x + i).sum()

    def copy(x: Any, _: Any, __: Any) -> Any:
        return x + 1

    once, first, other = {
        "gemm": lambda: (gemm, jnp.full(shape[:2], 1 / shape[1]), jnp.ones(shape[1:])),
        "tanh": lambda: (tanh, jnp.zeros(()), jnp.linspace(-2, 2, shape[0])),
        "copy": lambda: (copy, jnp.zeros(shape), None),
    }[operation]()

    @jax.jit
    def run(first: Any, other: Any) -> Any:
        steps = jnp.arange(repeats) * 1e-3
        return jax.lax.scan(lambda carry, i: (once(carry, i, other), None), first, steps)[0]

    return Program(lambda: jax.block_until_ready(run(first, other)), dict)

"""Generation: a small decoder of two layers with a window and experts, right and with the mistakes that ports make."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from parity_tests.your_port.generation.comparison import compare_generation
from parity_tests.your_port.generation.decoder import Decoder
from parity_tests.your_port.generation.hugging_face import _decoder_alone, hugging_face
from parity_tests.your_port.generation.report import FREE, FULL, OWN, STEPS, GenerationReport
from parity_tests.your_port.generation.sides import Side

ROWS, WIDTH, WINDOW, LAYERS, LONGEST = 23, 8, 6, 2, 40
END = 2
"""The first prompt's third new token."""


class Layer(torch.nn.Module):
    """Attention within a window, then one of three experts."""

    hidden = -1e9
    """The score of what a mask hides."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.router, self.experts = torch.nn.Linear(WIDTH, 3), torch.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any, mask: Any, past: Any = None) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        steps = torch.arange(k.shape[1])
        near = steps <= steps[-x.shape[1] :, None]
        near &= steps > steps[-x.shape[1] :, None] - WINDOW
        scores = (q @ k.mT / WIDTH**0.5).masked_fill(~(near & mask[:, None].bool()), self.hidden)
        x = x + self.out(scores.softmax(-1) @ v)
        chosen = functional.one_hot(self.router(x).argmax(-1), 3).to(x.dtype)
        return x + (self.experts(x).tanh().unflatten(-1, (3, WIDTH)) * chosen[..., None]).sum(-2), (k, v)


class Tiny(torch.nn.Module):
    """A decoder with learned positions, counted without the padding on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = torch.nn.Embedding(ROWS, WIDTH), torch.nn.Embedding(LONGEST, WIDTH)
        self.layers, self.head = torch.nn.ModuleList(Layer() for _ in range(LAYERS)), torch.nn.Linear(WIDTH, ROWS)

    def forward(self, ids: Any, mask: Any, past: Any = None) -> Any:
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        x, kept = self.embed(ids) + self.place(places), []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, mask, None if past is None else past[number])
            kept.append(cache)
        return self.head(x), kept


def torch_decoder() -> Decoder:
    def prefill(module: Any, inputs: Any) -> Any:
        logits, kept = module(inputs["input_ids"], inputs["attention_mask"])
        return logits[:, -1], (inputs["attention_mask"], kept)

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        mask = functional.pad(cache[0], (0, 1), value=1)
        logits, kept = module(tokens[:, None], mask, cache[1])
        return logits[:, -1], (mask, kept)

    def full(module: Any, inputs: Any, tokens: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        logits, _ = module(torch.cat([ids, tokens], 1), functional.pad(mask, (0, tokens.shape[1]), value=1))
        return logits[:, ids.shape[1] - 1 :]

    return Decoder(prefill, step, full)


@cache
def programs(length: int, mistake: str) -> tuple[Callable[..., Any], ...]:
    """Write prefill, step and full forward in JAX with a cache of a fixed length; each gets the weights first."""

    def linear(weights: Any, name: str, x: Any) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def run(weights: Any, ids: Any, places: Any, mask: Any, cache: Any, at: Any) -> Any:
        x, kept = weights["embed.weight"][ids] + weights["place.weight"][places], []
        steps, rows = jnp.arange(mask.shape[1]), at + jnp.arange(ids.shape[1])
        window = WINDOW + (mistake == "window")
        near = (steps <= rows[:, None]) & (steps > rows[:, None] - window)
        for number in range(LAYERS):
            q, k, v = jnp.split(linear(weights, f"layers.{number}.qkv", x), 3, -1)
            if cache is not None:
                k, v = (
                    jax.lax.dynamic_update_slice_in_dim(c, y, at, 1) for c, y in zip(cache[number], (k, v), strict=True)
                )
            kept.append((k, v))
            scores = jnp.where(near & (mask[:, None] != 0), jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5, -1e9)
            x = x + linear(weights, f"layers.{number}.out", jax.nn.softmax(scores, -1) @ v)
            best = linear(weights, f"layers.{number}.router", x).argmax(-1) % (3 - (mistake == "router"))
            chosen = jax.nn.one_hot(best, 3, dtype=x.dtype)
            experts = jnp.tanh(linear(weights, f"layers.{number}.experts", x)).reshape(*x.shape[:-1], 3, WIDTH)
            x = x + (experts * chosen[..., None]).sum(-2)
        return linear(weights, "head", x), kept

    def counted(mask: Any) -> Any:
        return jnp.maximum(mask.cumsum(-1) - 1, 0)

    @jax.jit
    def prefill(weights: Any, inputs: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        held = jnp.pad(mask, ((0, 0), (0, length - mask.shape[1])))
        empty = [(jnp.zeros((len(ids), length, WIDTH), weights["embed.weight"].dtype),) * 2] * LAYERS
        logits, cache = run(weights, ids, counted(mask), held, empty, 0)
        return logits[:, -1], (held, cache, jnp.int32(ids.shape[1]))

    @jax.jit
    def step(weights: Any, tokens: Any, cache: Any) -> Any:
        mask, kept, at = cache
        mask = jax.lax.dynamic_update_slice_in_dim(mask, jnp.ones((len(tokens), 1), mask.dtype), at, 1)
        places = jnp.full(len(tokens), at) if mistake == "padding" else mask.sum(-1) - 1
        logits, kept = run(weights, tokens[:, None], places[:, None], mask, kept, at)
        return logits[:, -1], (mask, kept, at + 1)

    @jax.jit
    def full(weights: Any, inputs: Any, tokens: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        mask = jnp.pad(mask, ((0, 0), (0, tokens.shape[1])), constant_values=1)
        logits, _ = run(weights, jnp.concatenate([ids, tokens], 1), counted(mask), mask, None, 0)
        return logits[:, ids.shape[1] - 1 :]

    return prefill, step, full


def port(weights: dict[str, Any], length: int = LONGEST, mistake: str = "") -> Decoder:
    """Give the programs the weights, and a loop that chooses the likeliest tokens."""
    inside = mistake if mistake in ("window", "router", "padding") else ""
    prefill, step, full = (partial(program, weights) for program in programs(length, inside))

    def generate(inputs: Any, count: int) -> Any:
        logits, cache = prefill(inputs)
        found = [logits.argmax(-1)]
        while len(found) < count:
            logits, cache = step(found[-1], cache)
            found.append(logits.argmax(-1))
        tokens = jnp.stack(found, 1)
        tokens = tokens[:, :3] if mistake == "short" else tokens.at[0, 2].set(ROWS) if mistake == "token" else tokens
        ended = jnp.cumsum(tokens == END, 1) - (tokens == END) > 0
        return tokens if mistake == "end" else jnp.where(ended, 0, tokens)

    def changed(inputs: Any, tokens: Any) -> Any:
        logits = full(inputs, tokens)
        if mistake == "vocabulary":
            return jnp.pad(logits, ((0, 0), (0, 0), (0, 1)))
        return logits.astype(jnp.float32) if mistake == "dtype" else logits[:, 1:] if mistake == "shape" else logits

    return Decoder(prefill, step, changed, generate)


MODULE = Tiny()
for parameter in MODULE.parameters():
    torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
RNG = np.random.default_rng(1)
MASK = np.array([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], np.int32)
PROMPTS = {"input_ids": RNG.integers(4, ROWS, (3, 5)) * MASK, "attention_mask": MASK}


def compare(dtype: str = "float64", **options: Any) -> GenerationReport:
    chosen = {name: options.pop(name) for name in ("tokens", "end") if name in options}
    with jax.enable_x64(dtype == "float64"):
        weights = {name: jnp.asarray(x.numpy(), dtype) for name, x in MODULE.state_dict().items()}
    return compare_generation(
        (MODULE, torch_decoder()),
        port(weights, **options),
        PROMPTS,
        dtype=dtype,
        **{"tokens": 16, "end": END, **chosen},
    )


def test_a_right_port_agrees_in_each_dtype_though_rounding_may_change_an_expert() -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        report = compare(dtype)
        assert report.agrees, report
        assert len(report.measurements) == 3 * 17 + 2 * 3
    assert compare(end=(ROWS, END)).agrees, "there may be several tokens that end a text"
    assert max(m.error for m in report.measurements) > 1  # an expert changed, and PyTorch's own rounding shows it
    assert "in bfloat16, rounding may make any token the best one at " in str(report)


CACHE = "JAX's full forward is right: it is the cache, or what prefill and step do otherwise"


@pytest.mark.parametrize(
    ("mistake", "programs", "words"),
    [
        ({"mistake": "padding"}, {STEPS, FREE, OWN}, [CACHE, "only the prompts with padding part"]),
        (
            {"length": 14},
            {STEPS},
            [CACHE, "from new token 10 on, a length of 15 with padding: a cache or a window ends there"],
        ),
        ({"mistake": "window"}, {FULL, STEPS}, ["first difference: JAX's full forward, prompt 1 at new token 3: "]),
        (
            {"mistake": "end"},
            {OWN},
            ["first difference: JAX's generate, prompt 0: it goes on after its end, new token 2"],
        ),
        ({"mistake": "short"}, {OWN}, ["JAX's generate, prompt 1: it stops after 3 of 16 tokens"]),
        (
            {"mistake": "router"},
            {FULL, STEPS},
            ["first difference: JAX's full forward, prompt 1 at new token 1"],
        ),
    ],
)
def test_a_mistake_is_found_where_it_is(mistake: dict[str, Any], programs: set[str], words: list[str]) -> None:
    report = compare(**mistake)
    assert {m.variant.removeprefix("JAX's ") for m in report.failed} == programs, report
    assert [text for text in words if text not in str(report)] == []
    assert report.record.verdict == "differs"


def test_a_mistake_is_found_in_bfloat16_too() -> None:
    assert "only the prompts with padding part" in str(compare("bfloat16", mistake="padding"))


def test_a_cache_of_pytorch_that_is_wrong_is_said() -> None:
    def step(module: Any, tokens: Any, cache: Any) -> Any:
        return torch_decoder().step(module, tokens, (cache[0], [(k.roll(1, 1), v) for k, v in cache[1]]))

    with jax.enable_x64(True):
        weights = {name: jnp.asarray(x.numpy(), "float64") for name, x in MODULE.state_dict().items()}
    wrong = replace(torch_decoder(), step=step)
    report = compare_generation((MODULE, wrong), port(weights), PROMPTS, tokens=8)
    assert "first difference: PyTorch's prefill and steps, prompt 0 at new token 1" in str(report)
    assert "PyTorch's full forward is right" in str(report)


def with_logits(*logits: float) -> tuple[torch.nn.Module, Decoder]:
    """Make a model whose logits are these, whatever comes in."""
    module = torch.nn.ParameterDict({"logits": torch.tensor(logits)})

    def rows(module: Any, *shape: int) -> Any:
        return module["logits"].expand(*shape, len(logits))

    return module, Decoder(
        lambda module, inputs: (rows(module, 2), None),
        lambda module, tokens, cache: (rows(module, 2), None),
        lambda module, inputs, tokens: rows(module, 2, tokens.shape[1] + 1),
    )


def compare_logits(in_torch: Any, dtype: str, *in_jax: float) -> GenerationReport:
    """Compare two models whose logits are constants."""
    with jax.enable_x64(dtype == "float64"):
        row = jnp.asarray(in_jax, dtype)

    def rows(*shape: int) -> Any:
        return jnp.broadcast_to(row, (*shape, len(row)))

    jax_side = Decoder(
        lambda inputs: (rows(2), None),
        lambda tokens, cache: (rows(2), None),
        lambda inputs, tokens: rows(2, tokens.shape[1] + 1),
    )
    prompts = {"input_ids": np.ones((2, 3), np.int32)}
    return compare_generation(with_logits(*in_torch), jax_side, prompts, tokens=2, dtype=dtype)


def test_another_token_is_a_tie_only_within_rounding() -> None:
    same = (0.0, 1.0, 1.0 + 1e-7)  # but for a part in 10⁷
    tie = compare_logits(same, "float32", 0, 1 + 2e-7, 1)
    assert tie.agrees, tie
    assert "free-running: another token by a tie in prompt 0 at new token 0, 1 instead of 2: margin " in str(tie)
    wrong = compare_logits(same, "float32", 0, 1.1, 1)
    assert not wrong
    assert {m.variant for m in wrong.failed} == {"JAX's full forward", "JAX's prefill and steps"}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("hidden", [-1e9, float(np.finfo(np.float32).min), -np.inf])
def test_the_logit_of_a_token_that_is_never_chosen_hides_no_difference(hidden: float, dtype: str) -> None:
    in_torch = (hidden, 1.0, 2.0, 1.5)
    for same in (hidden, -1e9):
        right = compare_logits(in_torch, dtype, same, 1, 2, 1.5)
        assert right.agrees, right
        assert "may make any token the best one" not in str(right)
    for wrong in ((hidden, 1, 2, 1.75), (-10, 1, 2, 1.5), (hidden, 1, 2, -np.inf)):
        assert not compare_logits(in_torch, dtype, *wrong)


def test_a_prompt_for_which_pytorch_has_nan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layer, "hidden", -np.inf)  # a step of padding sees nothing, and its softmax is 0 / 0
    with pytest.raises(ValueError, match=r"PyTorch's prefill in float64 has NaN for prompt 0[.].*'sdpa'"):
        compare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 4}, "JAX's prefill raised ValueError"),
        (
            {"mistake": "dtype"},
            r"JAX's full must return logits \[3, 17, vocabulary\] in float64; got \[3, 17, 23\] in float32",
        ),
        ({"mistake": "shape"}, r"JAX's full must return logits \[3, 17, vocabulary\] in float64; got \[3, 16, 23\]"),
        ({"mistake": "vocabulary"}, "JAX's logits are of 24 tokens, and PyTorch's of 23"),
        ({"mistake": "token"}, "JAX's generate: prompt 0 has 23 at new token 2, and there are 23 tokens"),
        ({"tokens": 0}, "tokens must be 1 or more"),
    ],
)
def test_what_cannot_be_compared_says_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(**options)


def test_a_side_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="torch_side must be a model of transformers, or"):
        compare_generation(MODULE, torch_decoder(), PROMPTS)
    with pytest.raises(ValueError, match=r"jax_side must be a Decoder\(prefill, step, full\)"):
        compare_generation(MODULE, MODULE, PROMPTS)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "Marian"])
def test_models_of_transformers_need_no_decoder(kind: str) -> None:
    """In JAX's place stand the same model's own functions, and its own `generate`."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": ROWS, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
    if kind == "Llama":
        sizes |= {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    else:
        sizes |= {"d_model": 8, "decoder_start_token_id": 0, "max_position_embeddings": 32, "forced_eos_token_id": None}
        for side in ("encoder", "decoder"):
            sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, "LlamaForCausalLM" if kind == "Llama" else "MarianMTModel")(config).double().eval()
    own = hugging_face(model)

    def as_torch(x: Any) -> Any:
        is_array = isinstance(x, jax.Array)
        return torch.tensor(np.array(x)).long() if is_array else {n: as_torch(y) for n, y in x.items()}

    def prefill(inputs: Any) -> Any:
        logits, cache = own.prefill(model, as_torch(inputs))
        return jnp.asarray(logits.numpy()), cache

    def step(tokens: Any, cache: Any) -> Any:
        logits, cache = own.step(model, as_torch(tokens), cache)
        return jnp.asarray(logits.numpy()), cache

    def full(inputs: Any, tokens: Any) -> Any:
        return jnp.asarray(own.full(model, as_torch(inputs), as_torch(tokens)).numpy())

    def generate(inputs: Any, count: int) -> Any:
        made = model.generate(**as_torch(inputs), max_new_tokens=count, do_sample=False)
        return jnp.asarray(made[:, -count:].numpy())

    with torch.no_grad():
        report = compare_generation(model, Decoder(prefill, step, full, generate), PROMPTS, tokens=6)
        assert report.agrees, report
        shifted = Decoder(prefill, lambda tokens, cache: step((tokens + 1) % ROWS, cache), full)
        assert not compare_generation(model, shifted, PROMPTS, tokens=6)


def test_an_input_that_a_model_of_transformers_would_not_get_is_named() -> None:
    inputs = {"input_ids": torch.ones(1, 2), "pixel_values": torch.ones(1, 3)}
    with pytest.raises(ValueError, match="gets input_ids and attention_mask alone; for pixel_values give"):
        _decoder_alone().prefill(None, inputs)


def test_a_complex_buffer_keeps_its_imaginary_part() -> None:
    module = torch.nn.Module()
    module.register_buffer("turn", torch.polar(torch.ones(2), torch.ones(2)))
    decoder = Decoder(lambda module, _: module.turn, lambda *_: None, lambda *_: None)
    assert Side.of_torch(decoder, {}, module, "float64").decoder.prefill(None).dtype == torch.complex128

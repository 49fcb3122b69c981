"""Trainings made to deceive: what could pass as agreement, or be explained by what it is not."""

from collections import UserDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from parity_tests import compare_training
from parity_tests.your_port.training.loss_causes import _readings

pytestmark = pytest.mark.slow
VOCAB, WIDTH, ROWS, LENGTH, STEPS, RATE, DECAY = 7, 4, 4, 5, 6, 1e-2, 0.1


class Net(nn.Module):
    """Words, a layer, and the words' table again; a frozen bias, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.head.weight = self.tokens.weight
        self.fixed, self.idle = nn.Parameter(torch.ones(VOCAB), requires_grad=False), nn.Linear(2, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.tokens(ids)))) + self.fixed


def adamw(model: nn.Module) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], RATE, weight_decay=DECAY)


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE)


def adam(model: nn.Module) -> Any:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], RATE)


def torch_start(
    weights: Any, optimizer: Any = adamw, clip: float = 0.0, schedule: Any = None, pieces: int = 1, average: Any = None
) -> Any:
    model = Net()
    model.load_state_dict(weights)
    optim = optimizer(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optim, schedule or (lambda step: 1.0))
    averaged = {name: p.detach().clone() for name, p in model.named_parameters()} if average else {}

    def step(batch: Any) -> Any:
        optim.zero_grad()
        total = 0.0
        for ids, labels in zip(batch["ids"].chunk(pieces), batch["labels"].chunk(pieces), strict=True):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / pieces
            loss.backward()
            total += loss.detach()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optim.step()
        scheduler.step()
        for name, p in model.named_parameters() if average else ():
            averaged[name].lerp_(p.detach(), 1 - average)
        return {"loss": total, "batch": batch} | ({"ema": averaged} if average else {})

    return model, optim, step


@dataclass(frozen=True)
class Jax:
    """How JAX trains."""

    transformation: Any
    untied: bool = False
    loss: Callable[[Any], Any] = lambda losses: losses.mean()
    of_gradients: Callable[[Any], Any] = lambda gradients: gradients
    read: Callable[[Any], Any] = lambda batch: batch
    pieces: Callable[[Any], Any] = lambda batch: [batch]
    returns: tuple[str, ...] = ("loss", "gradients", "batch")
    average: Any = None


def forward(params: Any, ids: Any) -> Any:
    hidden = jnp.tanh(params["tokens"][ids] @ params["mix"]["kernel"] + params["mix"]["bias"])
    return hidden @ params.get("table", params["tokens"]).T + params["head"] + jax.lax.stop_gradient(params["fixed"])


def jax_start(weights: Mapping[str, np.ndarray], how: Jax) -> Any:
    w = {name: jnp.asarray(x) for name, x in weights.items()}
    params = {
        "tokens": w["tokens.weight"],
        "mix": {"kernel": w["mix.weight"].T, "bias": w["mix.bias"]},
        "head": w["head.bias"],
        "fixed": w["fixed"],
        "idle": {"kernel": w["idle.weight"].T, "bias": w["idle.bias"]},
    } | ({"table": w["head.weight"]} if how.untied else {})
    state = {"optimizer": how.transformation.init(params)}
    if how.average:
        state["ema"] = how.average.init(params)
    return params, state, jax_step(how)


@cache
def jax_step(how: Jax) -> Any:
    def loss_of(params: Any, batch: Any) -> Any:
        logits = forward(params, batch["ids"])
        return how.loss(optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]))

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        read = how.read(batch)
        parts = [jax.value_and_grad(loss_of)(params, part) for part in how.pieces(read)]
        loss, gradients = jax.tree.map(lambda *xs: sum(xs) / len(xs), *parts)
        gradients = how.of_gradients(gradients)
        updates, optimizer = how.transformation.update(gradients, state["optimizer"], params)
        params, state = optax.apply_updates(params, updates), {**state, "optimizer": optimizer}
        values = {"loss": loss, "gradients": gradients, "batch": read}
        if how.average:
            values["ema"], state["ema"] = how.average.update(params, state["ema"])
        return params, state, {name: values[name] for name in (*how.returns, *(["ema"] if how.average else []))}

    return step


RNG = np.random.default_rng(0)
BATCHES = [{"ids": ids[:, :-1], "labels": ids[:, 1:]} for ids in RNG.integers(0, VOCAB, (STEPS, ROWS, LENGTH + 1))]
with torch.random.fork_rng():
    torch.manual_seed(0)
    WEIGHTS = Net().state_dict()


def verdict(how: Jax, resync: bool = True, steps: int = STEPS, weights: Any = WEIGHTS, **in_torch: Any) -> str:
    start = partial(torch_start, **in_torch)
    return str(compare_training(start, partial(jax_start, how=how), weights, BATCHES[:steps], steps, resync))


def decayed(mask: Callable[[str, Any], bool]) -> Any:
    """AdamW that decays the parameters of which `mask` (path, array) says so."""

    def tree(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, x: mask(jax.tree_util.keystr(path), x), params)

    return optax.adamw(RATE, weight_decay=DECAY, mask=tree)


def is_trained(path: str, _: Any) -> bool:
    return "fixed" not in path and "idle" not in path


def by_groups(model: nn.Module) -> Any:
    """AdamW that decays matrices alone."""
    matrices, vectors = ([p for p in model.parameters() if p.requires_grad and (p.dim() > 1) == m] for m in (1, 0))
    return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], RATE, weight_decay=DECAY)


def slower_words(model: nn.Module) -> Any:
    words, others = ([p for n, p in model.named_parameters() if p.requires_grad and (n[0] == "t") == w] for w in (1, 0))
    return torch.optim.AdamW([{"params": others}, {"params": words, "lr": RATE / 10}], RATE, weight_decay=DECAY)


def without_words(model: nn.Module) -> Any:
    return torch.optim.Adam([p for n, p in model.named_parameters() if p.requires_grad and n[0] != "t"], RATE)


def slow_adamw(model: nn.Module) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-6, weight_decay=1e-2)


def changed(path: tuple[str, ...], factor: float) -> Any:
    """Multiply the updates of one leaf."""

    def change(updates: Any, _: Any) -> Any:
        flat, tree = jax.tree_util.tree_flatten_with_path(updates)
        leaves = [x * factor if tuple(key.key for key in at) == path else x for at, x in flat]
        return jax.tree.unflatten(tree, leaves)

    return optax.stateless(change)


def normalised(gradients: Any, _: Any = None) -> Any:
    norm = optax.tree.norm(gradients)
    return jax.tree.map(lambda x: x / norm, gradients)


def clipped(gradients: Any) -> Any:
    return optax.clip_by_global_norm(0.1).update(gradients, optax.EmptyState())[0]


def clip_each(updates: Any, _: Any) -> Any:
    return jax.tree.map(lambda x: x * jnp.minimum(1, 0.1 / jnp.maximum(jnp.linalg.norm(x), 1e-30)), updates)


def first_half(batch: Any) -> Any:
    return [jax.tree.map(lambda x: x[: ROWS // 2], batch)]


def backwards(batch: Any) -> Any:
    return jax.tree.map(lambda x: x[::-1], batch)


def averaging(start: float, decay: float) -> Any:
    """Average the parameters, from `start` times the first ones."""

    def update(params: Any, state: Any) -> Any:
        new = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, state, params)
        return new, new

    return optax.GradientTransformation(lambda params: jax.tree.map(lambda x: start * x, params), update)


RIGHT = decayed(is_trained)
ADAM = optax.adam(RATE)
LATE = optax.chain(RIGHT, optax.scale_by_schedule(lambda count: jnp.where(count < STEPS, 1.0, 0.5)))
DECAYED_AFTER = optax.chain(
    optax.scale_by_adam(),
    optax.scale_by_learning_rate(RATE),
    optax.add_decayed_weights(
        -DECAY,
        lambda params: jax.tree_util.tree_map_with_path(
            lambda path, x: is_trained(jax.tree_util.keystr(path), x), params
        ),
    ),
)
AFTER = optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(0.5), optax.scale_by_learning_rate(RATE))
HUGE = {name: x.double().clone() for name, x in WEIGHTS.items()}
HUGE["fixed"][-1] = -1e9
HUGE_WORD = {name: x.double().clone() for name, x in WEIGHTS.items()}
HUGE_WORD["tokens.weight"][-1, -1] = HUGE_WORD["head.weight"][-1, -1] = 1e9

AGREE = {
    "a right average": (Jax(RIGHT, average=averaging(1.0, 0.9)), {"average": 0.9}),
    "a huge entry that is frozen": (Jax(ADAM), {"optimizer": adam, "weights": HUGE}),
    "a huge entry in an embedding": (Jax(ADAM), {"optimizer": adam, "weights": HUGE_WORD}),
    "a schedule that differs after the last step": (Jax(LATE), {}),
    "a schedule that is rounded to float32": (
        Jax(optax.adam(lambda count: jnp.float32(RATE) * jnp.float32(1 - count / 7))),
        {"optimizer": adam, "schedule": lambda step: 1 - step / 7},
    ),
    "rows in another order, which a mean does not see": (Jax(RIGHT, read=backwards, returns=("loss", "gradients")), {}),
}


@pytest.mark.parametrize("name", AGREE)
def test_these_agree_for_the_steps_that_are_named(name: str) -> None:
    how, given = AGREE[name]
    average = ", ema" * bool(how.average)
    compared = ", ".join([*["batch"] * ("batch" in how.returns), "loss, gradients, exp_avg, exp_avg_sq, parameters"])
    start = f"re-synchronised: the trainings agree for 6 steps in {compared}{average}; worst: "
    assert verdict(how, **given).startswith(start)


PARTED = {
    "two copies of a tied weight whose mean is right": (
        Jax(optax.chain(optax.sgd(RATE), changed(("tokens",), 2.0), changed(("table",), 2.0)), untied=True),
        {"optimizer": sgd},
        [
            "1 in copies of tokens.weight: error 0.000846, bound 1e-08",
            "looks like: tokens.weight is one weight in PyTorch, and JAX holds copies of it that move apart",
        ],
    ),
    "a scaled loss": (
        Jax(ADAM, loss=lambda losses: 2 * losses.mean()),
        {"optimizer": adam},
        [
            "1 in loss: error 1, bound 1e-08",
            "looks like: JAX's is 2 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: the loss and all gradients are 2 times PyTorch's: a sum for a mean, or another divisor",
        ],
    ),
    "a loss that is scaled unseen": (
        Jax(optax.chain(optax.scale(2.0), ADAM), returns=("loss",)),
        {"optimizer": adam},
        [
            "1 in exp_avg of tokens.weight (4 tensors part): error 1, bound 1e-08",
            "looks like: JAX's is 2 times PyTorch's: a scale, a sum for a mean, or a sign",
            "note: JAX gives nothing to compare with PyTorch's gradients or to take over",
            "note: JAX's step returns no gradients, so no cause in the optimiser is looked for",
        ],
    ),
    "a moment in bfloat16": (
        Jax(optax.adam(RATE, mu_dtype=jnp.bfloat16)),
        {"optimizer": adam},
        [
            "1 in exp_avg of tokens.weight (4 tensors part): error 0.00255, bound 1e-08",
            "looks like: bfloat16 in JAX, float64 in PyTorch",
        ],
    ),
    "a rate that a huge entry hides": (
        Jax(optax.adam(1.01 * RATE)),
        {"optimizer": adam, "weights": HUGE_WORD},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 0.01, bound 1e-08",
            "explained by: the learning rate is 0.0101 in JAX and 0.01 in PyTorch at step 1",
        ],
    ),
    "a decay that a small rate hides": (
        Jax(optax.adam(1e-6)),
        {"optimizer": slow_adamw},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 0.0226, bound 1e-08",
            "explained by: weight_decay is 0.0 in JAX, and 0.01 in PyTorch",
        ],
    ),
    "normalised gradients": (
        Jax(optax.sgd(RATE), of_gradients=normalised),
        {"optimizer": sgd},
        [
            "1 in gradients of tokens.weight (4 tensors part): error 0.329, bound 1e-08",
            "looks like: JAX's is 1.32856 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: every gradient is one multiple of PyTorch's in each step, 1.32856 at step 1, and "
            "another in others, and the loss is equal: clipped or normalised",
        ],
    ),
    "clipped gradients": (
        Jax(optax.sgd(RATE), of_gradients=clipped),
        {"optimizer": sgd, "clip": 0.1},
        [
            "1 in gradients of tokens.weight (4 tensors part): error 0.867, bound 1e-08",
            "looks like: JAX's is 0.132856 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: the gradients that JAX returns are clipped already; return them as they are before",
        ],
    ),
    "gradients that are almost right, and nothing is clipped": (
        Jax(optax.sgd(RATE), of_gradients=lambda gradients: jax.tree.map(lambda x: x * (1 + 1e-7), gradients)),
        {"optimizer": sgd},
        [
            "1 in gradients of tokens.weight (4 tensors part): error 1e-07, bound 1e-08",
            "looks like: rounding: the two are equal to 6 digits; a precision, an epsilon or an order of summation",
            "looks like: the loss agrees: compare the models, of which one may stop a gradient; or those of "
            "micro-batches are clipped or scaled before they are added",
        ],
    ),
    "steps of one length, which any rates explain": (
        Jax(optax.chain(optax.stateless(normalised), optax.sgd(RATE))),
        {"optimizer": sgd},
        [
            "1 in parameters of mix.weight (4 tensors part): error 0.329, bound 1e-08",
            "looks like: JAX's is 1.32856 times PyTorch's: a scale, a sum for a mean, or a sign",
        ],
    ),
    "a squared loss, which has a factor in each step": (
        Jax(optax.sgd(RATE), loss=lambda losses: losses.mean() ** 2 / 2),
        {"optimizer": sgd},
        [
            "1 in loss: error 0.0631, bound 1e-08",
            "looks like: no known mistake of a training explains it: compare the models, then the loss (its mask, "
            "divisor, shift and smoothing); steps that also return their logits tell which",
        ],
    ),
    "a loss with another divisor in each step": (
        Jax(optax.sgd(RATE), loss=lambda losses: losses.sum() / (losses > 2).sum()),
        {"optimizer": sgd},
        [
            "1 in loss: error 1.5, bound 1e-08",
            "explained by: the loss and all gradients are one multiple of PyTorch's in each step, 2.5 at "
            "step 1, and another in others: a sum for a mean, or another divisor",
        ],
    ),
    "betas, seen in one step": (
        Jax(optax.adam(RATE, 0.87, 0.993)),
        {"optimizer": adam, "steps": 1},
        [
            "1 in exp_avg of tokens.weight (4 tensors part): error 0.3, bound 1e-08",
            "looks like: JAX's is 1.3 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: betas is (0.87, 0.993) in JAX, and (0.9, 0.999) in PyTorch",
        ],
    ),
    "rates alike to six digits": (
        Jax(optax.adam(1.000003 * RATE)),
        {"optimizer": adam},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 3e-06, bound 1e-08",
            "looks like: JAX's is 1.000003 times PyTorch's: a scale, an epsilon, or a constant of few digits",
            "explained by: the learning rate is 0.01000003 in JAX and 0.01 in PyTorch at step 1",
        ],
    ),
    "NAdam": (
        Jax(optax.nadam(RATE)),
        {"optimizer": adam},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 0.474, bound 1e-08",
            "looks like: JAX's is 1.47368 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: JAX's steps are those of optax.nadam, and PyTorch's those of Adam",
        ],
    ),
    "AMSGrad": (
        Jax(optax.amsgrad(RATE)),
        {"optimizer": adam},
        [
            "2 in parameters of mix.weight (4 tensors part): error 0.225, bound 1e-08",
            "looks like: only part of it differs: 13 of 16 entries, all within [0:4, 0:4]",
            "explained by: JAX's steps are those of optax.amsgrad, and PyTorch's those of Adam",
            "note: PyTorch gives nothing to compare with JAX's nu_max",
        ],
    ),
    "eps_root": (
        Jax(optax.adam(RATE, eps_root=1e-8)),
        {"optimizer": adam},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 0.0131, bound 1e-08",
            "looks like: only part of it differs: 19 of 28 entries, all within [1:7, 0:4]",
            "explained by: eps_root is 1e-08 and eps is 1e-08 in JAX",
        ],
    ),
    "clipping after Adam": (
        Jax(AFTER),
        {"optimizer": adam, "clip": 0.5},
        [
            "1 in exp_avg of tokens.weight (4 tensors part): error 0.505, bound 1e-08",
            "looks like: JAX's is 1.50539 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: the norm of the update, before the learning rate, is clipped to 0.5 in JAX, and "
            "not that of the gradients; PyTorch clips their norm to 0.5",
        ],
    ),
    "clipping by tensor": (
        Jax(optax.chain(optax.stateless(clip_each), ADAM)),
        {"optimizer": adam, "clip": 0.1},
        [
            "1 in exp_avg of head.bias (4 tensors part): error 3.51, bound 1e-08",
            "looks like: JAX's is 4.50546 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: the norm of each gradient on its own is clipped to 0.1 in JAX; PyTorch clips "
            "their norm to 0.1",
        ],
    ),
    "decay after the learning rate": (
        Jax(DECAYED_AFTER),
        {},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 18.6, bound 1e-08",
            "explained by: the weight decay is not multiplied by the learning rate in JAX",
        ],
    ),
    "a rate of its own for one group": (
        Jax(RIGHT),
        {"optimizer": slower_words},
        [
            "1 in parameters of tokens.weight: error 9, bound 1e-08",
            "looks like: JAX's is 10 times PyTorch's: a scale, a sum for a mean, or a sign",
            "explained by: the learning rate is 0.01 in JAX for all parameters, and 0.01, 0.001 for PyTorch's groups "
            "at step 1",
        ],
    ),
    "words that PyTorch's optimiser is not given": (
        Jax(ADAM),
        {"optimizer": without_words},
        [
            "1 in parameters of tokens.weight: error inf, bound 1e-08",
            "looks like: PyTorch's is zero everywhere: not used there, or its gradient is stopped",
            "note: PyTorch's optimiser has no tokens.weight: their moments are not compared",
        ],
    ),
    "a mask of decay inverted": (
        Jax(decayed(lambda path, x: is_trained(path, x) and x.ndim < 2)),
        {"optimizer": by_groups},
        [
            "1 in parameters of tokens.weight (4 tensors part): error 0.188, bound 1e-08",
            "explained by: weight decay acts in JAX on those parameters that PyTorch spares, and on no "
            "others: the mask is inverted",
        ],
    ),
    "decay without the embedding": (
        Jax(decayed(lambda path, x: is_trained(path, x) and x.ndim > 1 and "tokens" not in path)),
        {"optimizer": by_groups},
        [
            "1 in parameters of tokens.weight: error 0.188, bound 1e-08",
            "explained by: weight decay leaves embeddings alone in JAX, and not in PyTorch",
        ],
    ),
    "a micro-batch dropped": (
        Jax(RIGHT, pieces=first_half),
        {"pieces": 2},
        ["1 in loss: error 0.0211, bound 1e-08", "explained by: the last 2 of 4 rows of the batch are left out in JAX"],
    ),
    "a micro-batch dropped, and counted": (
        Jax(RIGHT, pieces=first_half, loss=lambda losses: losses.mean() / 2),
        {"pieces": 2},
        [
            "1 in loss: error 0.489, bound 1e-08",
            "explained by: the last 2 of 4 rows of the batch are left out in JAX, and the divisor still counts them",
        ],
    ),
    "an average from zero": (
        Jax(RIGHT, average=averaging(0.0, 0.9)),
        {"average": 0.9},
        [
            "1 in ema of mix.weight (7 tensors part): error 0.902, bound 1e-08",
            "explained by: ema starts from zero in JAX, and starts from the parameters in PyTorch",
        ],
    ),
}


@pytest.mark.parametrize("name", PARTED)
def test_these_part_and_the_whole_verdict_is(name: str) -> None:
    how, given, lines = PARTED[name]
    found = verdict(how, **given).removeprefix("re-synchronised: the trainings part at step ")
    assert [line.removeprefix("  ") for line in found.splitlines()] == lines


# Trainings that show nothing, or too little


def test_a_training_that_is_nan_or_stands_still_is_an_error() -> None:
    nan = {name: torch.full_like(x, torch.nan) for name, x in WEIGHTS.items()}
    with pytest.raises(ValueError, match=r"PyTorch's loss is NaN or infinite at step 1 of 6.*fewer steps"):
        verdict(Jax(RIGHT), weights=nan)

    def still(model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), 0.0)

    with pytest.raises(ValueError, match=r"no parameter of PyTorch's moves in 6 steps.*learning rate 0"):
        verdict(Jax(optax.sgd(0.0)), optimizer=still)


def test_a_step_of_jax_that_writes_into_its_batch_does_not_reach_pytorch() -> None:
    how = Jax(ADAM, returns=("loss", "gradients"))

    def start(weights: Any) -> Any:
        params, state, step = jax_start(weights, how)

        def writing(params: Any, state: Any, batch: Any) -> Any:
            batch["labels"][:] = 0
            return step(params, state, batch)

        return params, state, writing

    batches = jax.tree.map(np.copy, BATCHES)
    with pytest.raises(ValueError, match="JAX's step changes its batch in place; let it work on a copy"):
        compare_training(partial(torch_start, optimizer=adam), start, WEIGHTS, batches, STEPS)
    assert all(batch["labels"].any() for batch in batches)


SLOW = 1e-6


def two_rates(model: nn.Module) -> Any:
    """AdamW with a small rate for the vectors, and decay for all."""
    matrices, vectors = ([p for p in model.parameters() if p.requires_grad and (p.dim() > 1) == m] for m in (1, 0))
    return torch.optim.AdamW([{"params": matrices}, {"params": vectors, "lr": SLOW}], RATE, weight_decay=1e-2)


def by_rate(fast: Any, slow: Any) -> Any:
    def label(params: Any) -> Any:
        def of(path: Any, x: Any) -> str:
            return "still" if not is_trained(jax.tree_util.keystr(path), x) else "fast" if x.ndim > 1 else "slow"

        return jax.tree_util.tree_map_with_path(of, params)

    return optax.multi_transform({"fast": fast, "slow": slow, "still": optax.set_to_zero()}, label)


def frozen(model: nn.Module) -> Any:
    matrices, vectors = ([p for p in model.parameters() if p.requires_grad and (p.dim() > 1) == m] for m in (1, 0))
    return torch.optim.SGD([{"params": matrices}, {"params": vectors, "lr": 0.0}], 1.0)


def summed(losses: Any) -> Any:
    return 20 * losses.mean()


@pytest.mark.parametrize(
    ("wrong", "right", "optimizer"),
    [
        (optax.adam(SLOW), optax.adamw(SLOW, weight_decay=1e-2), two_rates),
        (optax.sgd(1e-9), optax.set_to_zero(), frozen),
    ],
    ids=["a decay that is missing in a slow group", "a frozen group that moves"],
)
def test_each_group_of_the_optimiser_is_measured_beside_its_own(wrong: Any, right: Any, optimizer: Any) -> None:
    fast = optax.sgd(1.0) if optimizer is frozen else optax.adamw(RATE, weight_decay=1e-2)
    assert "the trainings agree" in verdict(Jax(by_rate(fast, right)), optimizer=optimizer)
    assert "part at step 1 in parameters of" in verdict(Jax(by_rate(fast, wrong)), optimizer=optimizer)


def test_an_epsilon_shows_beside_a_loss_that_is_summed() -> None:
    def start(weights: Any, **given: Any) -> Any:
        model, optimizer, _ = torch_start(weights, **given)

        def step(batch: Any) -> Any:
            optimizer.zero_grad()
            loss = 20 * nn.functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())
            loss.backward()
            optimizer.step()
            return {"loss": loss}

        return model, optimizer, step

    sides = [partial(jax_start, how=Jax(optax.adam(RATE, eps=eps), loss=summed)) for eps in (1e-8, 1e-7)]
    right, wrong = (compare_training(partial(start, optimizer=adam), side, WEIGHTS, BATCHES, STEPS) for side in sides)
    assert right, right
    assert not wrong, "a report is false where the two part"
    assert "explained by: eps is 1e-07 in JAX, and 1e-08 in PyTorch" in str(wrong)


def test_a_clipping_that_is_never_active_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity_tests.your_port.training.comparison.find_causes", lambda *_: ())
    never, active = (verdict(Jax(ADAM), optimizer=adam, clip=clip) for clip in (100.0, 0.1))
    assert "note: PyTorch's clipping changes no gradient in these steps" in never
    assert "clipping changes no gradient" not in active + verdict(Jax(ADAM), optimizer=adam)


def test_parameters_may_be_one_array_and_the_loss_is_none_of_them() -> None:
    def in_torch(weights: Any) -> Any:
        model = nn.Linear(3, 2, bias=False)
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), RATE)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return {"loss": loss}

        return model, optimizer, step

    def in_jax(weights: Any) -> Any:
        def step(w: Any, state: Any, x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
            return w - RATE * gradient, state, {"loss": loss, "gradients": gradient}

        return jnp.asarray(weights["weight"]).T, None, step

    weights, batches = {"weight": RNG.normal(size=(2, 3))}, [RNG.normal(size=(4, 3)) for _ in range(2)]
    report = compare_training(in_torch, in_jax, weights, batches, 2)
    assert report, str(report)
    assert set(report.errors) == {"loss", "gradients", "parameters"}


def test_what_both_steps_return_may_hold_no_arrays_and_the_optimiser_a_parameter_of_its_own() -> None:
    weights, batches = {"weight": RNG.normal(size=(2, 3))}, [RNG.normal(size=(4, 3)) for _ in range(2)]
    temperature = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def in_torch(weights: Any) -> Any:
        model = nn.Linear(3, 2, bias=False)
        model.load_state_dict(weights)
        optimizer = torch.optim.AdamW([*model.parameters(), temperature], RATE, weight_decay=DECAY)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (model(x) * temperature.detach()).square().mean()
            loss.backward()
            optimizer.step()
            return {"loss": loss, "phase": "train", "auxiliary": None}

        return model, optimizer, step

    def in_jax(weights: Any) -> Any:
        adam = optax.adamw(RATE, weight_decay=DECAY / 2)

        def step(w: Any, state: Any, x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: ((x @ w["weight"].T) ** 2).mean())(w)
            updates, state = adam.update(gradient, state, w)
            found = {"loss": loss, "gradients": gradient, "phase": "train", "auxiliary": None}
            return optax.apply_updates(w, updates), state, found

        w = {"weight": jnp.asarray(weights["weight"])}
        return w, adam.init(w), step

    report = compare_training(in_torch, in_jax, weights, batches, 2)
    assert "explained by: weight_decay is 0.05 in JAX, and 0.1 in PyTorch" in str(report), report


WIDE, NARROW = {"first.weight": RNG.normal(size=(3, 3)), "after.weight": RNG.normal(size=(3, 3))}, 1e-3
ROWS_OF_X = [RNG.normal(size=(4, 3)) for _ in range(4)]


class Squares(nn.Module):
    """Its layers have names that are sorted otherwise than they are defined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.after = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.after(torch.tanh(self.first(x)))


def of_squares(
    w: Any, make: Callable[[Any], Any] | None = None, model: nn.Module | None = None, how: str = "backward"
) -> Any:
    model = Squares() if model is None else model
    model.load_state_dict(w)
    optimizers = [torch.optim.Adam(model.parameters(), RATE)] if make is None else make(model)

    def step(x: Any) -> Any:
        model.zero_grad()
        if how == "closure":
            return optimizers[0].step(lambda: [loss := model(x).square().mean(), loss.backward()][0]) and None
        loss = model(x).square().mean()
        if how == "backward":
            loss.backward()
        else:
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
                p.grad = g
        for optimizer in optimizers:
            optimizer.step()
        return {"loss": loss}

    return model, optimizers[0], step


def of_squares_in_jax(w: Any, tx: Any = None, read: Callable[[Any], Any] = lambda found: found) -> Any:
    tx, params = optax.adam(RATE) if tx is None else tx, tuple(jnp.asarray(x) for x in w.values())

    def step(p: Any, state: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: ((jnp.tanh(x @ p[0].T) @ p[1].T) ** 2).mean())(p)
        updates, state = tx.update(gradient, state, p)
        return optax.apply_updates(p, updates), state, read({"loss": loss, "gradients": gradient})

    return params, tx.init(params), step


def of_squares_compared(in_torch: Any = of_squares, in_jax: Any = of_squares_in_jax, **options: Any) -> Any:
    return compare_training(in_torch, in_jax, WIDE, ROWS_OF_X, 4, **options)


def test_weights_come_in_pytorchs_order_and_gradients_may_be_written_by_hand_or_in_a_closure() -> None:
    assert of_squares_compared()
    assert of_squares_compared(partial(of_squares, how="by hand"))
    assert of_squares_compared(partial(of_squares, how="closure"))


def test_what_another_optimiser_moves_is_compared_but_for_its_moments() -> None:
    def two(model: Any) -> Any:
        rates = ((model.first, RATE), (model.after, NARROW))
        return [torch.optim.Adam(part.parameters(), rate) for part, rate in rates]

    def rates(second: float) -> Any:
        return optax.multi_transform({"a": optax.adam(RATE), "b": optax.adam(second)}, ("a", "b"))

    right, wrong = (
        of_squares_compared(partial(of_squares, make=two), partial(of_squares_in_jax, tx=rates(rate)))
        for rate in (NARROW, 2 * NARROW)
    )
    assert right, right
    assert "PyTorch's optimiser has no after.weight: their moments are not compared" in str(right)
    assert not wrong


def test_what_a_later_loss_adds_to_gradients_that_another_optimiser_has_used_is_not_compared() -> None:
    def in_torch(w: Any) -> Any:
        """As a GAN, whose generator's loss leaves gradients in the discriminator."""
        model = Squares()
        model.load_state_dict(w)
        of_first, of_after = (torch.optim.Adam(part.parameters(), RATE) for part in (model.first, model.after))

        def step(x: Any) -> Any:
            fake = torch.tanh(model.first(x))
            of_after.zero_grad()
            model.after(fake.detach()).square().mean().backward()
            of_after.step()
            of_first.zero_grad()
            model.after(fake).mean().backward()
            of_first.step()
            return {}

        return model, of_first, step

    def in_jax(*settings: float) -> Any:
        txs = optax.adam(*settings), optax.adam(RATE)

        def step(p: Any, states: Any, x: Any) -> Any:
            of_after = jax.grad(lambda after: ((jnp.tanh(x @ p[0].T) @ after.T) ** 2).mean())(p[1])
            updates, state = txs[1].update(of_after, states[1])
            after = p[1] + updates
            of_first = jax.grad(lambda first: (jnp.tanh(x @ first.T) @ after.T).mean())(p[0])
            updates, other = txs[0].update(of_first, states[0])
            return (p[0] + updates, after), (other, state), {"gradients": (of_first, of_after)}

        def start(w: Any) -> Any:
            p = tuple(jnp.asarray(x) for x in w.values())
            return p, tuple(tx.init(x) for tx, x in zip(txs, p, strict=True)), step

        return start

    right, wrong, other = (of_squares_compared(in_torch, in_jax(*x)) for x in ((RATE,), (2 * RATE,), (RATE, 0.8)))
    assert right, right
    assert "PyTorch's optimiser has no after.weight: their moments are not compared" in str(right)
    assert wrong.divergence.quantity == "parameters", wrong
    assert other.divergence.quantity == "exp_avg", other


def test_gradients_that_pytorchs_step_does_not_clear_are_named() -> None:
    class Kept(Squares):
        def zero_grad(self, set_to_none: bool = True) -> None:
            pass

    class HalfKept(Squares):
        """As where `optimizer.zero_grad()` is called, and the optimiser holds one layer."""

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.first.zero_grad()

    def first(model: Any) -> Any:
        return [torch.optim.Adam(model.first.parameters(), RATE)]

    all_kept = of_squares_compared(lambda w: of_squares(w, model=Kept()))
    one_kept = of_squares_compared(
        lambda w: of_squares(w, first, HalfKept()),
        partial(
            of_squares_in_jax, tx=optax.multi_transform({"a": optax.adam(RATE), "b": optax.set_to_zero()}, ("a", "b"))
        ),
    )
    after = (
        "to those of the step before: call model.zero_grad() in its step, since optimizer.zero_grad() clears only what "
        "the optimizer holds"
    )
    for report, names in ((all_kept, "first.weight, after.weight"), (one_kept, "after.weight")):
        assert report.divergence.step == 2
        assert report.divergence.causes == (f"PyTorch adds the gradients of {names} {after}",), report


@pytest.mark.parametrize("is_in_loss", [True, False])
def test_a_weight_decay_in_the_loss_or_its_gradients_is_named(is_in_loss: bool) -> None:
    def in_jax(w: Any) -> Any:
        tx, params = optax.adam(RATE), tuple(jnp.asarray(x) for x in w.values())

        def step(p: Any, state: Any, x: Any) -> Any:
            def loss_of(p: Any) -> Any:
                decay = 0.05 * (p[1] ** 2).sum()
                return ((jnp.tanh(x @ p[0].T) @ p[1].T) ** 2).mean() + decay, decay

            (loss, decay), gradient = jax.value_and_grad(loss_of, has_aux=True)(p)
            updates, state = tx.update(gradient, state, p)
            found = {"loss": loss if is_in_loss else loss - decay, "gradients": gradient}
            return optax.apply_updates(p, updates), state, found

        return params, tx.init(params), step

    report = of_squares_compared(in_jax=in_jax)
    cause = (
        "JAX's loss holds a weight decay, 0.05 times the squares of after.weight: put it into both losses, or into "
        "both optimizers"
        if is_in_loss
        else "JAX's gradients hold a weight decay, 0.1 times after.weight: return them without it"
    )
    assert report.divergence.causes == (cause,), report


def test_a_loss_that_differs_by_a_constant_is_no_weight_decay() -> None:
    shifted = partial(of_squares_in_jax, read=lambda found: found | {"loss": found["loss"] + 1.0})
    report = of_squares_compared(in_jax=shifted)
    assert (report.divergence.quantity, report.divergence.causes) == ("loss", ()), report
    assert not any("failed" in note for note in report.notes), report


class Turned(nn.Module):
    """Turns pairs of numbers by a complex buffer, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.5, 1.0])), persistent=False)

    def forward(self, x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex((x * self.scale).view(-1, 2, 2)) * self.turn)[..., 0]


def test_a_complex_buffer_keeps_its_imaginary_part() -> None:
    turn, tx = np.exp([0.5j, 1j]), optax.adam(RATE)

    def in_jax(w: Any) -> Any:
        def loss(p: Any, x: Any) -> Any:
            z = (x * p["scale"]).reshape(-1, 2, 2)
            return (((z[..., 0] + 1j * z[..., 1]) * turn).real ** 2).mean()

        def step(p: Any, state: Any, x: Any) -> Any:
            found, gradient = jax.value_and_grad(loss)(p, x)
            updates, state = tx.update(gradient, state, p)
            return optax.apply_updates(p, updates), state, {"loss": found}

        params = {"scale": jnp.asarray(w["scale"])}
        return params, tx.init(params), step

    batches = [RNG.normal(size=(3, 4)) for _ in range(2)]
    assert compare_training(lambda w: of_squares(w, model=Turned()), in_jax, {"scale": RNG.normal(size=4)}, batches, 2)


def test_rows_are_those_of_most_arrays_of_a_batch() -> None:
    batch = {"bins": np.ones(100), "x": np.ones((8, 4)), "y": np.ones(8)}
    left_out = {each.words: each.read(batch) for each in _readings(batch) if "left out" in each.words}
    read = left_out["the last 4 of 8 rows of the batch are left out in JAX"]
    assert [len(x) for x in read.values()] == [100, 4, 4]


def test_a_batch_may_be_a_mapping_that_jax_does_not_know() -> None:
    def reading(start: Any) -> Any:
        def started(w: Any) -> Any:
            *found, step = start(w)
            return *found, lambda *given: step(*given[:-1], given[-1]["x"])

        return started

    batches = [UserDict(x=torch.tensor(x)) for x in ROWS_OF_X]
    assert compare_training(reading(of_squares), reading(of_squares_in_jax), WIDE, batches, 4)


def test_an_average_that_starts_after_the_first_step_is_understood() -> None:
    def in_torch(w: Any) -> Any:
        model, optimizer, step = of_squares(w)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

        def averaged(x: Any) -> Any:
            found = step(x)
            average.update_parameters(model)
            return found | {"ema": average.module.state_dict()}

        return model, optimizer, averaged

    def in_jax(w: Any) -> Any:
        params, state, step = of_squares_in_jax(w)

        def averaged(p: Any, state: Any, x: Any) -> Any:
            p, inner, found = step(p, state[0], x)
            ema = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state[1], p)
            return p, (inner, ema), found | {"ema": ema}

        return params, (state, params), averaged

    report = of_squares_compared(in_torch, in_jax)
    cause = "ema starts from the parameters in JAX, and starts from the parameters after the first step in PyTorch"
    assert report.divergence.causes == (cause,), report


def test_the_mean_of_a_centred_rmsprop_is_compared() -> None:
    def centred(model: Any) -> Any:
        return [torch.optim.RMSprop(model.parameters(), RATE, centered=True)]

    tx = optax.rmsprop(RATE, 0.99, 1e-8, centered=True, eps_in_sqrt=False)
    report = of_squares_compared(partial(of_squares, make=centred), partial(of_squares_in_jax, tx=tx))
    assert report, report
    assert "exp_avg" in report.errors
    assert not report.notes


def test_a_module_may_be_compared_again() -> None:
    model = Squares().double()
    first = of_squares_compared(
        partial(of_squares, model=model), partial(of_squares_in_jax, tx=optax.adam(RATE, eps=1e-6))
    )
    assert "eps is 1e-06 in JAX" in str(first)
    again = of_squares_compared(partial(of_squares, model=model))
    assert again, again


def test_a_wrong_sign_shows_in_float32_beside_large_weights() -> None:
    report = of_squares_compared(
        partial(of_squares, make=lambda model: [torch.optim.Adam(model.parameters(), 1e-6)]),
        partial(of_squares_in_jax, tx=optax.adam(-1e-6)),
        dtype="float32",
    )
    assert not report


def test_weights_that_stand_still_show_in_float32_beside_small_steps() -> None:
    still = partial(of_squares_in_jax, tx=optax.set_to_zero())
    moving = partial(of_squares, make=lambda model: [torch.optim.SGD(model.parameters(), 1e-4)])
    report = of_squares_compared(moving, still, dtype="float32", resync=False)
    assert "part at step 1 in parameters of" in str(report)


@pytest.mark.parametrize("resync", [True, False])
def test_a_layer_that_pytorch_freezes_shows_in_float32_if_it_moves(resync: bool) -> None:
    def frozen(model: Any) -> Any:
        model.first.requires_grad_(False)
        return [torch.optim.SGD(model.parameters(), NARROW)]

    right = optax.multi_transform({"a": optax.set_to_zero(), "b": optax.sgd(NARROW)}, ("a", "b"))
    for tx, agrees in ((right, True), (optax.sgd(NARROW), False)):
        in_jax = partial(of_squares_in_jax, tx=tx)
        report = of_squares_compared(partial(of_squares, make=frozen), in_jax, dtype="float32", resync=resync)
        assert report.agrees == agrees, report
    assert "part at step 1 in parameters of first.weight: error inf" in str(report)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_a_scale_of_mixed_precision_is_no_clipping(clip: float) -> None:
    def in_torch(weights: Any, enabled: bool) -> Any:
        model, optimizer, _ = of_squares(weights)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            return {"loss": loss}

        return model, optimizer, step

    tx = optax.chain(optax.clip_by_global_norm(clip) if clip else optax.identity(), optax.adam(RATE))
    report, unscaled = (
        of_squares_compared(partial(in_torch, enabled=enabled), partial(of_squares_in_jax, tx=tx), bound=1e-5)
        for enabled in (True, False)
    )
    cause = (
        "the gradients of PyTorch's backward() are 65536 times JAX's, which PyTorch undoes later, as with a GradScaler"
    )
    assert f"explained by: {cause}: leave it out here, by GradScaler(enabled=False)" in str(report)
    assert unscaled, unscaled


def test_an_optimiser_whose_settings_are_others_than_those_of_adam_is_searched_all_the_same() -> None:
    report = of_squares_compared(
        partial(of_squares, make=lambda model: [torch.optim.Adafactor(model.parameters(), RATE)]),
        partial(of_squares_in_jax, tx=optax.sgd(RATE)),
    )
    assert "part at step 1 in parameters of" in str(report)
    assert "the search for a cause failed" not in str(report)


def normed() -> nn.Module:
    """Make biases that reach no result, since a batch norm takes the mean away: their gradients are rounding."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def resumed(model: nn.Module, saved: Any = None) -> list[Any]:
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    if saved is not None:
        optimizer.load_state_dict(deepcopy(saved))
    return [optimizer]


def normed_in_jax(w: Any, eps: float = 1e-8, saved: Any = None) -> Any:
    params = {name: jnp.asarray(x) for name, x in w.items() if name.endswith(("weight", "bias"))}
    tx = optax.adam(RATE, eps=eps)
    state = tx.init(params)
    if saved is not None:
        kept, moments = [saved["state"][number] for number in range(len(params))], ("exp_avg", "exp_avg_sq")
        mu, nu = ({n: jnp.asarray(k[m].double().numpy()) for n, k in zip(params, kept, strict=True)} for m in moments)
        state = (state[0]._replace(count=jnp.asarray(len(ROWS_OF_X), jnp.int32), mu=mu, nu=nu), *state[1:])

    def loss_of(p: Any, x: Any) -> Any:
        x = jax.nn.standardize(x @ p["0.weight"].T + p["0.bias"], 0, epsilon=1e-5) * p["1.weight"] + p["1.bias"]
        return ((jnp.tanh(x) @ p["3.weight"].T + p["3.bias"]) ** 2).mean()

    @jax.jit
    def step(p: Any, state: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(p, x)
        updates, state = tx.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, {"loss": loss, "gradients": gradients}

    return params, state, step


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_gradients_that_are_rounding_are_not_a_difference_and_hide_none(dtype: Any, is_resumed: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights, saved = normed().double().state_dict(), None
    if is_resumed:
        model, optimizer, step = of_squares(weights, make=resumed, model=normed())
        for x in ROWS_OF_X:
            step(torch.tensor(x, dtype=torch.float32))
        weights, saved = model.state_dict(), optimizer.state_dict()

    def compared(eps: float, resync: bool = True) -> Any:
        def in_torch(w: Any) -> Any:
            return of_squares(w, partial(resumed, saved=saved), normed())

        in_jax = partial(normed_in_jax, saved=saved, eps=eps)
        return compare_training(in_torch, in_jax, weights, ROWS_OF_X, 4, resync, dtype=dtype)

    for resync in (True, False):
        right = compared(1e-8, resync)
        assert right, right
    assert "eps is 0.0001 in JAX, and 1e-08 in PyTorch" in str(compared(1e-4))


@pytest.mark.parametrize(
    ("in_torch", "in_jax", "words"),
    [
        (lambda w: (*of_squares(w)[:2], lambda x: 1.0), of_squares_in_jax, "PyTorch's step must return a mapping"),
        (of_squares, partial(of_squares_in_jax, read=lambda found: found["loss"]), "JAX's step must return a mapping"),
        (
            lambda w: (of_squares(w)[0], [1], None),
            of_squares_in_jax,
            "must return one optimizer of torch.optim; got list",
        ),
        (
            lambda w: (nn.Sequential(of_squares(w)[0]), *of_squares(w)[1:]),
            of_squares_in_jax,
            "the model's 0.first.weight is no name of weights, such as first.weight",
        ),
        (
            of_squares,
            partial(of_squares_in_jax, read=lambda found: {**found, "gradients": {"params": found["gradients"]}}),
            "JAX's gradients have neither the form of params nor PyTorch's names",
        ),
    ],
)
def test_what_a_side_returns_is_checked(in_torch: Any, in_jax: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        of_squares_compared(in_torch, in_jax)


@pytest.mark.parametrize("returns", [("loss",), ("loss", "logits", "tokens")])
def test_what_both_steps_return_tells_the_loss_from_the_model(returns: tuple[str, ...]) -> None:
    def in_torch(weights: Any) -> Any:
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), RATE)

        def step(batch: Any) -> Any:
            optimizer.zero_grad()
            logits = model(batch["x"])
            loss = nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            values = {"loss": loss, "logits": logits, "tokens": torch.tensor(6.0)}
            return {name: values[name] for name in returns}

        return model, optimizer, step

    def in_jax(weights: Any) -> Any:
        optimizer = optax.sgd(RATE)
        params = {name: jnp.asarray(weights[name]) for name in ("0.weight", "0.bias", "1.weight", "1.bias")}

        def loss_of(params: Any, batch: Any) -> Any:
            x = jax.nn.standardize(batch["x"] @ params["0.weight"].T + params["0.bias"], 0, epsilon=1e-5)
            logits = x * params["1.weight"] + params["1.bias"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean(), logits

        def step(params: Any, state: Any, batch: Any) -> Any:
            (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
            updates, state = optimizer.update(gradients, state)
            values = {"loss": loss, "logits": logits, "tokens": jnp.asarray(6.0)}
            return optax.apply_updates(params, updates), state, {name: values[name] for name in returns}

        return params, optimizer.init(params), step

    batches = [{"x": RNG.normal(size=(6, 3)), "labels": RNG.integers(0, 2, 6)}]
    weights = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()
    lines = str(compare_training(in_torch, in_jax, weights, batches, 1)).splitlines()
    after = "what comes after them differs, such as the mask, divisor, shift or smoothing of the loss"
    notes = [line for line in lines if line.startswith("  note: PyTorch's 1.running_mean, 1.running_var … are not")]
    assert (f"  looks like: logits agree: {after}" in lines, bool(notes)) == (
        "logits" in returns,
        "logits" not in returns,
    )

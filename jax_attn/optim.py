"""Optimisers with PyTorch's meaning and PyTorch's defaults, of Optax's own parts wherever those mean the same.

What differs when one name is written in both frameworks:

                        torch.optim                                 optax
    Adam, AdamW         1 − βᵗ in double                            in the parameters' dtype: 2e-5 off in float32
    AdamW               weight_decay 1e-2                           1e-4
    SGD                 dampening, from the second step on          none
    RMSprop             lr 1e-2, alpha 0.99, g / (√v + ε)           no lr, decay 0.9, g / √(v + ε)
    RMSprop, momentum   p ← p − lr · buffer                         the lr is inside of the buffer
    Adagrad             lr 1e-2, sum from 0, ε 1e-10, g / (√s + ε)  no lr, sum from 0.1, ε 1e-7, g / √(s + ε)
                        lr / (1 + (t − 1) · lr_decay)               no decay
    norm clipping       max_norm / (norm + 1e-6)                    max_norm / norm, as in the book
    L2 weight_decay     a setting of every optimiser                `add_decayed_weights` in front of it

The state, by PyTorch's names and by `optax.tree.get(state, name)`:

    Adam, AdamW         exp_avg, exp_avg_sq                         mu, nu
    SGD                 momentum_buffer                             trace
    RMSprop             square_avg, grad_avg, momentum_buffer       nu, mu, trace
    Adagrad             sum                                         sum_of_squares

A learning rate is a number, or a schedule: a function of the steps taken so far, 0 at the first. PyTorch's amsgrad and
maximize are not offered. Below, g is the gradient, p a parameter, λ weight_decay and t the step, 1 at the first; λ is
added to the gradient, g ← g + λ p (L2), in all but AdamW.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation, Params, ScalarOrSchedule, Updates


def clip_by_global_norm(max_norm: float, eps: float = 0.0) -> GradientTransformation:
    """g ← g · min(1, max_norm / (norm + ε)), norm the 2-norm of all gradients together.

    ε = 0 is Optax's and the book's clipping, 1e-6 is `torch.nn.utils.clip_grad_norm_`, which leaves a norm that is
    smaller than asked for by the share 1e-6 / norm. Source: Pascanu et al., 2013.
    """
    if eps == 0:
        return optax.clip_by_global_norm(max_norm)

    def clip(updates: Updates, params: Params | None) -> Updates:
        factor = jnp.minimum(1, max_norm / (optax.tree.norm(updates) + eps))
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates)

    return optax.stateless(clip)


def sgd(
    learning_rate: ScalarOrSchedule = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> GradientTransformation:
    """`torch.optim.SGD`:

        b₁ = g₁,   b_t = momentum · b_{t−1} + (1 − dampening) g_t
        p ← p − lr · b_t,   with nesterov p ← p − lr · (g_t + momentum · b_t)

    Dampening spares the first step, as it does in PyTorch. Without momentum, p ← p − lr · g.

    Raises:
        ValueError: a negative setting, or Nesterov's momentum without a momentum or with dampening.
    """
    _require_not_negative(momentum=momentum, weight_decay=weight_decay)
    if nesterov and (momentum == 0 or dampening != 0):
        raise ValueError(f"nesterov needs momentum > 0 and dampening 0; got {momentum} and {dampening}")
    parts = []
    if momentum and dampening:
        parts.append(optax.scale_by_schedule(lambda count: jnp.where(count == 0, 1, 1 - dampening)))
    if momentum:
        parts.append(optax.trace(momentum, nesterov))
    return optax.chain(*_l2(weight_decay), *parts, optax.scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: ScalarOrSchedule = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> GradientTransformation:
    """`torch.optim.Adam` (Kingma & Ba, 2015), with the decay as L2; see `scale_by_adam`.

    Raises:
        ValueError: a β outside [0, 1), or a negative setting.
    """
    _require_not_negative(weight_decay=weight_decay)
    return optax.chain(*_l2(weight_decay), scale_by_adam(betas, eps), optax.scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: ScalarOrSchedule = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> GradientTransformation:
    """`torch.optim.AdamW` (Loshchilov & Hutter, 2019): Adam, and p ← p − lr · λ p beside it, which no moment sees.

    Raises:
        ValueError: a β outside [0, 1), or a negative setting.
    """
    _require_not_negative(weight_decay=weight_decay)
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(scale_by_adam(betas, eps), decay, optax.scale_by_learning_rate(learning_rate))


def rmsprop(
    learning_rate: ScalarOrSchedule = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
) -> GradientTransformation:
    """`torch.optim.RMSprop` (Tieleman & Hinton, 2012; centered: Graves, 2013):

        v ← α v + (1 − α) g²,   m ← α m + (1 − α) g,   d = g / (√v + ε),   or centered g / (√(v − m²) + ε)
        b ← momentum · b + d,   p ← p − lr · b;   without momentum p ← p − lr · d

    Raises:
        ValueError: a negative setting.
    """
    _require_not_negative(alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
    scale = optax.scale_by_stddev if centered else optax.scale_by_rms
    trace = (optax.trace(momentum),) if momentum else ()
    return optax.chain(
        *_l2(weight_decay),
        scale(alpha, eps, eps_in_sqrt=False),
        *trace,
        optax.scale_by_learning_rate(learning_rate),
    )


def adagrad(
    learning_rate: ScalarOrSchedule = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
) -> GradientTransformation:
    """`torch.optim.Adagrad` (Duchi et al., 2011): `scale_by_sum_of_squares`, and then

        p ← p − lr / (1 + (t − 1) · lr_decay) · update

    Raises:
        ValueError: a negative setting.
    """
    _require_not_negative(lr_decay=lr_decay, weight_decay=weight_decay)

    def decayed(count: jax.Array) -> jax.Array:
        rate = learning_rate(count) if callable(learning_rate) else learning_rate
        return rate / (1 + count * lr_decay)

    return optax.chain(
        *_l2(weight_decay),
        scale_by_sum_of_squares(initial_accumulator_value, eps),
        optax.scale_by_learning_rate(decayed if lr_decay else learning_rate),
    )


OPTIMIZERS: dict[str, Callable[..., GradientTransformation]] = {
    "adam": adam,
    "adamw": adamw,
    "sgd": sgd,
    "momentum": sgd,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
}
"""By the names of `TrainingConfig.optimizer`."""


# What Optax has otherwise


def scale_by_adam(betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> GradientTransformation:
    """Adam's direction, in Optax's state:

        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   update = m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    `optax.scale_by_adam` has the same equation. It computes 1 − β₂ᵗ in float32, where that difference has lost five
    digits: each of the first hundreds of steps is 1e-5 too long, a hundred times the roundoff, and a float32 training
    drifts ten times as far as PyTorch's. Here it is −expm1(t log β₂), good to 3 roundoffs.
    """
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be in [0, 1); got {betas}")
    _require_not_negative(eps=eps)
    optax_adam = optax.scale_by_adam(*betas, eps)

    def update(
        gradients: Updates, state: optax.ScaleByAdamState, params: Params | None = None
    ) -> tuple[Updates, optax.ScaleByAdamState]:
        _, state = optax_adam.update(gradients, state, params)
        first, second = (_one_minus_power(beta, state.count) for beta in betas)

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            return m / first.astype(m.dtype) / (jnp.sqrt(v / second.astype(v.dtype)) + eps)

        return jax.tree.map(direction, state.mu, state.nu), state

    return GradientTransformation(optax_adam.init, update)


def _one_minus_power(beta: float, count: jax.Array) -> jax.Array:
    """1 − βᵗ without cancellation."""
    return -jnp.expm1(count * math.log(beta)) if beta > 0 else jnp.ones(())


def scale_by_sum_of_squares(initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> GradientTransformation:
    """Adagrad's direction, with the ε outside of the root: `optax.scale_by_rss` has it inside.

    s ← s + g²,   update = g / (√s + ε)
    """
    _require_not_negative(initial_accumulator_value=initial_accumulator_value, eps=eps)

    def update(
        gradients: Updates, state: optax.ScaleByRssState, params: Params | None = None
    ) -> tuple[Updates, optax.ScaleByRssState]:
        sums = jax.tree.map(lambda s, g: s + jnp.square(g), state.sum_of_squares, gradients)
        updates = jax.tree.map(lambda s, g: g / (jnp.sqrt(s) + eps), sums, gradients)
        return updates, optax.ScaleByRssState(sums)

    return GradientTransformation(optax.scale_by_rss(initial_accumulator_value).init, update)


def _l2(weight_decay: float) -> tuple[GradientTransformation, ...]:
    """g ← g + λ p, where there is a λ."""
    return (optax.add_decayed_weights(weight_decay),) if weight_decay else ()


def _require_not_negative(**settings: float) -> None:
    wrong = [f"{name} must be at least 0; got {value}" for name, value in settings.items() if not value >= 0]
    if wrong:
        raise ValueError("; ".join(wrong))

"""Optimisers with PyTorch's meaning, names and defaults, built from Optax's parts where those mean the same.

    optimizer = AdamW(weight_decay=0.1).build(learning_rate=1e-3)      # an optax.GradientTransformation
    optimizer = OPTIMIZERS["momentum"].build(optax.cosine_decay_schedule(0.1, 1000))

A learning rate is a number or a schedule: a function of the number of steps taken so far, 0 at the first step.
PyTorch's amsgrad and maximize are not offered. The same name differs between the frameworks in these points:

                        torch.optim                                 optax
    Adam, AdamW         1 − βᵗ in double                            in the parameters' dtype: 2e-5 off in float32
    AdamW               weight_decay 1e-2                           1e-4
    SGD                 dampening, from the second step on          none
    RMSprop             lr 1e-2, alpha 0.99, g / (√v + ε)           no lr, decay 0.9, g / √(v + ε)
    RMSprop, momentum   p ← p − lr · buffer                         the buffer holds the steps, lr included
    Adagrad             lr 1e-2, sum from 0, ε 1e-10, g / (√s + ε)  no lr, sum from 0.1, ε 1e-7, g / √(s + ε)
                        lr / (1 + (t − 1) · lr_decay)               no decay
    norm clipping       max_norm / (norm + 1e-6)                    max_norm / norm, as in the book
    L2 weight_decay     a setting of every optimiser                `add_decayed_weights` in front of it

The state has these names in PyTorch and in `optax.tree.get(state, name)`:

    Adam, AdamW         exp_avg, exp_avg_sq                         mu, nu
    SGD                 momentum_buffer                             trace
    RMSprop             square_avg, grad_avg, momentum_buffer       nu, mu, trace
    Adagrad             sum                                         sum_of_squares

In the equations below, g is the gradient, p a parameter, λ weight_decay and t the step, 1 at the first. All optimisers
but AdamW add λ to the gradient: g ← g + λ p (L2). A setting that PyTorch refuses raises ValueError.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation, Params, ScalarOrSchedule, Updates

from jax_attn.functional.checks import wide_dtype


@dataclass(frozen=True)
class Optimizer:
    """The settings of an optimiser, by PyTorch's names."""

    def build(self, learning_rate: ScalarOrSchedule) -> GradientTransformation:
        """Make the optimiser."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimizer):
    r"""`torch.optim.SGD`.

    .. math::
        b_1 = g_1, \quad b_t &= \mathrm{momentum} \; b_{t-1} + (1 - \mathrm{dampening}) \; g_t \\
        p &← p - \mathrm{lr} \; b_t \\
        \text{with nesterov } p &← p - \mathrm{lr} \; (g_t + \mathrm{momentum} \; b_t)

    Dampening leaves the first step alone, as in PyTorch. Without momentum, p ← p − lr · g.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _require_not_negative(momentum=self.momentum, weight_decay=self.weight_decay)
        if not math.isfinite(self.dampening):
            raise ValueError(f"dampening must be finite; got {self.dampening}")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(f"nesterov needs momentum > 0 and dampening 0; got {self.momentum} and {self.dampening}")

    def build(self, learning_rate: ScalarOrSchedule = 1e-3) -> GradientTransformation:
        parts = []
        if self.momentum and self.dampening:
            parts.append(optax.scale_by_schedule(lambda count: jnp.where(count == 0, 1, 1 - self.dampening)))
        if self.momentum:
            parts.append(optax.trace(self.momentum, self.nesterov))
        return optax.chain(*_l2(self.weight_decay), *parts, optax.scale_by_learning_rate(learning_rate))


@dataclass(frozen=True)
class Adam(Optimizer):
    """`torch.optim.Adam` (Kingma & Ba, 2015): `scale_by_adam`, with the weight decay as L2."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_betas(self.betas)
        _require_not_negative(eps=self.eps, weight_decay=self.weight_decay)

    def build(self, learning_rate: ScalarOrSchedule = 1e-3) -> GradientTransformation:
        adam = scale_by_adam(self.betas, self.eps)
        return optax.chain(*_l2(self.weight_decay), adam, optax.scale_by_learning_rate(learning_rate))


@dataclass(frozen=True)
class AdamW(Adam):
    """`torch.optim.AdamW` (Loshchilov & Hutter, 2019): Adam, and p ← p − lr · λ p, which no moment sees."""

    weight_decay: float = 1e-2

    def build(self, learning_rate: ScalarOrSchedule = 1e-3) -> GradientTransformation:
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(scale_by_adam(self.betas, self.eps), decay, optax.scale_by_learning_rate(learning_rate))


@dataclass(frozen=True)
class RMSprop(Optimizer):
    r"""`torch.optim.RMSprop` (Tieleman & Hinton, 2012; centered: Graves, 2013).

    .. math::
        v &← α v + (1 - α) g^2, \quad m ← α m + (1 - α) g \\
        d &= g / (\sqrt{v} + ε), \quad \text{or centered } g / (\sqrt{v - m^2} + ε) \\
        b &← \mathrm{momentum} \; b + d, \quad p ← p - \mathrm{lr} \; b
    """

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1]; got {self.alpha}")
        _require_not_negative(eps=self.eps, weight_decay=self.weight_decay, momentum=self.momentum)

    def build(self, learning_rate: ScalarOrSchedule = 1e-2) -> GradientTransformation:
        scale = optax.scale_by_stddev if self.centered else optax.scale_by_rms
        trace = (optax.trace(self.momentum),) if self.momentum else ()
        return optax.chain(
            *_l2(self.weight_decay),
            scale(self.alpha, self.eps, eps_in_sqrt=False),
            *trace,
            optax.scale_by_learning_rate(learning_rate),
        )


@dataclass(frozen=True)
class Adagrad(Optimizer):
    r"""`torch.optim.Adagrad` (Duchi et al., 2011): `scale_by_sum_of_squares`, and then its update by a falling rate.

    .. math:: p ← p - \frac{\mathrm{lr}}{1 + (t - 1) \; \mathrm{lr\_decay}} \; \mathrm{update}
    """

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _require_not_negative(lr_decay=self.lr_decay, weight_decay=self.weight_decay)
        _require_not_negative(initial_accumulator_value=self.initial_accumulator_value, eps=self.eps)

    def build(self, learning_rate: ScalarOrSchedule = 1e-2) -> GradientTransformation:
        def decayed(count: jax.Array) -> jax.Array:
            rate = learning_rate(count) if callable(learning_rate) else learning_rate
            return rate / (1 + count * self.lr_decay)

        return optax.chain(
            *_l2(self.weight_decay),
            scale_by_sum_of_squares(self.initial_accumulator_value, self.eps),
            optax.scale_by_learning_rate(decayed if self.lr_decay else learning_rate),
        )


def clip_by_global_norm(max_norm: float, eps: float = 0.0) -> GradientTransformation:
    r"""Clip the gradients by the 2-norm of all of them together.

    .. math:: g ← g \, \min(1, \mathrm{max\_norm} / (\mathrm{norm} + ε))

    ε = 0 is Optax's and the book's clipping. ε = 1e-6 is `torch.nn.utils.clip_grad_norm_`, whose norm comes out smaller
    than asked for by the share 1e-6 / norm. Source: Pascanu et al., 2013.
    """
    if not isinstance(max_norm, jax.core.Tracer) and not max_norm >= 0:
        raise ValueError(f"max_norm must be at least 0; got {max_norm}")
    _require_not_negative(eps=eps)

    def clip(updates: Updates, params: Params | None) -> Updates:
        wide = jax.tree.map(lambda g: g.astype(wide_dtype(g)), updates)  # float16 holds no large square
        norm = optax.tree.norm(wide) + eps
        factor = jnp.where(norm <= max_norm, 1, max_norm / norm)
        return jax.tree.map(lambda g, x: (x * factor).astype(g.dtype), updates, wide)

    return optax.stateless(clip)


def scale_by_adam(betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> GradientTransformation:
    r"""Replace gradients by Adam's update, with the state of `optax.scale_by_adam`.

    .. math::
        m &← β_1 m + (1 - β_1) g, \quad v ← β_2 v + (1 - β_2) g^2 \\
        \mathrm{update} &= \frac{m / (1 - β_1^t)}{\sqrt{v / (1 - β_2^t)} + ε}

    `optax.scale_by_adam` has the same equation, but its difference 1 − β₂ᵗ in float32 loses five digits. Each of the
    first hundreds of steps is then 1e-5 too long, a hundred times the roundoff, and a training in float32 drifts ten
    times as far as PyTorch's. Here the difference is −expm1(t log β₂), right to 3 roundoffs.
    """
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
    """Compute 1 − βᵗ without cancellation."""
    return -jnp.expm1(count * math.log(beta)) if beta > 0 else jnp.ones(())


def scale_by_sum_of_squares(initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> GradientTransformation:
    r"""Replace gradients by Adagrad's update; `optax.scale_by_rss` has ε inside of the root.

    .. math:: s ← s + g^2, \quad \mathrm{update} = g / (\sqrt{s} + ε)
    """

    def update(
        gradients: Updates, state: optax.ScaleByRssState, params: Params | None = None
    ) -> tuple[Updates, optax.ScaleByRssState]:
        sums = jax.tree.map(lambda s, g: s + jnp.square(g), state.sum_of_squares, gradients)
        updates = jax.tree.map(lambda s, g: g / (jnp.sqrt(s) + eps), sums, gradients)
        return updates, optax.ScaleByRssState(sums)

    return GradientTransformation(optax.scale_by_rss(initial_accumulator_value).init, update)


def _l2(weight_decay: float) -> tuple[GradientTransformation, ...]:
    """Make the L2 penalty g ← g + λ p, or nothing where λ is 0."""
    return (optax.add_decayed_weights(weight_decay),) if weight_decay else ()


def _require_betas(betas: tuple[float, float]) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be in [0, 1); got {betas}")


def _require_not_negative(**settings: float) -> None:
    wrong = [f"{name} must be at least 0 and finite; got {x}" for name, x in settings.items() if not 0 <= x < math.inf]
    if wrong:
        raise ValueError("; ".join(wrong))


OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Adam(),
    "adamw": AdamW(),
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "rmsprop": RMSprop(),
    "adagrad": Adagrad(),
}
"""Each optimiser with its default settings; `dataclasses.replace` changes some of them."""

"""A fresh process that trains one step as soon as it can, or only imports: `python -m …speed.first_step W DEVICE`.

It prints a line when it is done, which is what the parent waits for; `W` is w1, w2 or `imports`.
"""

import sys


def main(what: str, device: str) -> None:
    """Import, and unless that is all, build the model and take one step."""
    if what == "imports":
        import flax
        import jax
        import optax

        print(flax.__name__, jax.__name__, optax.__name__, "imported", flush=True)
        return
    from parity_tests.speed import jax_device, jax_training
    from parity_tests.speed.translation import TRANSLATORS, draw_training

    jax_device.for_training(device)
    first = draw_training(what)[0].first
    training = jax_training.Training(TRANSLATORS[what], "additive", first.sources.shape[1], drawn=False)
    state, _ = training.run(training.start(), [jax_training.on_devices(first, training.mesh)])
    print("step", int(state.step), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

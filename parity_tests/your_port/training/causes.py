"""Try known mistakes as explanations of a difference of two trainings.

A mistake is named only if it explains two trainings: the one in which it was found, and another from other weights, on
the batches in another order. Whatever is read off the first (a factor, a learning rate, betas) must hold in the second.
"""

from parity_tests.your_port.training.average_causes import causes_in_average
from parity_tests.your_port.training.errors import tensor_errors
from parity_tests.your_port.training.loss_causes import causes_in_loss
from parity_tests.your_port.training.sides import JaxTraining
from parity_tests.your_port.training.trials import weights_near
from parity_tests.your_port.training.update_causes import causes_in_updates

OF_THE_LOSS, OF_UPDATES = 3, 8
"""JAX's training goes on for so many steps, since one step fits more than one explanation."""


def find_causes(quantity: str, step: int, in_jax: JaxTraining, close: float) -> tuple[str, ...]:
    """Name the mistakes that explain why `quantity` is the first to part, at `step` (from 0).

    Args:
        close: the error that counts as agreement.
    """
    in_torch = in_jax.beside
    if quantity == "batch":
        read = [in_torch[other]["batch"] for other in range(len(in_torch.batches))]
        same = [
            i for i, batch in enumerate(read) if not any(tensor_errors(in_jax.records[step]["batch"], batch).values())
        ]
        return tuple(f"JAX reads at step {step + 1} the batch that PyTorch reads at step {i + 1}" for i in same)
    count, of_loss = len(in_torch.batches), quantity in ("loss", "gradients")
    order = range(step + (OF_THE_LOSS if of_loss else OF_UPDATES))
    trials = [
        in_jax.anew(in_torch.anew(weights, [in_torch.batches[place % count] for place in places]))
        for weights, places in (
            (in_torch.weights, order),
            (weights_near(in_torch), [step + 1 - place for place in order]),
        )
    ]
    for trial in trials:
        for batch in trial.beside.batches:
            trial.run(batch)
    if of_loss:
        return tuple(dict.fromkeys(causes_in_loss(quantity, step, trials, in_jax, close)))
    if quantity in ("norm", "clipped", "learning_rate", *in_torch.state()):
        both = "rates" in in_torch[0] and all("gradients" in record for record in trials[0].records)
        return tuple(causes_in_updates(trials, close)) if both else ()
    return tuple(causes_in_average(quantity, trials, close)) if quantity in in_torch[0] else ()

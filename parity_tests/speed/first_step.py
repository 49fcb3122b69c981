"""A fresh process that trains one step as soon as it can, or only imports: `python first_step.py [FILE]`.

FILE is a pickle of what to train, see `start`. It prints a line when it is done, which is what the parent waits for. It
is run as a file and imports nothing of this package, which would import PyTorch.
"""

import pickle
import sys
from pathlib import Path
from typing import Any


def train(what: dict[str, Any]) -> int:
    """One step of a model, by the program's own parts; the number of steps taken."""
    from train.devices import batch_mesh, on_each, share_cores
    from train.xla_options import set_xla_options

    set_xla_options()
    share_cores(what["decoder"]["num_hiddens"])

    import numpy as np

    from jax_attn.models import EncoderDecoder, Seq2SeqAttentionDecoder, Seq2SeqEncoder
    from train.config import TrainingConfig
    from train.data.batches import Examples, in_order
    from train.optimizer import make_optimizer
    from train.step import make_init, make_train_epoch

    model = EncoderDecoder(Seq2SeqEncoder(**what["encoder"]), Seq2SeqAttentionDecoder(**what["decoder"]))
    examples = Examples(*what["examples"])
    settings = TrainingConfig(learning_rate=what["learning_rate"], decay=False, loss=what["loss"])
    mesh = batch_mesh(len(examples.sources))
    optimizer = make_optimizer(settings, 1)
    init = make_init(model, optimizer)
    train_epoch = make_train_epoch(model, optimizer, settings.loss, 0, mesh=mesh)
    state = init(np.uint32(0), Examples(*(column[:1] for column in examples)))
    rows = in_order(len(examples.sources), len(examples.sources))
    state, _ = train_epoch(on_each(state, mesh), on_each(examples, mesh), rows)
    return int(state.step)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("step", train(pickle.loads(Path(sys.argv[1]).read_bytes())), flush=True)
    else:
        import flax
        import jax
        import optax

        print(flax.__name__, jax.__name__, optax.__name__, "imported", flush=True)

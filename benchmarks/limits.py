"""What a workload needs at least: how much of each ceiling (`workloads.CEILINGS`) one unit of it takes.

    gemm        floating point operations of large float32 products
    small gemm  those of products as in one recurrent step, [64, 512] by [512, 2048]
    tanh        calls of tanh
    copy        bytes read and written in arrays far larger than the cache

The ceilings are measured in the same run, in JAX and in PyTorch; the faster one counts. The limit is the sum of these
times, and the share of the limit is the limit divided by the measured time. Nothing else is counted, neither softmax
nor gates, so 100 % is out of reach for a whole model. Code that avoids the tanh by arithmetic can exceed 100 %.
"""

import numpy as np

from benchmarks import inputs


def recurrent_needs() -> dict[str, float]:
    """Count the products forward, and twice as many backward. Those of a step, forward and backward, are small."""
    B, T, D, H, layers = inputs.RECURRENT_SIZES
    loop, outside = layers * H * 4 * H, (D + (layers - 1) * H) * 4 * H
    return {"small gemm": 2.0 * B * T * 2 * loop, "gemm": 2.0 * B * T * (loop + 3 * outside)}


def training_needs(translator: inputs.Translator) -> dict[str, float]:
    """Count what a training step needs at least, on average over the batches of a pass. Padding needs nothing.

    gemm, small gemm   the products forward, and twice as many backward; those inside a recurrence (a step's products
                       forward and backward) are small, all others can be computed for all steps at once
    tanh               one for each term of the attention
    copy               Adam's seven passes over parameters, gradients and moments
    """
    groups = inputs.draw_training(translator.name)
    decoder, V = translator.decoder, translator.encoder_size
    E, H, N, layers = (decoder[size] for size in ("embed_size", "num_hiddens", "vocab_size", "num_layers"))
    gates, inner = 4 if decoder["cell"] == "lstm" else 3, translator.encoder["num_hiddens"]
    # multiplications for each token
    encoder_in = gates * (E + (layers - 1) * V) * V
    encoder_loop = gates * inner * layers * V
    decoder_in = gates * H * E
    decoder_loop = gates * H * ((V if decoder["query"] == "previous" else H) + H + (layers - 1) * 2 * H) + H * H
    decoder_loop += (V + H) * H if decoder["query"] == "new" else 0
    gemm = small = tanh = 0.0
    for group in groups:
        label_lens = np.maximum(group.target_lens - 1, 0)
        read, written, pairs = group.source_lens.sum(), label_lens.sum(), (group.source_lens * label_lens).sum()
        loop = 2 * (read * encoder_loop + written * decoder_loop)
        small += 2 * loop
        gemm += loop + 3 * 2 * (read * (encoder_in + V * H) + written * (decoder_in + H * N) + pairs * V)
        tanh += pairs * H
    parameters = 2 * N * E + encoder_in + encoder_loop + decoder_in + decoder_loop + V * H + H * N
    steps = sum(len(group.sources) for group in groups)
    return {"gemm": gemm / steps, "small gemm": small / steps, "tanh": tanh / steps, "copy": 7 * 4.0 * parameters}


def search_needs(beam_size: int) -> dict[str, float]:
    """Count what the translation of one sentence by W2's model needs: the decoder's products, the attention's tanh."""
    decoder, rows = inputs.W2.decoder, beam_size * inputs.STEPS
    E, H, N = (decoder[size] for size in ("embed_size", "num_hiddens", "vocab_size"))
    step = 4 * H * (E + H + H) + 4 * H * 2 * H + H * H + H * N
    return {"small gemm": 2.0 * rows * step, "tanh": 30.0 * rows * H}

"""Where PyTorch, JAX, Flax and Optax differ from ours; a test shows each difference."""

NOT_THE_SAME: dict[str, str] = {
    # PyTorch
    "nn.LSTM, nn.GRU: an empty sequence": (
        "pack_padded_sequence refuses length 0; ours gives outputs of 0 and the initial state"
    ),
    "nn.LSTM, nn.GRU: padding": (
        "a padded batch that is not packed is run through to its end; valid_lens stops each sequence at its length"
    ),
    "nn.LSTM, nn.GRU: dropout": (
        "between the layers, as ours, but the mask is drawn inside and cannot be given, so dropout is compared with "
        "torch_ref, which writes the layers out"
    ),
    "F.scaled_dot_product_attention: NaN where nothing attends": (
        "a masked value that is NaN makes the context NaN, for its weight of 0 is multiplied; ours does not read it"
    ),
    "F.scaled_dot_product_attention: a floating mask": "is added to the scores; our masks are boolean",
    "F.scaled_dot_product_attention: mask and causal": "are refused together; ours combines any masks",
    "nn.MultiheadAttention: polarity of masks": (
        "True in key_padding_mask and attn_mask means hidden; in our mask, and in F.scaled_dot_product_attention, it "
        "means may attend"
    ),
    "nn.MultiheadAttention: an empty row": (
        "context and weights are NaN, or, with need_weights=False, the context is out_proj.bias; ours is always the "
        "bias, with weights of 0"
    ),
    "nn.MultiheadAttention: weights returned": (
        "are by default the mean over heads, and in training those after dropout; ours are each head's, before dropout"
    ),
    "F.cross_entropy: nothing counts": "the mean over no labels is NaN; ours is 0",
    "F.cross_entropy: NaN where nothing counts": "ignored logits that are NaN have NaN gradients; ours have 0",
    "F.cross_entropy: bfloat16": "the loss is bfloat16; ours is float32",
    "F.cross_entropy: a label out of range": "raises; ours is NaN, since no error can be raised under jit",
    # jax.nn
    "jax.nn.dot_product_attention: float64": (
        "the softmax is computed in float32 whatever the inputs are, so it is compared in float32 and bfloat16 alone"
    ),
    "jax.nn.dot_product_attention: an empty row": 'has weights of 1/K, our empty_row="uniform"; our default is 0',
    "jax.nn.dot_product_attention: shapes": (
        "[B, T, heads, D] and no more axes, values as wide as keys; ours is [..., T, D], values of any width"
    ),
    # Flax
    "nn.LSTMCell, nn.OptimizedLSTMCell: biases": (
        "have one where PyTorch and ours have b_ih and b_hh: the function is that of their sum, and so is each "
        "gradient, but Adam moves one bias half as far as two"
    ),
    "nn.GRUCell: biases": "has one for r and one for z, as above; of n it has both",
    "nnx.GRUCell: biases": "has none on the hidden side, so it cannot hold b_hn, and is not nn.GRU",
    # Optax
    "optax: labels that do not count": (
        "−100 gives NaN and −1 is read as the last class; ours takes either where the mask hides it, and gives NaN "
        "elsewhere"
    ),
    "optax: bfloat16": "the loss is bfloat16; ours is float32",
}
"""Which function, and in what -> how it differs. `twin_differences_test` shows each, and fails once one is gone."""

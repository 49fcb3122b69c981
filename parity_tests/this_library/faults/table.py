"""The planted faults: a name, the case that must notice it, the mistake, where it is planted, and the variant."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

import jax_attn
import torch_ref
from parity_tests.this_library.faults import by_hand
from parity_tests.this_library.faults.fault import (
    Fault,
    Make,
    around,
    exchanged,
    given,
    in_order,
    instead,
    result,
    unchanged,
    with_arguments,
)

in_jax, in_torch = partial(Fault, side="JAX"), partial(Fault, side="PyTorch")


def in_both(*row: Any) -> tuple[Fault, Fault]:
    """Plant the same mistake in either framework, one after the other."""
    return in_jax(*row), in_torch(*row)


def inverted(mask: Any) -> Any:
    return None if mask is None else ~mask


def lengths_off_by(number: int) -> Make:
    return with_arguments(lambda given: {"valid_lens": (given["valid_lens"] + number).clip(0, given["size"])})


def library(x: Any) -> Any:
    return torch if isinstance(x, torch.Tensor) else jnp


def shifted(x: Any, axis: int = -1) -> Any:
    """Put each entry one place further along an axis, the last one first."""
    return library(x).roll(x, 1, axis)


def raised(part: int, of: int, by: float) -> Any:
    """Add a number to one of the parts of the last axis."""
    return lambda x: x + by * (library(x).arange(x.shape[-1]) * of // x.shape[-1] == part)


def field(name: str, change: Any) -> Any:
    """Change one field of a record."""
    return lambda record: record._replace(**{name: change(record)})


def swapped(*order: int) -> Make:
    """Give a recurrent step of JAX its gates in another order."""
    return given(**dict.fromkeys(("projected", "kernel_hh", "bias_hh"), in_order(*order)))


stop, no_lengths = jax.lax.stop_gradient, given(valid_lens=None)
scores_of_0 = instead(lambda scores, allowed: torch.where(allowed, scores, 0))
sines_first = result(lambda x: jnp.concatenate([x[:, ::2], x[:, 1::2]], axis=-1))
from_one = around(lambda table, length, *rest: table(length + 1, *rest)[1:])
by_root_of_size = result(lambda x: x / x.shape[-1] ** 0.5)
by_root_of_heads = result(lambda scores: scores / scores.shape[-3] ** 0.5)
through_padding = instead(lambda self, X, lens, initial: self._library(X, initial))
features_flipped = result(lambda found: (found[0].flip(-1), found[1]))
bottom_layer = given(state=field("rnn", lambda state: state.rnn[:1]))
words_late = result(field("words", lambda masks: shifted(masks.words, 0)))
unweighted = given(rows=field("weights", lambda rows: jnp.sign(rows.weights)))
other_weights = result(lambda read: (*read[:2], shifted(read[2], 1)))
without_last = result(field("scores", lambda found: found.token_scores[..., :-1].sum(-1)))

SOFTMAX, LOSS, HEADS, DECODER = (
    "masked_softmax",
    "masked_cross_entropy",
    "MultiHeadAttention",
    "Seq2SeqAttentionDecoder",
)
LENGTHS, IN_SOFTMAX, IN_ATTEND = "functional.masks:length_mask", "functional.softmax:", "functional.attend:"
IN_ATTENTION, IN_EMBEDDINGS, IN_RECURRENT = "modules.attention:", "modules.embeddings:", "modules.recurrent:"
IN_LOSSES, IN_DECODER, IN_CONSTRAINTS = "functional.losses:", "models.rnn_decoder:", "search.constraints:"
SCORE, STEP, OF_DECODER = f"{IN_ATTENTION}scaled_dot_score", f"{IN_RECURRENT}lstm_step", f"{IN_DECODER}{DECODER}."
RAGGED, NAN, LARGE = "ragged lengths", "NaN where nothing attends", "scores of ±1e4"
CAUSAL = "causal mask of all examples"
TEN, LUONG, BETWEEN, TIED = (
    "10 positions, 7 features",
    "Luong: lstm, dot, new, fed",
    "lstm, between, fed",
    "tied, other sizes, fed",
)
DROPOUT = "two layers, both directions, ragged, dropout"
PENALTY = "a table, {'beam_size': 4, 'length_penalty': 0.75}"
COVERAGE = "coverage of ragged sources, and everything else"

MASKS = (
    *in_both("mask polarity", SOFTMAX, result(inverted), f"{IN_SOFTMAX}attention_mask", RAGGED),
    in_jax("one key more than the length", "attend", lengths_off_by(1), LENGTHS, RAGGED),
    in_torch("lengths one too short", "attend", lengths_off_by(-1), LENGTHS, RAGGED),
    in_jax("the query itself is hidden", "causal_mask", result(lambda mask: jnp.tril(mask, -1))),
    *in_both("softmax over the queries", "attend", by_hand.over_queries, f"{IN_ATTEND}{SOFTMAX}", RAGGED),
    in_jax("softmax not shifted by its maximum", SOFTMAX, instead(by_hand.unshifted), variant=LARGE),
    in_jax("an empty row uniform", "attend", given(empty_row="uniform"), f"{IN_ATTEND}{SOFTMAX}", "an empty row"),
    in_jax("−1e9 in place of −inf", "masked_log_softmax", result(lambda x: x.clip(-1e9)), variant=RAGGED),
    in_torch("masked scores of 0", SOFTMAX, scores_of_0, f"{IN_SOFTMAX}_fill", RAGGED),
    in_jax("a cast to float32 left in", SOFTMAX, by_hand.in_float32),
    in_jax("sequence mask ignores its value", "sequence_mask", given(value=0), variant="no features"),
)
ATTENTIONS = (
    in_jax("scale forgotten", "attention", instead(jax_attn.dot_score), f"{IN_ATTEND}scaled_dot_score"),
    in_torch("scale forgotten", "DotProductAttention", instead(torch_ref.dot_score), SCORE, "scaled_dot"),
    in_jax("scaled by all heads together", HEADS, by_root_of_heads, SCORE),
    in_jax("keys for queries", "attention", exchanged("queries", "keys"), f"{IN_ATTEND}scaled_dot_score", CAUSAL),
    in_jax("values not zeroed", "attend", unchanged, f"{IN_ATTEND}zero_unattended", NAN),
    in_torch("keys not zeroed", "AdditiveAttention", unchanged, f"{IN_ATTENTION}zero_unattended", NAN),
    in_jax("dropout not rescaled", "attend", given(rate=0.0), f"{IN_ATTEND}dropout", "dropout"),
    in_torch("no dropout on the weights", "attend", unchanged, f"{IN_ATTEND}keep_or_drop", "dropout"),
    in_jax("the weights' gradient stopped", "attend", result(stop), f"{IN_ATTEND}{SOFTMAX}"),
    in_torch("the weights detached", "attention", result(torch.Tensor.detach), f"{IN_ATTEND}{SOFTMAX}"),
    *in_both("tanh left out", "AdditiveAttention", given(use_tanh=False), f"{IN_ATTENTION}additive_score"),
    in_jax("sigma not squared", "gaussian_score", given(sigma=lambda sigma: sigma**0.5), variant="narrow"),
    in_jax("heads dealt out in turn", HEADS, instead(by_hand.heads_in_turn), f"{IN_ATTENTION}{HEADS}._split"),
    in_torch("heads dealt out in turn", HEADS, instead(by_hand.heads_in_turn), f"{IN_ATTENTION}{HEADS}._split_heads"),
    in_jax(
        *("rounded to bfloat16", "DotProductAttention", instead(jnp.result_type), f"{IN_ATTENTION}wide_dtype"),
        *(f"{LARGE}, scaled",),
        dtype="bfloat16",
        jit=True,
    ),
    in_jax("embeddings not scaled", "Embeddings", by_root_of_size, f"{IN_EMBEDDINGS}nn.Embed.__call__"),
    in_torch("embeddings not scaled", "Embeddings", instead(lambda x: 1.0), f"{IN_EMBEDDINGS}math.sqrt"),
    in_jax("positions from 1", "PositionalEncoding", from_one, f"{IN_EMBEDDINGS}sinusoidal_positions"),
    in_torch("positions doubled", "sinusoidal_positions", result(lambda x: 2 * x), variant=TEN),
    in_jax("sines first, then cosines", "sinusoidal_positions", sines_first, variant=TEN),
)
RECURRENCE = (
    in_jax("gates i and f swapped", "LSTM", swapped(1, 0, 2, 3), STEP),
    in_jax("gates g and o swapped", "lstm_step", swapped(0, 1, 3, 2)),
    in_jax("gates r and z swapped", "GRU", swapped(1, 0, 2), f"{IN_RECURRENT}gru_step"),
    in_jax("one bias dropped", "LSTM", given(bias_hh=None), STEP),
    in_jax("the forget gate's bias one higher", "lstm_step", given(projected=raised(1, of=4, by=1.0))),
    in_torch("the input gate always open", "lstm_step", given(projected=raised(0, of=4, by=100.0))),
    in_jax("the cell without its tanh", "lstm_step", by_hand.cell_without_tanh),
    in_jax("reset before the product", "gru_step", instead(by_hand.reset_before)),
    *in_both("the hidden bias outside the reset", "gru_step", by_hand.bias_outside_reset),
    in_jax("the update gate turned round", "gru_step", by_hand.update_turned_round),
    in_jax("run through the padding", "GRU", no_lengths, f"{IN_RECURRENT}unroll", "two layers, ragged"),
    in_torch("lengths ignored", "LSTM", through_padding, f"{IN_RECURRENT}LSTM._packed", "two layers, ragged"),
    in_jax("gradient through one step alone", "GRU", given(step=by_hand.one_step_back), f"{IN_RECURRENT}unroll"),
    in_jax("no gradient for the loop's weights", "GRU", given(kernel_hh=stop), f"{IN_RECURRENT}gru_step"),
    in_jax("both directions forward", "Seq2SeqEncoder", given(reverse=False), f"{IN_RECURRENT}unroll"),
    in_torch("features in reverse", "Seq2SeqEncoder", features_flipped, f"{IN_RECURRENT}GRU.forward"),
    in_jax("no dropout between layers", "LSTM", unchanged, f"{IN_RECURRENT}drop", DROPOUT),
)
MODELS = (
    in_jax("the bottom layer asks", DECODER, bottom_layer, f"{IN_DECODER}_top"),
    in_torch("other features ask", DECODER, given(query=shifted), f"{OF_DECODER}_context"),
    in_jax("context and embedding exchanged", DECODER, by_hand.parts_exchanged, f"{OF_DECODER}_cells"),
    in_jax("no tanh", DECODER, given(outputs=jnp.arctanh), f"{OF_DECODER}_logits", LUONG),
    in_torch("no tanh", DECODER, unchanged, f"{IN_DECODER}torch.tanh", LUONG),
    in_jax("a beam asks its neighbour", DECODER, given(queries=partial(shifted, axis=0)), f"{OF_DECODER}_attend"),
    in_jax("dropout not rescaled", "Seq2SeqEncoder", given(rate=0.0), "models.rnn_encoder:drop", "variational dropout"),
    in_jax("words of the step before dropped", DECODER, words_late, f"{IN_DECODER}_time_first", "all dropouts"),
    in_jax("the second state forgotten", DECODER, by_hand.second_step_forgotten, f"{OF_DECODER}_advance", BETWEEN),
    in_jax("the tie learns one side alone", DECODER, instead(by_hand.tie_not_learnt), f"{OF_DECODER}_logits", TIED),
    *in_both("labels shifted", LOSS, given(labels=shifted)),
    in_jax("one label too many", LOSS, lengths_off_by(1), f"{IN_LOSSES}length_mask", "tokens, ragged"),
    *in_both("the mean counts the padding", LOSS, by_hand.mean_over_padding, "", "tokens, ragged"),
    in_jax("smoothing spread over the others", LOSS, given(label_smoothing=lambda s: s * 6 / 5), variant="smoothed"),
    in_torch("the smoothing forgotten", LOSS, given(label_smoothing=0.0), variant="smoothed"),
    in_jax("gradient not weighted", "projected_cross_entropy", unweighted, f"{IN_LOSSES}_losses_and_gradient"),
    in_jax(
        *("gradient without its first block", "projected_cross_entropy", by_hand.first_not_summed),
        *(f"{IN_LOSSES}jax.lax.scan", "three blocks, smoothed"),
    ),
)
SEARCHES = (
    *in_both("length penalty forgotten", "beam_search", given(length_penalty=0.0), "", PENALTY),
    in_jax("padding must be covered", "beam_search", given(source_lens=None), "search.beam:make_penalties", COVERAGE),
    in_jax("a beam's weights from the wrong place", "beam_search", other_weights, "search.beam:_read_back"),
    in_jax(
        *("one token short of the least length", "greedy_search", given(min_len=lambda length: length - 1)),
        *(f"{IN_CONSTRAINTS}forbid_end", "NaN where it is forbidden"),
    ),
    in_jax(
        *("repeats of one token more", "greedy_search", given(n=lambda n: n + 1)),
        *(f"{IN_CONSTRAINTS}forbid_repeats", "no 2 tokens twice of a babble"),
    ),
    in_jax("hot for cold", "sample_search", given(temperature=lambda t: 1 / t), variant="{'temperature': 0.5}"),
    in_jax("the last token's score forgotten", "greedy_search", without_last),
    in_torch("the end not seen", "greedy_search", given(eos=-1), "search.result:Hypothesis.extended"),
)
CASE_FAULTS: tuple[Fault, ...] = (*MASKS, *ATTENTIONS, *RECURRENCE, *MODELS, *SEARCHES)

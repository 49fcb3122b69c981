"""What the tests of pretrained models share: logits, gradients and hypotheses must be those of transformers."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_attn import beam_search, greedy_search
from jax_attn.checkpoints.hugging_face import LAYER, OUTPUT, SHARED, SOURCE, TARGET
from jax_attn.checkpoints.pretrained import name_layers, name_rows
from jax_attn.weights import to_torch
from train.data.embedded import embedded_pairs


class Batch(NamedTuple):
    sources: np.ndarray
    lens: np.ndarray
    targets: np.ndarray
    """With the start."""


class Special(NamedTuple):
    """The ids of a kind of model, in transformers' order."""

    start: int
    end: int
    pad: int


@pytest.fixture(scope="session")
def texts():
    """Return 400 sentences of both languages."""
    pairs = embedded_pairs()[:400]
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def draw_batch(special, lens, low, source_high, target_high):
    """Draw three sentences of the given lengths, with ids from `low` on."""
    rng, lens = np.random.default_rng(0), np.array(lens)
    sources, targets = rng.integers(low, source_high, (3, 7)), rng.integers(low, target_high, (3, 6))
    targets[:, 0] = special.start
    sources[np.arange(3), lens - 1] = special.end
    sources[np.arange(7) >= lens[:, None]] = special.pad
    return Batch(sources, lens, targets)


def torch_inputs(sources, lens):
    import torch

    mask = np.arange(sources.shape[1]) < lens[:, None]
    return {"input_ids": torch.from_numpy(sources), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def require_equal(name, ours, theirs, scale=None):
    error = np.abs(np.asarray(ours) - theirs).max() / (scale or np.abs(theirs).max())
    assert error <= 1e-12, (name, error)


def require_same_gradients(model, found, batch, *, start=None, not_learned=None):
    """Compare the logits, and the gradient of each parameter.

    Args:
        start: the id that our decoder reads first, if not that of the batch.
        not_learned: the row of the embeddings that has no gradient in transformers.
    """
    import torch

    module, params = found.load(jnp.float64)
    sources, lens, targets = batch
    logits = model(**torch_inputs(sources, lens), decoder_input_ids=torch.from_numpy(targets)).logits
    weights = np.random.default_rng(1).normal(size=logits.shape)
    (logits * torch.from_numpy(weights)).sum().backward()
    if start is not None:
        targets[:, 0] = start

    def loss(params):
        found, _ = module.apply(params, *map(jnp.asarray, (sources, targets, lens)))
        return (found * weights).sum(), found

    (_, ours), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    require_equal("logits", ours, logits.detach().numpy())
    gradients = to_torch(gradients)
    theirs = {name.removeprefix("model."): each.grad for name, each in model.named_parameters()}
    names = {ours: {name} for ours, name in name_layers(found.settings, LAYER).items()}
    rows = name_rows(found.settings.tie_embeddings)  # the bias is a buffer there
    for role, named in (("source", {SHARED, SOURCE}), ("target", {SHARED, TARGET}), ("output", {OUTPUT})):
        names[rows[role]] = names.get(rows[role], set()) | named
    assert set(names) == set(gradients) - {rows["bias"]}
    for ours, named in names.items():
        (name,) = [name for name in named if theirs.get(name) is not None]
        # The gradient of the keys' bias is 0 but for rounding: it is measured against that of their kernel.
        scale = theirs[name.replace("k_proj.bias", "k_proj.weight")].abs().max().item()
        is_table = name in (SHARED, SOURCE, TARGET)
        compared = [i for i in range(len(theirs[name])) if i != not_learned or not is_table]
        require_equal(ours, np.asarray(gradients[ours])[compared], theirs[name].numpy()[compared], scale)


def count_early(model, found, batch, special, bos, language=None):
    """Compare the hypotheses of a search; return how many end before they have to.

    Args:
        bos: our id of the start.
        language: the first token, if it is forced.
    """
    import torch

    module, params = found.load(jnp.float64)
    sources, lens, _ = batch
    options: dict[str, Any] = dict(found.search)
    beams = options["beam_size"]
    forced = {} if language is None else {"forced_bos_token_id": language}
    settings = {"num_return_sequences": beams, "return_dict_in_generate": True, "output_scores": True}
    with torch.no_grad():
        expected = model.generate(**torch_inputs(sources, lens), **forced, **settings)
    memory = module.apply(params, jnp.asarray(sources), jnp.asarray(lens), method="encode")
    state = module.apply(params, memory, options["max_len"], method="initial_state")
    step = partial(module.apply, params, method="step")
    if beams == 1:
        constraints = ("max_len", "force_end", "min_len", "no_repeat_ngram", "renormalize")
        options = {name: options[name] for name in constraints}
    search: Any = greedy_search if beams == 1 else beam_search
    prefix = {} if language is None else {"prefix": jnp.full((3, 1), language), "free_prefix": True}
    result = search(step, state, memory, bos=bos, eos=special.end, batch_size=3, **options, **prefix)
    ended_early = 0
    for row, ids in enumerate(expected.sequences[:, 1:].numpy()):
        length = int(result.lengths.reshape(-1)[row])
        assert result.ids.reshape(3 * beams, -1)[row, :length].tolist() == ids[:length].tolist()
        assert all(i == special.pad for i in ids[length:])
        ended_early += length < options["max_len"]
        one = torch_inputs(sources[row // beams :][:1], lens[row // beams :][:1])
        score = score_in_float64(model, found, one, ids[:length], special, is_forced=language is not None)
        np.testing.assert_allclose(float(result.scores.reshape(-1)[row]), score, rtol=1e-9)
    return ended_early


def score_in_float64(model, found, inputs, ids, special, *, is_forced):
    """Compute a hypothesis's score by the model's logits; `generate` rounds them to float32."""
    import torch

    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=torch.tensor([[special.start, *ids[:-1]]])).logits[0]
    search, renormalizes = found.search, found.search["renormalize"]
    log_probs = logits if renormalizes else logits.log_softmax(-1)
    log_probs[:, list(found.settings.never)] = -torch.inf
    for time in range(len(ids)):
        log_probs[time, forbidden(ids[:time].tolist(), search, special.end)] = -torch.inf
    log_probs = log_probs.log_softmax(-1) if renormalizes else log_probs
    steps = log_probs[torch.arange(len(ids)), torch.tensor(ids)]
    if is_forced:
        steps[0] = 0.0
    if len(ids) == search["max_len"] and search["force_end"]:
        steps[-1] = 0.0
    return float(steps.sum()) / len(ids) ** (search["length_penalty"] if search["beam_size"] > 1 else 0.0)


def forbidden(ids, search, end):
    """Return the tokens that may not follow: the end of a short sentence, and those that repeat an n-gram."""
    n = search["no_repeat_ngram"] or len(ids) + 1
    repeated = [ids[i + n - 1] for i in range(len(ids) - n + 1) if ids[i : i + n - 1] == ids[len(ids) - n + 1 :]]
    return repeated + [end] * (len(ids) + 1 < search["min_len"])

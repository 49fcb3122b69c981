import pytest
import torch

from torch_ref import (
    DecoderKeepMasks,
    EncoderDecoder,
    MultiHeadAttention,
    Seq2SeqAttentionDecoder,
    Seq2SeqEncoder,
    greedy_search,
)

QUERIES = [("previous", False), ("new", False), ("new", True)]


def build(
    query="previous", input_feeding=False, cell="gru", attention="additive", bridge=False, tie=False, dropout=0.0
):
    torch.manual_seed(0)
    encoder = Seq2SeqEncoder(10, 5, 3 if bridge else 8, 2, dropout, cell=cell, bidirectional=bridge)
    decoder = Seq2SeqAttentionDecoder(
        11, 8, 8, 2, dropout, cell=cell, attention=attention, query=query, input_feeding=input_feeding, bridge=bridge,
        tie_embeddings=tie, encoder_size=6 if bridge else 8,
    )  # fmt: skip
    return EncoderDecoder(encoder, decoder).double().eval()


def test_the_books_shapes():
    encoder = Seq2SeqEncoder(10, 8, 16, 2, cell="lstm")
    decoder = Seq2SeqAttentionDecoder(10, 8, 16, 2, cell="lstm")
    tokens = torch.zeros(4, 7, dtype=torch.int64)
    outputs, (h, c) = encoder(tokens)
    assert outputs.shape == (4, 7, 16)
    assert h.shape == c.shape == (2, 4, 16)
    logits, weights = decoder(tokens, decoder.prepare(encoder(tokens)))
    assert logits.shape == (4, 7, 10)
    assert weights.shape == (4, 7, 7)
    assert {name.split(".")[0] for name, _ in decoder.named_parameters()} == {"embedding", "attention", "rnn", "dense"}


@pytest.mark.parametrize("attention", ["additive", "multi_head", "none"])
@pytest.mark.parametrize(
    ("query", "cell", "bridge", "tie"),
    [
        (QUERIES[0], "gru", False, False),
        (QUERIES[0], "lstm", True, True),
        (QUERIES[1], "lstm", False, True),
        (QUERIES[1], "gru", True, False),
        (QUERIES[2], "gru", False, True),
        (QUERIES[2], "lstm", True, False),
    ],
)
def test_teacher_forcing_is_repeated_step(query, cell, attention, bridge, tie):
    model = build(*query, cell, attention, bridge, tie)
    source, lens, targets = torch.randint(10, (3, 6)), torch.tensor([6, 2, 0]), torch.randint(11, (3, 4))
    logits, weights = model(source, targets, lens)
    memory = model.encode(source, lens)
    # Two equal hypotheses of a sentence stay equal: the state is repeated, the memory is not.
    state = model.initial_state(model.encode(source.repeat_interleave(2, 0), lens.repeat_interleave(2)))
    for t in range(4):
        log_probs, state, step_weights = model.step(targets[:, t].repeat_interleave(2), state, memory)
        expected = logits[:, t].log_softmax(-1)
        assert torch.allclose(log_probs[0::2], expected)
        assert torch.allclose(log_probs[1::2], expected)
        if attention == "none":
            assert weights is None
            assert step_weights is None
        else:
            assert torch.allclose(step_weights[1::2], weights[:, t])
            sums = weights[:, t].sum(-1)
            assert torch.allclose(sums, torch.tensor([1.0, 1.0, 0.0]).double())
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_steps_go_on_from_a_state():
    model = build("new", True, "lstm")
    source, targets = torch.randint(10, (2, 6)), torch.randint(11, (2, 4))
    memory = model.encode(source)
    logits, weights = model.decoder(targets, memory)
    first, state, first_weights = model.decoder.steps(targets[:, :1], model.initial_state(memory), memory)
    second, _, second_weights = model.decoder.steps(targets[:, 1:], state, memory)
    assert torch.allclose(torch.cat([first, second], 1), logits)
    assert torch.allclose(torch.cat([first_weights, second_weights], 1), weights)


def test_more_padding_changes_nothing():
    model = build("new", True, "lstm")
    source, lens, targets = torch.randint(10, (2, 6)), torch.tensor([3, 6]), torch.randint(11, (2, 4))
    longer = torch.cat([source, torch.randint(10, (2, 3))], dim=1)
    assert torch.allclose(model(source, targets, lens)[0], model(longer, targets, lens)[0])


def test_run_through_the_padding_when_asked():
    encoder = Seq2SeqEncoder(10, 5, 8, 2, stop_at_length=False)
    tokens = torch.randint(10, (2, 6))
    for a, b in zip(encoder(tokens, torch.tensor([1, 3])), encoder(tokens), strict=True):
        assert torch.equal(a, b)


def test_explicit_dropout_masks_and_their_absence():
    model = build(cell="lstm", dropout=0.5)
    source, targets = torch.randint(10, (2, 6)), torch.randint(11, (2, 4))
    memory = model.encode(source)
    layers, attention = torch.rand(2, 1, 4, 8) < 0.5, torch.rand(2, 4, 6) < 0.5
    clean, _ = model.decoder(targets, memory)
    once = model.decoder(targets, memory, keep_masks=DecoderKeepMasks(layers, attention))
    model.train()
    again = model.decoder(targets, memory, keep_masks=DecoderKeepMasks(layers, attention))
    assert torch.equal(once[0], again[0])
    assert not torch.allclose(once[0], clean)


def test_any_attention_module_and_heads_are_averaged():
    attention = MultiHeadAttention(8, 2, value_size=6, key_size=6)
    decoder = Seq2SeqAttentionDecoder(11, 4, 8, 1, attention=attention, encoder_size=6, bridge=True)
    encoder = Seq2SeqEncoder(10, 5, 6)
    model = EncoderDecoder(encoder, decoder)
    logits, weights = model(torch.randint(10, (3, 6)), torch.randint(11, (3, 4)), torch.tensor([6, 1, 3]))
    assert logits.shape == (3, 4, 11)
    assert torch.allclose(weights.sum(-1), torch.tensor(1.0))


@pytest.mark.parametrize("query", QUERIES)
def test_search_takes_the_models_step(query):
    model = build(*query, cell="lstm")
    source, lens = torch.randint(10, (3, 6)), torch.tensor([6, 2, 4])
    memory = model.encode(source, lens)
    settings = {"bos": 1, "eos": 2, "max_len": 5, "batch_size": 3}
    found = greedy_search(model.step, model.initial_state(memory), memory, **settings)
    # Teacher forcing on the found tokens gives the same scores and weights.
    inputs = torch.cat([torch.ones(3, 1).long(), found.ids[:, 0, :-1]], dim=1)
    logits, weights = model(source, inputs, lens)
    log_probs = logits.log_softmax(-1)
    within = torch.arange(5) < found.lengths[:, :1]
    token_scores = log_probs.gather(-1, found.ids[:, 0, :, None]).squeeze(-1)
    assert torch.allclose(found.token_scores[:, 0], torch.where(within, token_scores, 0))
    assert torch.allclose(found.weights[:, 0], torch.where(within[..., None], weights, 0))
    assert torch.equal(found.ids[:, 0][within], log_probs.argmax(-1)[within])


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="input_feeding needs query new or between; got previous"):
        build("previous", True)
    with pytest.raises(ValueError, match="query must be previous, new or between; got 'next'"):
        build("next")
    with pytest.raises(ValueError, match=r"attention must be one of .*multi_head.*; got 'concat'"):
        build(attention="concat")

import pytest
import torch

from torch_ref import EncoderDecoder, TransformerDecoder, TransformerEncoder


@pytest.mark.parametrize("dropout", ["dropout", "dropout_attention", "dropout_hidden"])
def test_each_dropout_draws_in_training_alone(dropout):
    torch.manual_seed(0)
    sizes = {"embed_size": 8, "num_hiddens": 12, "num_layers": 1, "num_heads": 2, dropout: 0.5}
    model = EncoderDecoder(TransformerEncoder(10, **sizes), TransformerDecoder(11, **sizes))
    source, targets = torch.randint(10, (2, 6)), torch.randint(11, (2, 4))
    memory = model.eval().encode(source)
    encoded, logits = model.encoder(source), model.decoder(targets, memory)[0]
    assert torch.equal(model.encoder(source), encoded)
    assert torch.equal(model.decoder(targets, memory)[0], logits)
    model.train()
    for _ in range(2):
        before, encoded = encoded, model.encoder(source)
        assert not torch.allclose(encoded, before)
        before, logits = logits, model.decoder(targets, memory)[0]
        assert not torch.allclose(logits, before)

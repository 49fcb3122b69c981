"""Encoder and decoder as one model."""

import flax.linen as nn
from jax import Array
from jaxtyping import Float, Int

from jax_attn.functional.losses import projected_cross_entropy
from jax_attn.models.rnn_decoder import DecoderMemory, DecoderState
from jax_attn.models.rnn_encoder import EncoderOutput


class EncoderDecoder(nn.Module):
    """A translation model: any encoder and any decoder whose interfaces fit.

        params = model.init(key, sources, targets, source_lens)
        logits, weights = model.apply(params, sources, targets, source_lens)              # teacher forcing

        memory = model.apply(params, sources, source_lens, method="encode")               # search
        state = model.apply(params, memory, method="initial_state")
        log_probs, state, weights = model.apply(params, tokens, state, memory, method="step")

    Args:
        encoder: called with (sources, source_lens).
        decoder: a module with `prepare`, `initial_state`, `step`, `features`, `output_layer`, and a call for teacher
            forcing.
    """

    encoder: nn.Module
    decoder: nn.Module

    def encode(
        self,
        sources: Int[Array, "batch source"],
        source_lens: Int[Array, "batch"] | None = None,
        *,
        deterministic: bool = True,
    ) -> DecoderMemory:
        """Encode the sources, `[B, S]` ids and `[B]` lengths, to the decoder's memory."""
        encoded: EncoderOutput = self.encoder(sources, source_lens, deterministic=deterministic)
        return self.decoder.prepare(encoded, source_lens)

    def initial_state(self, memory: DecoderMemory) -> DecoderState:
        """Return the decoder's state before the first token."""
        return self.decoder.initial_state(memory)

    def step(
        self, tokens: Int[Array, "rows"], state: DecoderState, memory: DecoderMemory
    ) -> tuple[Float[Array, "rows vocab"], DecoderState, Float[Array, "rows source"] | None]:
        """Take one step of the decoder, in the form that search calls."""
        return self.decoder.step(tokens, state, memory)

    def __call__(
        self,
        sources: Int[Array, "batch source"],
        targets: Int[Array, "batch time"],
        source_lens: Int[Array, "batch"] | None = None,
        *,
        deterministic: bool = True,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "batch time vocab"], Float[Array, "batch time source"] | None]:
        """Return the logits `[B, T, N]` of the token after each given one, and the attention weights `[B, T, S]`."""
        memory = self.encode(sources, source_lens, deterministic=deterministic)
        return self.decoder(targets, memory, deterministic=deterministic, return_weights=return_weights)

    def cross_entropy(
        self,
        sources: Int[Array, "batch source"],
        targets: Int[Array, "batch time"],
        labels: Int[Array, "batch time"],
        weights: Float[Array, "batch time"],
        source_lens: Int[Array, "batch"] | None = None,
        *,
        label_smoothing: float = 0.0,
        deterministic: bool = True,
    ) -> tuple[Float[Array, ""], Float[Array, "batch time"]]:
        """Compute the cross entropy of the call's logits without holding them all: see `projected_cross_entropy`.

        Args:
            sources, source_lens: `[B, S]` ids and `[B]`.
            targets: `[B, T]` ids that the decoder reads, the first of them `<bos>`.
            labels: `[B, T]` ids, the next token at each.
            weights: `[B, T]`, the weight of each label in the sum; 0 masks it.
            label_smoothing: see `projected_cross_entropy`.
            deterministic: False turns dropout on.

        Returns:
            Σ weights · losses, and the losses in nats `[B, T]`, which have no gradient.
        """
        memory = self.encode(sources, source_lens, deterministic=deterministic)
        features, _ = self.decoder.features(targets, memory, deterministic=deterministic, return_weights=False)
        kernel, bias = self.decoder.output_layer()
        return projected_cross_entropy(features, kernel, bias, labels, weights, label_smoothing=label_smoothing)

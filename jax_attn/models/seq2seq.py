"""Encoder and decoder as one model."""

from dataclasses import field
from typing import Any

import flax.linen as nn
import jax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

from jax_attn.functional.losses import projected_cross_entropy
from jax_attn.models.interface import AttentionMaps, KeepMasks


class EncoderDecoder(nn.Module):
    """A translation model: any encoder and any decoder with the methods of `jax_attn.models.interface`.

        params = model.init(key, sources, targets, source_lens)
        logits, weights = model.apply(params, sources, targets, source_lens)              # teacher forcing

        memory = model.apply(params, sources, source_lens, method="encode")               # search
        state = model.apply(params, memory, max_len, method="initial_state")
        log_probs, state, weights = model.apply(params, tokens, state, memory, method="step")

    Args:
        encoder: an `Encoder`.
        decoder: a `Decoder`.
        share_embedding: the encoder reads the decoder's embedding and has none of its own. Both need one vocabulary and
            `embed_size`. With the decoder's `tie_embeddings` one matrix serves three times (Press & Wolf, 2017).
    """

    encoder: nn.Module
    decoder: nn.Module
    share_embedding: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.share_embedding:
            ours, theirs = ((half.vocab_size, half.embed_size) for half in (self.encoder, self.decoder))
            if ours != theirs:
                raise ValueError(
                    f"share_embedding needs vocab_size and embed_size to be the same in encoder and decoder; got "
                    f"{list(ours)} and {list(theirs)}"
                )
        super().__post_init__()

    @nn.nowrap
    def draw_keep_masks(self, key: PRNGKeyArray, sources: tuple[int, ...], targets: tuple[int, ...]) -> KeepMasks:
        """Draw all masks of a batch of sources `[B, S]` and targets `[B, T]`, given as shapes.

        Parameters are not needed. So devices that share a batch can be given their rows of the masks of all of it, and
        the result does not depend on their number.
        """
        for_encoder, for_decoder = jax.random.split(key)
        return KeepMasks(
            self.encoder.draw_keep_masks(for_encoder, sources),
            self.decoder.draw_keep_masks(for_decoder, targets, sources[1]),
        )

    def encode(
        self,
        sources: Int[Array, "batch source"],
        source_lens: Int[Array, "batch"] | None = None,
        *,
        deterministic: bool = True,
        keep_masks: Any = None,
    ) -> Any:
        """Encode the sources, `[B, S]` ids and `[B]` lengths, to the decoder's memory."""
        encoded: Any = self.encoder(
            sources, source_lens, deterministic=deterministic, keep_masks=keep_masks, **self._shared()
        )
        return self.decoder.prepare(encoded, source_lens)

    def _shared(self) -> dict[str, Any]:
        return {"embedding": self.decoder.embedding} if self.share_embedding else {}

    def initial_state(self, memory: Any, max_len: int | None = None) -> Any:
        """Return the decoder's state before the first token, with room for `max_len` tokens if it keeps them."""
        return self.decoder.initial_state(memory, max_len)

    def step(
        self, tokens: Int[Array, "rows"], state: Any, memory: Any
    ) -> tuple[Float[Array, "rows vocab"], Any, Float[Array, "rows source"] | None]:
        """Take one step of the decoder, in the form that search calls."""
        return self.decoder.step(tokens, state, memory)

    def __call__(
        self,
        sources: Int[Array, "batch source"],
        targets: Int[Array, "batch time"],
        source_lens: Int[Array, "batch"] | None = None,
        *,
        deterministic: bool = True,
        keep_masks: KeepMasks | None = None,
        return_weights: bool = True,
    ) -> tuple[Float[Array, "batch time vocab"], Float[Array, "batch time source"] | None]:
        """Return the logits `[B, T, N]` of the token after each given one, and the attention weights `[B, T, S]`.

        `deterministic=False` turns dropout on, which draws from the "dropout" stream; `keep_masks` are given instead.
        """
        of_encoder, of_decoder = keep_masks or KeepMasks()
        memory = self.encode(sources, source_lens, deterministic=deterministic, keep_masks=of_encoder)
        return self.decoder(
            targets, memory, deterministic=deterministic, keep_masks=of_decoder, return_weights=return_weights
        )

    def attention_maps(
        self,
        sources: Int[Array, "batch source"],
        targets: Int[Array, "batch time"],
        source_lens: Int[Array, "batch"] | None = None,
    ) -> AttentionMaps:
        """Return the attention weights of every layer and head while the call reads these arrays."""
        maps: AttentionMaps = self.decoder.attention_maps(targets, self.encode(sources, source_lens))
        return maps._replace(source=self.encoder.attention_maps(sources, source_lens, **self._shared()))

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
        keep_masks: KeepMasks | None = None,
    ) -> tuple[Float[Array, ""], Float[Array, "batch time"]]:
        """Compute the cross entropy of the call's logits without holding them all: see `projected_cross_entropy`.

        Args:
            sources, source_lens: `[B, S]` ids and `[B]`.
            targets: `[B, T]` ids that the decoder reads, the first of them `<bos>`.
            labels: `[B, T]` ids, the next token at each.
            weights: `[B, T]`, the weight of each label in the sum; 0 masks it.
            label_smoothing: see `projected_cross_entropy`.
            deterministic: False turns dropout on, which draws from the "dropout" stream.
            keep_masks: the entries that dropout keeps, given instead of drawn.

        Returns:
            Σ weights · losses, and the nats `[B, T]` without smoothing, which have no gradient.
        """
        of_encoder, of_decoder = keep_masks or KeepMasks()
        memory = self.encode(sources, source_lens, deterministic=deterministic, keep_masks=of_encoder)
        features, _ = self.decoder.features(
            targets, memory, deterministic=deterministic, keep_masks=of_decoder, return_weights=False
        )
        kernel, bias = self.decoder.output_layer()
        return projected_cross_entropy(features, kernel, bias, labels, weights, label_smoothing=label_smoothing)

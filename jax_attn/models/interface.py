"""What training and search ask of a translation model, and nothing else.

`EncoderDecoder` makes a model of any `Encoder` and `Decoder` that fit each other. A new family of models is two modules
with these methods. To share an embedding, both have the fields `vocab_size` and `embed_size`, and the decoder has the
submodule `embedding`. The masks, the memory and the state are the family's own: nobody else looks into them. The call,
the logits and the output layer are in `base_decoder.py` for those who want them.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Float, PRNGKeyArray


class KeepMasks(NamedTuple):
    """The entries that dropout keeps in the whole model. Every mask leads with the batch, so that devices can share it.

    If the masks of encoder or decoder are None, nothing is dropped there.
    """

    encoder: Any = None
    decoder: Any = None


class AttentionMaps(NamedTuple):
    """The attention weights of every layer and head, of one batch; None where a model has none of a kind."""

    cross: Float[Array, "batch layers heads time source"] | None = None
    """What each step of the decoder looks at in the source."""
    source: Float[Array, "batch layers heads source source"] | None = None
    """What each source token looks at in the source."""
    target: Float[Array, "batch layers heads time time"] | None = None
    """What each step of the decoder looks at in the targets that it has read."""
    layer: int = 0
    """The layer of `cross` from which `step` and `features` take their one map: one head of it, or the mean of all."""


@runtime_checkable
class Encoder(Protocol):
    """Reads the source."""

    def __call__(
        self, tokens: Array, valid_lens: Array | None = None, *, deterministic: bool = True, keep_masks: Any = None,
        embedding: Any = None,
    ) -> Any:  # fmt: skip
        """Encode ids `[B, S]` of lengths `[B]`; `embedding` is the decoder's, if both share one."""

    def attention_maps(
        self, tokens: Array, valid_lens: Array | None = None, *, embedding: Any = None
    ) -> Array | None:  # fmt: skip
        """Return the weights of self-attention `[B, layers, heads, S, S]`, None without; see `AttentionMaps`."""

    def draw_keep_masks(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Any:
        """Draw the masks of sources of this shape, without parameters."""


@runtime_checkable
class Decoder(Protocol):
    """Reads the target so far, attends to the source, and predicts the next token."""

    def __call__(
        self, targets: Array, memory: Any, *, deterministic: bool = True, keep_masks: Any = None,
        return_weights: bool = True,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Read the targets `[B, T]`: logits `[B, T, N]` of the token after each, one map of weights `[B, T, S]`."""

    def prepare(self, encoded: Any, valid_lens: Array | None = None) -> Any:
        """Compute the memory once: what all steps share, with one entry for each source."""

    def initial_state(self, memory: Any, max_len: int | None = None) -> Any:
        """Return the state before the first token, see `jax_attn.search.step.Step`; a cache has room for `max_len`."""

    def step(self, tokens: Array, state: Any, memory: Any) -> tuple[Array, Any, Array | None]:
        """Read one token of each row: log p of the next `[rows, N]`, the new state, one map of weights `[rows, S]`."""

    def features(
        self, targets: Array, memory: Any, *, deterministic: bool = True, keep_masks: Any = None,
        return_weights: bool = True,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Read the targets `[B, T]`: what the output layer reads `[B, T, H]`, and one map of weights `[B, T, S]`."""

    def attention_maps(self, targets: Array, memory: Any) -> AttentionMaps:
        """Read the targets as `features` does, and return the weights of every layer and head, without the source's."""

    def output_layer(self) -> tuple[Float[Array, "hidden vocab"], Float[Array, "vocab"]]:
        """Return the kernel and the bias that make logits of the features."""

    def draw_keep_masks(self, key: PRNGKeyArray, shape: tuple[int, ...], source_len: int) -> Any:
        """Draw the masks of targets of this shape, without parameters."""

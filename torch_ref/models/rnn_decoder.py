"""The recurrent decoder with attention.

Source: d2l.ai, "The Bahdanau Attention Mechanism" (query="previous"); Bahdanau et al. 2015; Luong et al. 2015, sections
3.1 and 3.3 (query="new", input feeding); Sennrich et al. 2017, Nematus (query="between"); Press and Wolf 2017 (tied
embeddings); Gal and Ghahramani 2016 (variational dropout).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_ref.functional.dropout import draw_keep_masks, drop
from torch_ref.functional.precision import widen
from torch_ref.functional.softmax import masked_log_softmax
from torch_ref.models.rnn_encoder import CELLS, EncoderOutput
from torch_ref.modules.attention import Attention, Memory, make_attention
from torch_ref.modules.recurrent import State, state_parts


class DecoderMemory(NamedTuple):
    """One entry for each sentence; a search indexes it and never reorders it."""

    attention: Memory  # with attention="none": keys None, values [B, 1, E] the one context, mask None
    initial: tuple[Tensor, ...]  # the initial h, or h and c, each [B, L, H]


class DecoderState(NamedTuple):
    """The part that a search reorders: every tensor leads with batch * beam."""

    rnn: tuple[Any, ...]  # for each layer h [B, H], or (h, c)
    feed: (
        Tensor | None
    )  # [B, H], or [B, embed_size] with tied embeddings: the last attentional vector, with input feeding


class DecoderKeepMasks(NamedTuple):
    """Explicit dropout for teacher forcing. Variational dropout has 1 instead of the T marked by #."""

    layers: Tensor | None = None  # bool [B, L - 1, #T, H]
    attention: Tensor | None = None  # bool [B, T, K]; [B, T, heads, K] for MultiHeadAttention
    words: Tensor | None = None  # bool [B, T, 1]
    embedding: Tensor | None = None  # bool [B, #T, E]
    output: Tensor | None = None  # bool [B, #T, H], or [B, #T, E] with tied embeddings


class Seq2SeqAttentionDecoder(nn.Module):
    """One step, with h the hidden state of the top layer:

    query="previous" (Bahdanau, d2l.ai): context = attend(h[t-1]);  h[t] = rnn([context; embedding]);
        logits = dense(h[t]).
    query="new" (Luong): h[t] = rnn(embedding), or rnn([feed[t-1]; embedding]) with input_feeding;
        context = attend(h[t]);  feed[t] = tanh(attentional([context; h[t]]));  logits = dense(feed[t]).
    query="between" (Nematus): as "new", but after the attention the top layer's state moves once more,
        h[t] = transition(context, h[t]), and this state is what the attentional layer and the next step get.

    attention: a module, or a name in ATTENTIONS, or "none", which takes the encoder's final top state as the context of
    every step. num_heads: for "multi_head". encoder_size: features of
    the encoder's outputs (default num_hiddens).
    The initial state is the encoder's final one layer by layer, its directions concatenated, or with bridge
    tanh(bridge_h(that)), and tanh(bridge_c(...)) for an LSTM's c; the layers share the bridge.
    tie_embeddings: logits = output @ embedding^T + dense_bias, and no dense; the attentional layer then has embed_size
    outputs (query="previous" has none and needs embed_size = num_hiddens).
    dropout acts between the layers and on the attention weights, dropout_words on whole embeddings, dropout_embedding
    on their entries, dropout_output on what the output layer reads (the feed keeps it all). variational drops the same
    entries at all steps. use_bias=False drops the rnn's biases, as the book's LSTM decoder does by accident.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        *,
        dropout_words: float = 0.0,
        dropout_embedding: float = 0.0,
        dropout_output: float = 0.0,
        variational: bool = False,
        cell: str = "gru",
        attention: str | Attention = "additive",
        num_heads: int = 4,
        query: str = "previous",
        input_feeding: bool = False,
        bridge: bool = False,
        tie_embeddings: bool = False,
        use_bias: bool = True,
        encoder_size: int | None = None,
    ) -> None:
        super().__init__()
        if query not in ("previous", "new", "between"):
            raise ValueError(f"query must be previous, new or between; got {query!r}")
        if input_feeding and query == "previous":
            raise ValueError("input_feeding needs query new or between; got previous")
        encoder_size = num_hiddens if encoder_size is None else encoder_size
        if tie_embeddings and query == "previous" and embed_size != num_hiddens:
            raise ValueError(f"tie_embeddings needs embed_size = num_hiddens; got {embed_size} and {num_hiddens}")
        self.output_size = embed_size if tie_embeddings else num_hiddens
        self.num_hiddens, self.query, self.input_feeding = num_hiddens, query, input_feeding
        self.dropout_words = dropout_words
        self.dropout_embedding, self.dropout_output, self.variational = dropout_embedding, dropout_output, variational
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.attention: Any = None
        if isinstance(attention, nn.Module):
            self.attention = attention
        elif attention != "none":
            self.attention = make_attention(attention, num_hiddens, dropout, key_size=encoder_size, num_heads=num_heads)
        context_size = encoder_size if self.attention is None else self.attention.context_size(encoder_size)
        input_size = embed_size
        if query == "previous":
            input_size += context_size
        elif input_feeding:
            input_size += self.output_size
        self.rnn = CELLS[cell](input_size, num_hiddens, num_layers, dropout, use_bias=use_bias)
        self.attentional: Any = None
        if query != "previous":
            self.attentional = nn.Linear(context_size + num_hiddens, self.output_size, bias=False)
        self.transition: Any = CELLS[cell](context_size, num_hiddens, use_bias=use_bias) if query == "between" else None
        self.bridge_h: Any = nn.Linear(encoder_size, num_hiddens) if bridge else None
        self.bridge_c: Any = nn.Linear(encoder_size, num_hiddens) if bridge and cell == "lstm" else None
        self.dense: Any = None if tie_embeddings else nn.Linear(num_hiddens, vocab_size)
        self.dense_bias = nn.Parameter(torch.zeros(vocab_size)) if tie_embeddings else None

    def prepare(
        self, encoder_output: EncoderOutput, valid_lens: Tensor | None = None, mask: Tensor | None = None
    ) -> DecoderMemory:
        """Prepare from the encoder's outputs [B, K, E] and final state what every step needs.

        Shapes: valid_lens [B], mask broadcastable to [B, 1, K].
        """
        outputs, state = encoder_output
        initial = [_by_layer(part, outputs) for part in state_parts(state)]  # [B, L, E]
        top = initial[0][:, -1:]
        if self.bridge_h is not None:
            bridges = (self.bridge_h, self.bridge_c)
            initial = [torch.tanh(bridge(part)) for bridge, part in zip(bridges, initial, strict=False)]
        if self.attention is None:
            # The lengths matter to the encoder alone: its final state is all that is used here.
            return DecoderMemory(Memory(None, top, None), tuple(initial))
        return DecoderMemory(self.attention.prepare(outputs, outputs, valid_lens, mask), tuple(initial))

    def initial_state(self, memory: DecoderMemory, max_len: int | None = None) -> DecoderState:
        layers = tuple(part.transpose(0, 1) for part in memory.initial)  # [L, B, H]
        feed = layers[0].new_zeros(layers[0].shape[1], self.output_size) if self.input_feeding else None
        return DecoderState(_unstack(layers), feed)

    def step(
        self, tokens: Tensor, state: DecoderState, memory: DecoderMemory
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        """tokens [B * beam], state, memory -> (log_probs [B * beam, N], state, weights [B * beam, K] or None)."""
        logits, state, weights = self._step(tokens, state, memory)
        return masked_log_softmax(*widen(logits)), state, weights

    def forward(
        self, targets: Tensor, memory: DecoderMemory, *, keep_masks: DecoderKeepMasks | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: targets [B, T] -> (logits [B, T, N], weights [B, T, K] or None), step by step."""
        logits, _, weights = self.steps(targets, self.initial_state(memory), memory, keep_masks=keep_masks)
        return logits, weights

    def attention_maps(self, targets: Tensor, memory: DecoderMemory) -> tuple[Tensor | None, None, int]:
        """The weights on the source as those of one layer and one head, [B, 1, 1, T, K]; no self-attention."""
        _, weights = self(targets, memory)
        return None if weights is None else weights[:, None, None], None, 0

    def steps(
        self, tokens: Tensor, state: DecoderState, memory: DecoderMemory, *, keep_masks: DecoderKeepMasks | None = None
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        """tokens [B, T], read from a state on -> (logits [B, T, N], the last state, weights [B, T, K] or None)."""
        if keep_masks is None:
            keep_masks = self._draw_keep_masks(tokens) if self.training else DecoderKeepMasks()
        all_logits, all_weights = [], []
        for t in range(tokens.shape[1]):
            logits, state, weights = self._step(tokens[:, t], state, memory, _at(t, keep_masks))
            all_logits.append(logits)
            all_weights.append(weights)
        weights = None if self.attention is None else torch.stack(all_weights, dim=1)
        return torch.stack(all_logits, dim=1), state, weights

    def _draw_keep_masks(self, targets: Tensor) -> DecoderKeepMasks:
        """Draw what nn.GRU, nn.LSTM and the attention do not draw themselves in training."""
        batch, time = targets.shape
        steps, between = 1 if self.variational else time, self.rnn.num_layers - 1
        shapes = (
            (batch, between, steps, self.num_hiddens),
            (batch, time, 1),
            (batch, steps, self.embedding.embedding_dim),
            (batch, steps, self.output_size),
        )
        layers_rate = self.rnn.dropout if self.variational else 0.0
        rates = (layers_rate, self.dropout_words, self.dropout_embedding, self.dropout_output)
        layers, words, embedding, output = draw_keep_masks(shapes, rates, targets.device)
        return DecoderKeepMasks(layers, None, words, embedding, output)

    def _step(
        self,
        tokens: Tensor,
        state: DecoderState,
        memory: DecoderMemory,
        keep: DecoderKeepMasks = DecoderKeepMasks(),  # noqa: B008 (an immutable record of None)
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        embedded = self.embedding(tokens.long())  # [B * beam, embed_size]
        embedded = drop(embedded, self.dropout_words, keep.words)
        embedded = drop(embedded, self.dropout_embedding, keep.embedding)
        if self.query == "previous":
            top = state_parts(state.rnn[-1])[0]
            context, weights = self._context(top, memory, keep.attention)
            output, rnn = self._rnn_step(torch.cat([context, embedded], dim=-1), state.rnn, keep.layers)
            return self._logits(output, keep), DecoderState(rnn, None), weights
        if self.input_feeding:
            embedded = torch.cat([state.feed, embedded], dim=-1)
        hidden, rnn = self._rnn_step(embedded, state.rnn, keep.layers)
        context, weights = self._context(hidden, memory, keep.attention)
        if self.query == "between":
            hidden, top = self.transition(context.unsqueeze(1), None, _stack(rnn[-1:]))
            hidden, rnn = hidden.squeeze(1), (*rnn[:-1], *_unstack(state_parts(top)))
        output = torch.tanh(self.attentional(torch.cat([context, hidden], dim=-1)))
        return self._logits(output, keep), DecoderState(rnn, output if self.input_feeding else None), weights

    def _context(self, query: Tensor, memory: DecoderMemory, keep_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """query [B * beam, H] -> (context [B * beam, C], weights [B * beam, K] or None)."""
        values = memory.attention.values
        # The hypotheses of a sentence are several queries to its one memory.
        queries = query.reshape(values.shape[0], -1, self.num_hiddens)  # [B, beam, H]
        if self.attention is None:
            return values.expand(-1, queries.shape[1], -1).flatten(0, 1), None
        keep_mask = None if keep_mask is None else keep_mask.unsqueeze(-2)  # one query: [B, 1, K]
        context, weights = self.attention.attend(queries, memory.attention, keep_mask)
        if weights.ndim == 4:  # the mean over the heads of MultiHeadAttention, to have one alignment
            weights = weights.mean(1)
        return context.flatten(0, 1), weights.flatten(0, 1)

    def _rnn_step(
        self, inputs: Tensor, rnn: tuple[Any, ...], keep_masks: Tensor | None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """One time step of all layers: inputs [B, D] -> (the top layer's output [B, H], the new carries)."""
        keep_masks = None if keep_masks is None else keep_masks.unsqueeze(2)  # [B, L - 1, 1, H]
        outputs, new_state = self.rnn(inputs.unsqueeze(1), None, _stack(rnn), keep_masks=keep_masks)
        return outputs.squeeze(1), _unstack(state_parts(new_state))

    def _logits(self, output: Tensor, keep: DecoderKeepMasks) -> Tensor:
        output = drop(output, self.dropout_output, keep.output)
        if self.dense is not None:
            return self.dense(output)
        return output @ self.embedding.weight.T + self.dense_bias


def _at(t: int, keep: DecoderKeepMasks) -> DecoderKeepMasks:
    """Return the masks of step t, without the axis of time."""

    def choose(mask: Tensor | None, axis: int = 1) -> Tensor | None:
        return None if mask is None else mask.select(axis, t if mask.shape[axis] > 1 else 0)

    layers, attention, words, embedding, output = keep
    return DecoderKeepMasks(choose(layers, 2), choose(attention), choose(words), choose(embedding), choose(output))


def _by_layer(part: Tensor, outputs: Tensor) -> Tensor:
    """A final state's part [L * directions, B, H'] -> [B, L, directions * H']."""
    directions = outputs.shape[-1] // part.shape[-1]
    return part.unflatten(0, (-1, directions)).permute(2, 0, 1, 3).flatten(2)


def _stack(rnn: tuple[Any, ...]) -> State:
    """A carry for each layer -> the state of nn.GRU or nn.LSTM."""
    parts = tuple(torch.stack(part) for part in zip(*(state_parts(carry) for carry in rnn), strict=True))
    return parts[0] if isinstance(rnn[0], Tensor) else parts


def _unstack(parts: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """State parts [L, B, H] -> a carry for each layer."""
    layers = zip(*(part.unbind(0) for part in parts), strict=True)
    return tuple(carry[0] if len(carry) == 1 else carry for carry in layers)

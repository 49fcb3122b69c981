"""The Transformer's encoder and decoder.

Source: Vaswani et al. 2017; d2l.ai, "The Transformer Architecture"; Xiong et al. 2020 (norm="pre").
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_ref.functional.dropout import drop
from torch_ref.functional.masks import causal_mask, length_mask
from torch_ref.functional.positions import sinusoidal_positions
from torch_ref.functional.precision import widen
from torch_ref.functional.softmax import masked_log_softmax
from torch_ref.modules.attention import Memory, MultiHeadAttention
from torch_ref.modules.feed_forward import FeedForward


class TransformerKeepMasks(NamedTuple):
    """Explicit dropout in a stack of layers; L layers, each of 2 sublayers in the encoder and of 3 in the decoder."""

    embedding: Tensor | None = None  # bool [B, T, D]
    residual: Tensor | None = None  # bool [B, L, sublayers, T, D]
    hidden: Tensor | None = None  # bool [B, L, T, num_hiddens]
    self_attention: Tensor | None = None  # bool [B, L, heads, T, T]
    cross_attention: Tensor | None = None  # bool [B, L, heads, T, S]


class TransformerLayer(nn.Module):
    """x = norm(x + dropout(f(x))) with norm="post", x = x + dropout(f(norm(x))) with norm="pre", for each sublayer f:
    self-attention, attention to the source (decoder), feed-forward network.
    """

    def __init__(
        self,
        embed_size: int,
        num_hiddens: int,
        num_heads: int,
        *,
        reads_source: bool,
        dropout: float,
        dropout_attention: float,
        dropout_hidden: float,
        activation: str,
        norm: str,
        norm_epsilon: float,
        use_bias: bool,
    ) -> None:
        super().__init__()
        self.dropout, self.norm = dropout, norm

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(embed_size, num_heads, dropout_attention, use_bias=use_bias)

        self.self_attention, self.self_attention_norm = attention(), nn.LayerNorm(embed_size, norm_epsilon)
        if reads_source:
            self.cross_attention, self.cross_attention_norm = attention(), nn.LayerNorm(embed_size, norm_epsilon)
        self.feed_forward = FeedForward(
            embed_size, num_hiddens, embed_size, dropout_hidden, activation=activation, use_bias=use_bias
        )
        self.feed_forward_norm = nn.LayerNorm(embed_size, norm_epsilon)

    def forward(
        self,
        x: Tensor,
        valid_lens: Tensor | None,
        mask: Tensor | None,
        memory: Memory | None,
        keep: TransformerKeepMasks,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """x [B, T, D] -> the same, the weights [B, heads, T, T], and those on the source [B, heads, T, S] or None."""
        residual = [None] * 3 if keep.residual is None else [*keep.residual.unbind(1)]
        weights = None

        y = self._before(self.self_attention_norm, x)
        context, own_weights = self.self_attention(y, y, y, valid_lens, mask, keep_mask=keep.self_attention)
        x = self._add(self.self_attention_norm, x, context, residual[0])
        if memory is not None:
            y = self._before(self.cross_attention_norm, x)
            context, weights = self.cross_attention.attend(y, memory, keep.cross_attention)
            x = self._add(self.cross_attention_norm, x, context, residual[1])
        y = self._before(self.feed_forward_norm, x)
        x = self._add(self.feed_forward_norm, x, self.feed_forward(y, keep_mask=keep.hidden), residual[-1])
        return x, own_weights, weights

    def _before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return norm(x) if self.norm == "pre" else x

    def _add(self, norm: nn.LayerNorm, x: Tensor, result: Tensor, keep_mask: Tensor | None) -> Tensor:
        x = x + drop(result, self.dropout, keep_mask, self.training)
        return x if self.norm == "pre" else norm(x)


class TransformerStack(nn.Module):
    """Embeddings with positions, and num_layers layers: the part that encoder and decoder share.

    embed_size D is the size of embeddings and of every layer's result, num_hiddens that within the feed-forward
    networks. dropout acts on the embeddings and on each sublayer's result, dropout_attention on the attention weights,
    dropout_hidden within the feed-forward networks. activation: relu, gelu or silu. norm: post, or pre with a last
    norm. positions: a form of sinusoidal_positions, or learnt, of which there are max_len. use_bias gives biases to
    all dense layers but the output layer. scale_embedding multiplies the embeddings by sqrt(D).
    """

    reads_source = False

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        num_hiddens: int,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.0,
        *,
        dropout_attention: float = 0.0,
        dropout_hidden: float = 0.0,
        activation: str = "relu",
        norm: str = "post",
        norm_epsilon: float = 1e-5,
        positions: str = "interleaved",
        max_len: int = 512,
        scale_embedding: bool = True,
        use_bias: bool = True,
    ) -> None:
        super().__init__()
        if norm not in ("post", "pre"):
            raise ValueError(f"norm must be post or pre; got {norm!r}")
        if positions not in ("interleaved", "halves", "opennmt", "fairseq", "learnt"):
            raise ValueError(f"positions must be interleaved, halves, opennmt, fairseq or learnt; got {positions!r}")
        self.embed_size, self.num_hiddens, self.num_heads = embed_size, num_hiddens, num_heads
        self.positions, self.scale_embedding, self.dropout = positions, scale_embedding, dropout
        self.embedding: Any = nn.Embedding(vocab_size, embed_size)
        if positions == "learnt":
            self.position_embedding = nn.Embedding(max_len, embed_size)
        self.layers = nn.ModuleList(
            TransformerLayer(
                embed_size,
                num_hiddens,
                num_heads,
                reads_source=self.reads_source,
                dropout=dropout,
                dropout_attention=dropout_attention,
                dropout_hidden=dropout_hidden,
                activation=activation,
                norm=norm,
                norm_epsilon=norm_epsilon,
                use_bias=use_bias,
            )
            for _ in range(num_layers)
        )
        self.last_norm: Any = nn.LayerNorm(embed_size, norm_epsilon) if norm == "pre" else None
        self._draw_parameters()

    def _draw_parameters(self) -> None:
        """Draw matrices as by Xavier and embeddings from N(0, 1/D), as the paper's code does."""
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.embed_size**-0.5)

    def _embed(self, tokens: Tensor, embedding: Any, keep_mask: Tensor | None) -> Tensor:
        x, length = embedding(tokens.long()), tokens.shape[1]
        if self.scale_embedding:
            x = x * self.embed_size**0.5
        if self.positions == "learnt":
            positions = self.position_embedding(torch.arange(length, device=tokens.device))
        else:
            positions = sinusoidal_positions(length, self.embed_size, x.dtype, form=self.positions, device=x.device)
        return drop(x + positions, self.dropout, keep_mask, self.training)

    def _run(
        self, x: Tensor, lens: Tensor | None, mask: Tensor | None, memory: Any, keep: TransformerKeepMasks
    ) -> tuple[Tensor, list[Any], list[Any]]:
        """Run all layers: the last result [B, T, D], and each layer's weights on its own side and on the source."""
        own_weights, weights = [], []
        for i, layer in enumerate(self.layers):
            of_layer = TransformerKeepMasks(None, *(None if masks is None else masks[:, i] for masks in keep[1:]))
            x, own, on_source = layer(x, lens, mask, None if memory is None else memory[i], of_layer)
            own_weights.append(own)
            weights.append(on_source)
        return x if self.last_norm is None else self.last_norm(x), own_weights, weights


class TransformerEncoder(TransformerStack):
    """Shapes: tokens [B, T], valid_lens [B] -> [B, T, D]. A given `embedding` is used instead of its own."""

    def forward(
        self,
        tokens: Tensor,
        valid_lens: Tensor | None = None,
        *,
        keep_masks: TransformerKeepMasks | None = None,
        embedding: nn.Embedding | None = None,
    ) -> Tensor:
        return self._encode(tokens, valid_lens, embedding, keep_masks)[0]

    def attention_maps(
        self, tokens: Tensor, valid_lens: Tensor | None = None, *, embedding: nn.Embedding | None = None
    ) -> Tensor:
        """The weights of every layer and head, [B, layers, heads, T, T]."""
        return torch.stack(self._encode(tokens, valid_lens, embedding)[1], 1)

    def _encode(
        self,
        tokens: Tensor,
        valid_lens: Tensor | None,
        embedding: nn.Embedding | None,
        keep_masks: TransformerKeepMasks | None = None,
    ) -> tuple[Tensor, list[Any], list[Any]]:
        keep = keep_masks or TransformerKeepMasks()
        x = self._embed(tokens, embedding or self.embedding, keep.embedding)
        if valid_lens is not None:
            x = torch.where(length_mask(valid_lens, tokens.shape[1]).unsqueeze(-1), x, 0)  # 0 * NaN is NaN
        return self._run(x, valid_lens, None, None, keep)


class TransformerDecoder(TransformerStack):
    """Shapes: targets [B, T] -> logits [B, T, N], weights [B, T, S] of one layer, and one head or the mean of all.

    tie_embeddings: logits = output @ embedding^T (+ dense_bias, with output_bias), and no dense.
    start_token: read first instead of the token that is given.
    fixed_start: the first token's embedding gets no gradient. A step never produces the tokens of never; with
    renormalize the others' probabilities sum to 1.
    A step computes all earlier positions again, since its state is the tokens that were read.
    """

    reads_source = True

    def __init__(
        self,
        vocab_size: int,
        *args: Any,
        tie_embeddings: bool = False,
        output_bias: bool = True,
        start_token: int | None = None,
        fixed_start: bool = False,
        never: tuple[int, ...] = (),
        renormalize: bool = True,
        alignment_layer: int = -1,
        alignment_head: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(vocab_size, *args, **options)
        if any(not 0 <= token < vocab_size for token in never):
            raise ValueError(f"never must be ids in [0, {vocab_size}); got {never}")
        self.alignment_layer, self.alignment_head = alignment_layer, alignment_head
        self.start_token, self.fixed_start = start_token, fixed_start
        self.never, self.renormalize = list(never), renormalize
        self.dense: Any = None
        self.dense_bias: Any = None
        if not tie_embeddings:
            self.dense = nn.Linear(self.embed_size, vocab_size, bias=output_bias)
            nn.init.xavier_uniform_(self.dense.weight)
        elif output_bias:
            self.dense_bias = nn.Parameter(torch.zeros(vocab_size))

    def prepare(self, encoded: Tensor, valid_lens: Tensor | None = None) -> tuple[Memory, ...]:
        """Project encoded [B, S, D] to each layer's keys and values."""
        return tuple(layer.cross_attention.prepare(encoded, encoded, valid_lens) for layer in self.layers)

    def forward(
        self, targets: Tensor, memory: tuple[Memory, ...], *, keep_masks: TransformerKeepMasks | None = None
    ) -> tuple[Tensor, Tensor]:
        x, _, weights = self._decode(targets, memory, keep_masks)
        of_layer = weights[self.alignment_layer]  # [B, heads, T, S]
        chosen = of_layer.mean(1) if self.alignment_head is None else of_layer[:, self.alignment_head]
        return self._logits(x), chosen

    def attention_maps(self, targets: Tensor, memory: tuple[Memory, ...]) -> tuple[Tensor, Tensor, int]:
        """The weights of every layer and head on the source and on the targets, and the chosen layer."""
        _, own_weights, weights = self._decode(targets, memory)
        return torch.stack(weights, 1), torch.stack(own_weights, 1), self.alignment_layer % len(self.layers)

    def _decode(
        self, targets: Tensor, memory: tuple[Memory, ...], keep_masks: TransformerKeepMasks | None = None
    ) -> tuple[Tensor, list[Any], list[Any]]:
        keep = keep_masks or TransformerKeepMasks()
        x = self._embed(targets, self._embed_targets, keep.embedding)
        mask = causal_mask(targets.shape[1], device=targets.device)
        return self._run(x, None, mask, memory, keep)

    def _embed_targets(self, targets: Tensor) -> Tensor:
        if self.start_token is not None:
            targets = torch.cat([torch.full_like(targets[:, :1], self.start_token), targets[:, 1:]], 1)
        x = self.embedding(targets)
        return torch.cat([x[:, :1].detach(), x[:, 1:]], 1) if self.fixed_start else x

    def _logits(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            return self.dense(x)
        return nn.functional.linear(x, self.embedding.weight, self.dense_bias)

    def initial_state(self, memory: tuple[Memory, ...], max_len: int | None = None) -> Tensor:
        """The tokens that were read, [B, 0]."""
        sentences = memory[0].values.shape[0]
        return torch.zeros(sentences, 0, dtype=torch.int64, device=memory[0].values.device)

    def step(self, tokens: Tensor, state: Tensor, memory: tuple[Memory, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """tokens [B * beam] -> log_probs [B * beam, N], the new state, weights [B * beam, S]."""
        state = torch.cat([state, tokens.unsqueeze(1).long()], dim=1)
        beam = len(tokens) // memory[0].values.shape[0]
        repeated = [
            Memory(*(None if part is None else part.repeat_interleave(beam, 0) for part in of_layer))
            for of_layer in memory
        ]
        logits, weights = self(state, tuple(repeated))
        (last,) = widen(logits[:, -1])
        never = torch.tensor(self.never, dtype=torch.int64, device=last.device)
        log_probs = masked_log_softmax(last.index_fill(1, never, -torch.inf) if self.renormalize else last)
        return log_probs.index_fill(1, never, -torch.inf), state, weights[:, -1]

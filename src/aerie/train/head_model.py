"""The trainable EAGLE-3 head, and its training-time test: drafting unrolled over all positions.

Row i pairs the target's states of position i with the token behind it, and stands for a draft
that begins there. Step 0 reads the target's states; step k reads what step k - 1 returned for the
same row, and the k-th token behind it. Its query sits at position i + k and sees

    the keys of step 0 of rows up to i            (made from the target's states, as in decoding)
    the keys of steps 1..k of its own row         (made from the head's states, the chain itself)

both cut by the sliding window. So all positions are drafted at once, and each exactly as a
decoder would draft it. Attention over the first kind is banded: blocks of one window, each with
the block before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from aerie.train.target_model import (
    TargetShape,
    Turn,
    TurnTable,
    Weights,
    finish,
    linear,
    matrix,
    rms_norm,
    rotate,
)

CHAIN = 8  # columns kept for a row's own chain; a multiple of 8 keeps rows aligned


@dataclass(frozen=True)
class HeadShape:
    """Sizes and conventions of the head."""

    hidden: int
    target_hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int  # the target's
    draft_vocab_size: int
    taps: tuple[int, ...]  # boundaries of the target
    window: int
    norm_eps: float
    rope_theta: float


def head_shape(
    target: TargetShape, taps: tuple[int, ...], mlp_width: int, window: int
) -> HeadShape:
    """A head as wide as its target, with the same attention sizes and the whole vocabulary."""
    return HeadShape(
        hidden=target.hidden,
        target_hidden=target.hidden,
        n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads,
        head_dim=target.head_dim,
        mlp_width=mlp_width,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        taps=taps,
        window=window,
        norm_eps=target.norm_eps,
        rope_theta=target.rope_theta,
    )


class HeadLayer(nn.Module):
    """Weights of the one layer; q, k and v read an embedding beside a state."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        hidden, query = shape.hidden, shape.n_heads * shape.head_dim
        key = shape.n_kv_heads * shape.head_dim
        self.input_layernorm = nn.Parameter(torch.ones(hidden))  # of the embedding
        self.hidden_norm = nn.Parameter(torch.ones(hidden))
        self.q_proj = matrix(query, 2 * hidden)
        self.k_proj = matrix(key, 2 * hidden)
        self.v_proj = matrix(key, 2 * hidden)
        self.o_proj = nn.Parameter(torch.zeros(hidden, query))
        self.post_attention_layernorm = nn.Parameter(torch.ones(hidden))
        self.gate_proj = matrix(shape.mlp_width, hidden)
        self.up_proj = matrix(shape.mlp_width, hidden)
        self.down_proj = nn.Parameter(torch.zeros(hidden, shape.mlp_width))

    def project_weights(self) -> Weights:
        """What `project_pair` takes."""
        norms = (self.input_layernorm, self.hidden_norm)
        return (*norms, self.q_proj, self.k_proj, self.v_proj)

    def finish_weights(self) -> Weights:
        """What `finish` takes."""
        norm, gate, up = self.post_attention_layernorm, self.gate_proj, self.up_proj
        return (self.o_proj, norm, gate, up, self.down_proj)


class HeadModel(nn.Module):
    """Weights of the head; the embedding is the target's and stays as it is."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        self.fc = nn.Parameter(torch.randn(hidden, len(shape.taps) * shape.target_hidden) * 0.02)
        if hidden == shape.target_hidden:
            # Begin from the deepest state: it is the one that knows most of the next token.
            with torch.no_grad():
                self.fc[:, -hidden:] = torch.eye(hidden)
        self.midlayer = HeadLayer(shape)
        self.norm = nn.Parameter(torch.ones(hidden))
        self.lm_head = nn.Parameter(torch.randn(shape.draft_vocab_size, hidden) * 0.02)

    @torch.no_grad()
    def begin_from(self, norm: Tensor, lm_head: Tensor) -> None:
        """Take over the target's final norm and LM head, which read the same stream."""
        self.norm.copy_(norm)
        self.lm_head.copy_(lm_head)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [rows, draft vocab] of states [rows, hidden], in their dtype."""
        return linear(rms_norm(hidden, self.norm, self.shape.norm_eps), self.lm_head)


def project_pair(
    x: Tensor, embedded: Tensor, weights: Weights, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Embedding and state side by side, embedding first: rotated queries, keys, and values."""
    embedding_norm, hidden_norm, query, key, value = weights
    normed = rms_norm(embedded.to(x.dtype), embedding_norm, eps), rms_norm(x, hidden_norm, eps)
    joined = torch.cat(normed, dim=-1)
    head_dim = 2 * cos.shape[-1]
    turn = Turn(cos, sin)
    queries, keys, values = (
        linear(joined, weight).unflatten(-1, (-1, head_dim)) for weight in (query, key, value)
    )
    return rotate(queries, turn), rotate(keys, turn), values


@dataclass(frozen=True, eq=False)
class Band:
    """Keys and values of step 0 by block: each block with the one before it."""

    keys: Tensor  # [blocks, kv_heads, 2 * size, head_dim]
    values: Tensor  # [blocks, kv_heads, 2 * size, head_dim]


def band_attention(
    queries: Tensor, keys: Tensor, values: Tensor, chain: Tensor, bias: Tensor
) -> Tensor:
    """Attention of [blocks, kv_heads, group, size, dim] queries over band and chain.

    keys and values [blocks, kv_heads, 2 * size, dim]; chain [2, blocks, kv_heads, size, CHAIN,
    dim] holds the rows' own keys and values; bias [blocks, 1, 1, size, 2 * size + CHAIN].
    """
    n_blocks, n_kv_heads, group, size, dim = queries.shape
    flat = queries.reshape(n_blocks, n_kv_heads, group * size, dim)
    far = (flat @ keys.mT).view(n_blocks, n_kv_heads, group, size, 2 * size)
    near = (queries.unsqueeze(-2) * chain[0].unsqueeze(2)).sum(-1)
    scores = torch.cat([far, near], dim=-1) * dim**-0.5 + bias
    shares = torch.softmax(scores.float(), dim=-1).to(values.dtype)
    band_shares = shares[..., : 2 * size].reshape(n_blocks, n_kv_heads, group * size, 2 * size)
    out = (band_shares @ values).view(queries.shape)
    return out + (shares[..., 2 * size :].unsqueeze(-1) * chain[1].unsqueeze(2)).sum(-2)


@dataclass(frozen=True)
class HeadPieces:
    """The parts of an unrolled step; compiled ones may be put in their place."""

    project_pair: Callable[..., tuple[Tensor, Tensor, Tensor]] = project_pair
    finish: Callable[..., Tensor] = finish
    band_attention: Callable[..., Tensor] = band_attention


PLAIN_HEAD = HeadPieces()


class HeadRunner:
    """Unrolls a head over whole sequences; embedding [vocab, hidden] is the target's."""

    def __init__(
        self, model: HeadModel, embedding: Tensor, dtype: torch.dtype, pieces: HeadPieces
    ) -> None:
        self.model, self.embedding, self.dtype, self.pieces = model, embedding, dtype, pieces
        shape = model.shape
        rotary = TargetShape(head_dim=shape.head_dim, rope_theta=shape.rope_theta)
        self.turns = TurnTable(rotary, embedding.device)
        self._turns: dict[tuple[int, int, int], Turn] = {}
        self._biases: dict[tuple[int, int, int], Tensor] = {}

    def unroll(self, taps: Tensor, tokens: Tensor, n_steps: int) -> Iterator[Tensor]:
        """States after each step, [rows, hidden] for the rows of [batch, length] tokens.

        `taps` is [rows, captures * target hidden]. The length must be a multiple of the window.
        Rows too close to the end to have a k-th token behind them get token 0 there.
        """
        shape, layer = self.model.shape, self.model.midlayer
        batch, length = tokens.shape
        assert length % shape.window == 0, f"length {length}, window {shape.window}"
        x = linear(taps.to(self.dtype), self.model.fc)
        band: Band | None = None
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(n_steps):
            token = functional.pad(tokens[:, 1 + step :], (0, 1 + step)).flatten()
            embedded = functional.embedding(token, self.embedding)
            turn = self._turn(batch, length, step)
            queries, keys, values = self.pieces.project_pair(
                x, embedded, layer.project_weights(), turn.cos, turn.sin, shape.norm_eps
            )
            if band is None:
                band = Band(*(self._band(t, batch) for t in (keys, values)))
            else:
                own.append((self._blocks(keys), self._blocks(values)))
            attended = self._attend(queries, band, own, self._bias(batch, length, step))
            weights = layer.finish_weights()
            x = self.pieces.finish(x, attended, weights, shape.norm_eps)
            yield x

    def _attend(
        self, queries: Tensor, band: Band, own: list[tuple[Tensor, Tensor]], bias: Tensor
    ) -> Tensor:
        """[rows, heads, dim] to [rows, heads * dim]."""
        n_kv_heads = self.model.shape.n_kv_heads
        blocked = self._blocks(queries).unflatten(1, (n_kv_heads, -1))
        empty = torch.zeros_like(blocked[:, :, 0])
        padding = [empty] * (CHAIN - len(own))
        chain = torch.stack(
            [
                torch.stack([keys for keys, _ in own] + padding, dim=-2),
                torch.stack([values for _, values in own] + padding, dim=-2),
            ]
        )
        out = self.pieces.band_attention(blocked, band.keys, band.values, chain, bias)
        return out.permute(0, 3, 1, 2, 4).reshape(queries.shape[0], -1)

    def _blocks(self, rows: Tensor) -> Tensor:
        """[rows, heads, dim] to [blocks, heads, size, dim]."""
        blocks: Tensor = rows.unflatten(0, (-1, self.model.shape.window)).transpose(1, 2)
        return blocks

    def _band(self, rows: Tensor, batch: int) -> Tensor:
        """Every block behind the one before it; the first of a sequence behind zeros."""
        blocks = self._blocks(rows).unflatten(0, (batch, -1))
        before = torch.cat([torch.zeros_like(blocks[:, :1]), blocks[:, :-1]], dim=1)
        return torch.cat([before, blocks], dim=3).flatten(0, 1)

    def _turn(self, batch: int, length: int, step: int) -> Turn:
        """Rotation of rows at their position plus the step."""
        key = (batch, length, step)
        if key not in self._turns:
            positions = torch.arange(length, device=self.embedding.device) + step
            self._turns[key] = self.turns.at(positions.repeat(batch))
        return self._turns[key]

    def _bias(self, batch: int, length: int, step: int) -> Tensor:
        """0 where a row may look, -inf elsewhere: [blocks, 1, 1, size, 2 * size + CHAIN]."""
        key = (batch, length, step)
        if key not in self._biases:
            size = self.model.shape.window
            is_seen = visible(size, step, self.embedding.device)
            bias = torch.zeros(is_seen.shape, device=is_seen.device).masked_fill(
                ~is_seen, -torch.inf
            )
            is_first = torch.arange(batch * (length // size), device=is_seen.device)
            index = (is_first % (length // size) > 0).long()
            self._biases[key] = bias.to(self.dtype)[index].unsqueeze(1).unsqueeze(1)
        return self._biases[key]


def visible(size: int, step: int, device: torch.device) -> Tensor:
    """What rows of a first block [0] and of a later block [1] see: [2, size, 2 * size + CHAIN]."""
    row = torch.arange(size, device=device)[:, None]
    column = torch.arange(2 * size, device=device) - size  # relative to the block's first row
    seen = (column <= row) & (column > row + step - size)
    chain = (torch.arange(CHAIN, device=device) < step).expand(size, CHAIN)
    later = torch.cat([seen, chain], dim=-1)
    first = torch.cat([seen & (column >= 0), chain], dim=-1)
    return torch.stack([first, later])

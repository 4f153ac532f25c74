"""The trainable target: a Llama-style decoder over whole sequences, in pieces that compile well.

A step's tokens are flat rows, so the row count is the same for 136 sequences of 1,024 as for 4 of
34,816. Everything but attention works on rows and compiles once; attention sees [batch, length].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from aerie.models.rope import RopeSettings, inverse_frequencies

Weights = tuple[Tensor, ...]


@dataclass(frozen=True)
class TargetShape:
    """Sizes of the target; the defaults are the shipped one's."""

    vocab_size: int = 4096
    hidden: int = 256
    n_layers: int = 8
    n_heads: int = 4
    n_kv_heads: int = 1
    head_dim: int = 128
    mlp_width: int = 1024
    norm_eps: float = 1e-5
    rope_theta: float = 500_000.0
    max_positions: int = 34_816  # 32K of context and 2K of text written behind it


@dataclass(frozen=True, eq=False)
class Turn:
    """Cosine and sine of flat rows, [rows, 1, head_dim / 2] f32."""

    cos: Tensor
    sin: Tensor

    def rows(self, chosen: slice) -> Turn:
        """A part of the rows."""
        return Turn(self.cos[chosen], self.sin[chosen])


class Layer(nn.Module):
    """Weights of one decoder layer; how they are used is in the pieces below."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        hidden, query = shape.hidden, shape.n_heads * shape.head_dim
        key = shape.n_kv_heads * shape.head_dim
        self.input_layernorm = nn.Parameter(torch.ones(hidden))
        self.q_proj = matrix(query, hidden)
        self.k_proj = matrix(key, hidden)
        self.v_proj = matrix(key, hidden)
        # Blocks begin as the identity: what they write is zero until it has been learned.
        self.o_proj = nn.Parameter(torch.zeros(hidden, query))
        self.post_attention_layernorm = nn.Parameter(torch.ones(hidden))
        self.gate_proj = matrix(shape.mlp_width, hidden)
        self.up_proj = matrix(shape.mlp_width, hidden)
        self.down_proj = nn.Parameter(torch.zeros(hidden, shape.mlp_width))

    def project_weights(self) -> Weights:
        """What `project` takes."""
        return (self.input_layernorm, self.q_proj, self.k_proj, self.v_proj)

    def finish_weights(self) -> Weights:
        """What `finish` takes."""
        norm, gate, up = self.post_attention_layernorm, self.gate_proj, self.up_proj
        return (self.o_proj, norm, gate, up, self.down_proj)


class TargetModel(nn.Module):
    """Embedding, layers, final norm and an untied head (inflation refuses tied ones)."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Parameter(torch.randn(shape.vocab_size, shape.hidden) * 0.1)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.lm_head = nn.Parameter(torch.randn(shape.vocab_size, shape.hidden) * 0.02)

    def decoder_layers(self) -> Sequence[Layer]:
        """The layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]


def matrix(n_out: int, n_in: int) -> nn.Parameter:
    """A weight [n_out, n_in] that keeps the variance of its input."""
    return nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32, rounded once."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Masters are float32, products run in the activations' dtype."""
    return functional.linear(x, weight.to(x.dtype))


def rotate(heads: Tensor, turn: Turn) -> Tensor:
    """Rotate [rows, heads, head_dim] by pairs (i, i + head_dim / 2)."""
    first, second = heads.float().chunk(2, dim=-1)
    rotated = (first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin)
    return torch.cat(rotated, dim=-1).to(heads.dtype)


def project(
    x: Tensor, weights: Weights, cos: Tensor, sin: Tensor, head_dim: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise and project rows [rows, hidden]: rotated queries and keys, and values."""
    norm, query, key, value = weights
    normed = rms_norm(x, norm, eps)
    turn = Turn(cos, sin)
    queries = linear(normed, query).unflatten(-1, (-1, head_dim))
    keys = linear(normed, key).unflatten(-1, (-1, head_dim))
    values = linear(normed, value).unflatten(-1, (-1, head_dim))
    return rotate(queries, turn), rotate(keys, turn), values


def finish(x: Tensor, attended: Tensor, weights: Weights, eps: float) -> Tensor:
    """The rest of a layer after attention; `attended` is [rows, heads * head_dim]."""
    output, norm, gate, up, down = weights
    x = x + linear(attended, output)
    normed = rms_norm(x, norm, eps)
    return x + linear(functional.silu(linear(normed, gate)) * linear(normed, up), down)


def mean_loss(x: Tensor, norm: Tensor, head: Tensor, targets: Tensor, eps: float) -> Tensor:
    """Mean cross-entropy in nats of rows [rows, hidden] against `targets` [rows]."""
    logits = linear(rms_norm(x, norm, eps), head)
    return functional.cross_entropy(logits.float(), targets)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Keep = Callable[[int, Tensor, Tensor], None]


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[batch, length, heads, dim] to the same; each row sees itself and what came before."""
    q, k, v = (t.transpose(1, 2) for t in (queries, keys, values))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attended.transpose(1, 2)


@dataclass(frozen=True)
class Pieces:
    """The parts of a forward pass; compiled ones may be put in their place."""

    project: Callable[..., tuple[Tensor, Tensor, Tensor]] = project
    finish: Callable[..., Tensor] = finish
    mean_loss: Callable[..., Tensor] = mean_loss
    attend: Attend = causal_attention


PLAIN = Pieces()


@dataclass(frozen=True, eq=False)
class Hidden:
    """The residual stream of a forward pass over [batch, length] tokens."""

    last: Tensor  # [rows, hidden], before the final norm
    taps: tuple[Tensor, ...]  # each [rows, hidden]


class TurnTable:
    """Rotations of whole sequences, kept per (batch, length)."""

    def __init__(self, shape: TargetShape, device: torch.device | str) -> None:
        settings = RopeSettings("default", shape.rope_theta)
        self.frequencies = inverse_frequencies(settings, shape.head_dim).to(device)
        self._kept: dict[tuple[int, int], Turn] = {}

    def at(self, positions: Tensor) -> Turn:
        """Rotation of rows at `positions` [rows]."""
        angles = positions.float()[:, None, None] * self.frequencies
        return Turn(angles.cos(), angles.sin())

    def sequences(self, batch: int, length: int) -> Turn:
        """Rotation of `batch` sequences of `length`, flat."""
        if (batch, length) not in self._kept:
            positions = torch.arange(length, device=self.frequencies.device).repeat(batch)
            self._kept[batch, length] = self.at(positions)
        return self._kept[batch, length]


@dataclass(frozen=True, eq=False)
class TargetRunner:
    """A model with the way it is run: rotations, pieces, dtype of the activations."""

    model: TargetModel
    turns: TurnTable
    pieces: Pieces
    dtype: torch.dtype

    def hidden(
        self, tokens: Tensor, taps: tuple[int, ...] = (), keep: Keep | None = None
    ) -> Hidden:
        """Run [batch, length] tokens; tap b is the stream entering layer b, N after the last.

        `keep` is told every layer's keys and values, [batch, length, kv_heads, head_dim].
        """
        batch, length = tokens.shape
        shape = self.model.shape
        turn = self.turns.sequences(batch, length)
        x = functional.embedding(tokens.flatten(), self.model.embed_tokens).to(self.dtype)
        kept = {0: x}
        sizes = (shape.head_dim, shape.norm_eps)
        for index, layer in enumerate(self.model.decoder_layers()):
            rows = self.pieces.project(x, layer.project_weights(), turn.cos, turn.sin, *sizes)
            queries, keys, values = (t.unflatten(0, (batch, length)) for t in rows)
            if keep is not None:
                keep(index, keys, values)
            attended = self.pieces.attend(queries, keys, values)
            flat = attended.reshape(batch * length, -1)
            x = self.pieces.finish(x, flat, layer.finish_weights(), shape.norm_eps)
            if index + 1 in taps:
                kept[index + 1] = x
        return Hidden(x, tuple(kept[b] for b in taps))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of [batch, length] tokens against the tokens that follow."""
        model = self.model
        x = self.hidden(tokens).last
        weights = (model.norm, model.lm_head, targets.flatten())
        return self.pieces.mean_loss(x, *weights, model.shape.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [rows, vocab] of rows before the final norm."""
        return linear(rms_norm(x, self.model.norm, self.model.shape.norm_eps), self.model.lm_head)


def plain_runner(model: TargetModel) -> TargetRunner:
    """Run as the weights are stored, nothing compiled."""
    weight = model.embed_tokens
    return TargetRunner(model, TurnTable(model.shape, weight.device), PLAIN, weight.dtype)

"""Lets the target write: batched continuation with a static KV cache, replayed as a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from aerie.train.progress import Progress
from aerie.train.target_model import TargetRunner, finish, project

MULTIPLIER = 6364136223846793005
PREFILL_ROWS = 1 << 18  # rows of one prefill pass; bounds the memory of its activations


@dataclass(frozen=True)
class WritingSize:
    """How much is written at once."""

    batch: int
    longest: int  # prompt and continuation together
    n_new: int


@dataclass(frozen=True, eq=False)
class _Buffers:
    """What a step reads and writes in place."""

    token: Tensor  # [batch] i64, read next
    position: Tensor  # [batch] i64, of that token
    temperature: Tensor  # [batch, 1] f32
    written: Tensor  # [batch, n_new] i64
    count: Tensor  # [1] i64, tokens written


def _buffers(size: WritingSize, device: torch.device) -> _Buffers:
    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.long, device=device)

    return _Buffers(
        token=integers(size.batch),
        position=integers(size.batch),
        temperature=torch.zeros(size.batch, 1, device=device),
        written=integers(size.batch, size.n_new),
        count=integers(1),
    )


class Writer:
    """Continues a batch of prompts token by token, all rows in step.

    Every buffer is allocated once: a captured step reads and writes the same addresses each time.
    """

    def __init__(self, runner: TargetRunner, size: WritingSize, taps: tuple[int, ...] = ()) -> None:
        shape, weight = runner.model.shape, runner.model.embed_tokens
        self.runner, self.size, self.taps = runner, size, taps
        # States at `taps` as they come by: of the prompts' rows, then of one step after another.
        self.captured: list[Tensor] = []
        cache = (shape.n_layers, size.batch, shape.n_kv_heads, size.longest, shape.head_dim)
        self.keys = torch.zeros(cache, dtype=runner.dtype, device=weight.device)
        self.values = torch.zeros_like(self.keys)
        self.rows = torch.arange(size.batch, device=weight.device)
        self.columns = torch.arange(size.longest, device=weight.device)
        self.state = _buffers(size, weight.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.inference_mode()
    def write(self, prompts: Tensor, lengths: Tensor, temperature: Tensor) -> Tensor:
        """Continue [batch, longest prompt] prompts, each `lengths` [batch] long: [batch, n_new].

        A temperature of 0 is greedy; rows may differ.
        """
        self.state.temperature.copy_(temperature[:, None])
        last = self._prefill(prompts, lengths)
        self.state.count.zero_()
        self.state.position.copy_(lengths)
        self._choose(last)
        for _ in range(self.size.n_new - 1):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
        return self.state.written.clone()

    @torch.inference_mode()
    def capture(self, progress: Progress) -> None:
        """Record one step as a graph; without one, writing is the same but slower."""
        if not self.state.token.is_cuda or self.taps:
            return
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.state.count.zero_()
                    self.state.position.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            self.graph = graph
        except RuntimeError as error:
            progress.say(f"writing without a graph: {error!r:.200}")

    def _prefill(self, prompts: Tensor, lengths: Tensor) -> Tensor:
        """Fill the caches; logits [batch, vocab] behind each prompt.

        Prompts are padded on the right: causal attention never looks there, and decoding writes
        over the padded places before it reads them.
        """
        n_prompt = prompts.shape[1]
        at_once = max(1, PREFILL_ROWS // n_prompt)
        out = []
        for first in range(0, prompts.shape[0], at_once):
            part = slice(first, min(prompts.shape[0], first + at_once))

            def keep(layer: int, keys: Tensor, values: Tensor, part: slice = part) -> None:
                self.keys[layer, part, :, :n_prompt] = keys.transpose(1, 2)
                self.values[layer, part, :, :n_prompt] = values.transpose(1, 2)

            run = self.runner.hidden(prompts[part], self.taps, keep)
            if self.taps:
                self.captured.append(torch.cat(run.taps, dim=-1))
            ends = (
                lengths[part]
                - 1
                + n_prompt * torch.arange(part.stop - part.start, device=prompts.device)
            )
            out.append(self.runner.logits(run.last[ends]))
        return torch.cat(out)

    def _step(self) -> None:
        """Run the token at `position` of every row and choose the next one."""
        model, shape = self.runner.model, self.runner.model.shape
        turn = self.runner.turns.at(self.state.position)
        hidden_columns = (self.columns > self.state.position[:, None])[:, None, None]
        x = functional.embedding(self.state.token, model.embed_tokens).to(self.runner.dtype)
        kept: list[Tensor] = []
        for index, layer in enumerate(model.decoder_layers()):
            queries, keys, values = project(
                x, layer.project_weights(), turn.cos, turn.sin, shape.head_dim, shape.norm_eps
            )
            self.keys[index, self.rows, :, self.state.position] = keys
            self.values[index, self.rows, :, self.state.position] = values
            grouped = queries.unflatten(1, (shape.n_kv_heads, -1))
            scores = (grouped @ self.keys[index].mT).float() * shape.head_dim**-0.5
            shares = torch.softmax(scores.masked_fill(hidden_columns, -torch.inf), dim=-1)
            attended = (shares.to(x.dtype) @ self.values[index]).flatten(1)
            x = finish(x, attended, layer.finish_weights(), shape.norm_eps)
            if index + 1 in self.taps:
                kept.append(x)
        if kept:
            self.captured.append(torch.cat(kept, dim=-1))
        self.state.position.add_(1)
        self._choose(self.runner.logits(x))

    def _choose(self, logits: Tensor) -> None:
        """Gumbel's trick: the largest of logits + temperature * noise is a sample."""
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
        noise = -noise.clamp_(min=1e-20).log_()  # never infinite: a greedy row multiplies it by 0
        self.state.token.copy_((logits.float() + self.state.temperature * noise).argmax(-1))
        self.state.written.index_copy_(1, self.state.count, self.state.token[:, None])
        self.state.count.add_(1)


@torch.inference_mode()
def repeated_share(tokens: Tensor, n: int = 8) -> Tensor:
    """Share of each row's n-grams that stood in the row before: [rows, length] to [rows]."""
    windows = tokens.unfold(1, n, 1)
    # A polynomial hash that wraps around: 64 bits are enough to tell a few hundred apart.
    factors = torch.tensor([pow(MULTIPLIER, i, 1 << 63) for i in range(n)], device=tokens.device)
    ordered = (windows * factors).sum(-1).sort(dim=1).values
    n_repeated = (ordered[:, 1:] == ordered[:, :-1]).sum(dim=1)
    return n_repeated.float() / windows.shape[1]

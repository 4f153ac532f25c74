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


class Writer:
    """Continues a batch of prompts token by token, all rows in step.

    Every buffer is allocated once: a captured step reads and writes the same addresses each time.
    """

    def __init__(self, runner: TargetRunner, size: WritingSize) -> None:
        shape, weight = runner.model.shape, runner.model.embed_tokens
        self.runner, self.size = runner, size
        cache = (shape.n_layers, size.batch, shape.n_kv_heads, size.longest, shape.head_dim)
        self.keys = torch.zeros(cache, dtype=runner.dtype, device=weight.device)
        self.values = torch.zeros_like(self.keys)
        device = weight.device
        self.rows = torch.arange(size.batch, device=device)
        self.columns = torch.arange(size.longest, device=device)
        self.token = torch.zeros(size.batch, dtype=torch.long, device=device)
        self.position = torch.zeros(size.batch, dtype=torch.long, device=device)
        self.temperature = torch.zeros(size.batch, 1, device=device)
        self.written = torch.zeros(size.batch, size.n_new, dtype=torch.long, device=device)
        self.count = torch.zeros(1, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.inference_mode()
    def write(self, prompts: Tensor, lengths: Tensor, temperature: Tensor) -> Tensor:
        """Continue [batch, longest prompt] prompts, each `lengths` [batch] long: [batch, n_new].

        A temperature of 0 is greedy; rows may differ.
        """
        self.temperature.copy_(temperature[:, None])
        last = self._prefill(prompts, lengths)
        self.count.zero_()
        self.position.copy_(lengths)
        self._choose(last)
        for _ in range(self.size.n_new - 1):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
        return self.written.clone()

    @torch.inference_mode()
    def capture(self, progress: Progress) -> None:
        """Record one step as a graph; without one, writing is the same but slower."""
        if not self.token.is_cuda:
            return
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.count.zero_()
                    self.position.zero_()
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

            hidden = self.runner.hidden(prompts[part], keep=keep).last
            ends = (
                lengths[part]
                - 1
                + n_prompt * torch.arange(part.stop - part.start, device=prompts.device)
            )
            out.append(self.runner.logits(hidden[ends]))
        return torch.cat(out)

    def _step(self) -> None:
        """Run the token at `position` of every row and choose the next one."""
        model, shape = self.runner.model, self.runner.model.shape
        turn = self.runner.turns.at(self.position)
        hidden_columns = (self.columns > self.position[:, None])[:, None, None]
        x = functional.embedding(self.token, model.embed_tokens).to(self.runner.dtype)
        for index, layer in enumerate(model.decoder_layers()):
            queries, keys, values = project(
                x, layer.project_weights(), turn.cos, turn.sin, shape.head_dim, shape.norm_eps
            )
            self.keys[index, self.rows, :, self.position] = keys
            self.values[index, self.rows, :, self.position] = values
            grouped = queries.unflatten(1, (shape.n_kv_heads, -1))
            scores = (grouped @ self.keys[index].mT).float() * shape.head_dim**-0.5
            shares = torch.softmax(scores.masked_fill(hidden_columns, -torch.inf), dim=-1)
            attended = (shares.to(x.dtype) @ self.values[index]).flatten(1)
            x = finish(x, attended, layer.finish_weights(), shape.norm_eps)
        self.position += 1
        self._choose(self.runner.logits(x))

    def _choose(self, logits: Tensor) -> None:
        """Gumbel's trick: the largest of logits + temperature * noise is a sample."""
        noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().log()
        self.token.copy_((logits.float() + self.temperature * noise).argmax(-1))
        self.written.index_copy_(1, self.count, self.token[:, None])
        self.count += 1


@torch.inference_mode()
def repeated_share(tokens: Tensor, n: int = 8) -> Tensor:
    """Share of each row's n-grams that stood in the row before: [rows, length] to [rows]."""
    windows = tokens.unfold(1, n, 1)
    # A polynomial hash that wraps around: 64 bits are enough to tell a few hundred apart.
    factors = torch.tensor([pow(MULTIPLIER, i, 1 << 63) for i in range(n)], device=tokens.device)
    ordered = (windows * factors).sum(-1).sort(dim=1).values
    n_repeated = (ordered[:, 1:] == ordered[:, :-1]).sum(dim=1)
    return n_repeated.float() / windows.shape[1]

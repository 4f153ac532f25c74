"""Faster pieces on a GPU: the best attention backend and compiled row functions, each tried first.

Whatever does not work on the machine is left out and said so; training then runs plain PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from aerie.train.progress import Progress
from aerie.train.target_model import (
    PLAIN,
    Attend,
    Pieces,
    TargetRunner,
    causal_attention,
    finish,
    mean_loss,
    project,
)

Result = TypeVar("Result")
Candidate = TypeVar("Candidate")
Loss = Callable[[], Tensor]

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
TRIALS = 3
WORST_ERROR = 0.03  # of bf16 against float32, relative to the norm


def accelerated_pieces(
    runner: TargetRunner, examples: Sequence[Tensor], progress: Progress
) -> Pieces:
    """Pieces for the runner's device; `examples` are batches of every length that will come."""
    example = examples[0]
    if not example.is_cuda:
        return PLAIN
    attend = fastest_attention(runner, [e.shape for e in examples], progress)
    plain = Pieces(attend=attend)
    compiled = Pieces(
        project=compile_function(project),
        finish=compile_function(finish),
        mean_loss=compile_function(mean_loss),
        attend=attend,
    )

    def losses(pieces: Pieces) -> list[Loss]:
        trial = TargetRunner(runner.model, runner.turns, pieces, runner.dtype)
        return [partial(trial.loss, example, example)]

    return fastest_pieces((plain, compiled), losses, runner.model, progress)


def fastest_pieces(
    candidates: tuple[Candidate, Candidate],
    losses: Callable[[Candidate], Sequence[Loss]],
    model: nn.Module,
    progress: Progress,
) -> Candidate:
    """Of plain and compiled pieces the faster ones; every loss must work with them."""
    seconds: dict[str, float] = {}
    by_name = dict(zip(("plain", "compiled"), candidates, strict=True))
    for name, candidate in by_name.items():
        begun = time.monotonic()
        try:
            times = [_time_step(loss) for loss in losses(candidate)]
            seconds[name] = sum(times) / len(times)
        except Exception as error:
            progress.say(f"{name} pieces failed and are not used: {error!r:.300}")
        progress.say(f"tried {name} pieces in {time.monotonic() - begun:.1f} s")
        for param in model.parameters():
            param.grad = None
    progress.say(f"a step: {_format_seconds(seconds)}")
    return by_name[min(seconds, key=lambda name: seconds[name], default="plain")]


def compile_function(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile for fixed shapes: the row count never changes."""
    return torch.compile(function, dynamic=False)


def fastest_attention(
    runner: TargetRunner, sizes: Sequence[tuple[int, ...]], progress: Progress
) -> Attend:
    """Time the backends forward and backward on all real sizes; drop those that fail or err."""
    seconds: dict[str, float] = {}
    for name in BACKENDS:
        attend = _with_backend(name)
        try:
            _check_attention(attend, _random_heads(runner, (1, 256)))
            by_size = {
                str(size[1]): _time_step(partial(_attention_loss, attend, heads))
                for size in sizes
                for heads in [_random_heads(runner, size)]
            }
        except Exception as error:
            progress.say(f"attention backend {name} is not used: {error!r:.200}")
            continue
        progress.say(f"attention {name} by length: {_format_seconds(by_size)}")
        seconds[name] = sum(by_size.values())
    return _with_backend(min(seconds, key=lambda n: seconds[n])) if seconds else causal_attention


def _random_heads(runner: TargetRunner, size: tuple[int, ...]) -> list[Tensor]:
    """Queries, keys and values of a batch [batch, length]."""
    shape, weight = runner.model.shape, runner.model.embed_tokens
    generator = torch.Generator(weight.device).manual_seed(1)
    shapes = [(*size, n, shape.head_dim) for n in (shape.n_heads, shape.n_kv_heads)]
    return [
        torch.randn(one, generator=generator, device=weight.device)
        .to(runner.dtype)
        .requires_grad_()
        for one in (shapes[0], shapes[1], shapes[1])
    ]


def _attention_loss(attend: Attend, inputs: list[Tensor]) -> Tensor:
    return attend(*inputs).float().square().mean()


def _with_backend(name: str) -> Attend:
    """Causal attention through one backend only."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return causal_attention(queries, keys, values)

    return attend


def _check_attention(attend: Attend, inputs: list[Tensor]) -> None:
    """Refuse a backend whose output or gradient is far from float32 arithmetic."""
    wide = [t.detach().float().requires_grad_() for t in inputs]
    with sdpa_kernel(SDPBackend.MATH):
        want = causal_attention(*wide)
    got = attend(*inputs)
    weight = torch.linspace(-1, 1, want.shape[-1], device=want.device)
    (want * weight).sum().backward()
    (got.float() * weight).sum().backward()
    pairs = [(got.float(), want)] + [
        (a.grad.float(), b.grad)
        for a, b in zip(inputs, wide, strict=True)
        if a.grad is not None and b.grad is not None
    ]
    for a, b in pairs:
        error = ((a - b).norm() / b.norm()).item()
        if not error < WORST_ERROR:
            raise ArithmeticError(f"relative error {error:.3f}")


def _time_step(loss: Loss) -> float:
    """Seconds of one forward and backward, warmed up."""
    loss().backward()
    best = float("inf")
    for _ in range(TRIALS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss().backward()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def _format_seconds(seconds: dict[str, float]) -> str:
    """`plain 80.1 ms, compiled 45.0 ms`."""
    return ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in seconds.items()) or "none"

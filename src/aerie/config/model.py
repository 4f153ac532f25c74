"""What is loaded, and how it computes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aerie.config.values import choice, read_fields, require

MAX_RANKS = 64  # more than any machine has GPUs
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class ModelConfig:
    """What is loaded, and how it computes."""

    model: str | None = None  # directory or hub id; None: the built-in pair
    draft: str | None = None  # EAGLE-3 head; None with the built-in model: its own head
    device: str = "auto"  # "cpu", "cuda", "cuda:N"; auto: a GPU where torch sees one
    dtype: str = "auto"  # "float32", "bfloat16", "float16"; auto: by device
    max_model_len: int | None = None  # tokens of prompt and output; None: the model's context
    # "exact": bitwise equal whatever shares the batch; auto: that where it costs next to nothing.
    numerics: str = "auto"  # "fast", "exact"
    # What fast numerics are made of; auto: Triton on a GPU, tuned products where there is a table.
    attention: str = "auto"  # "pytorch", "triton"
    layer_ops: str = "auto"  # "pytorch", "triton"
    linear: str = "auto"  # "library", "tuned"
    # The draft head's dense layers; auto: eight bits on a GPU on which they were measured.
    draft_products: str = "auto"  # "dense", "fp8"
    # Processes that hold a part of the target each; on GPUs, the first so many of them.
    tensor_parallel: int = 1
    probe: str = "warn"  # what to do when the head looks misread: refuse, warn or off
    # Abort where a fast path is missing (kernels, tuned shapes, captured rounds) or a round fails.
    perf_mode: bool = False
    # Boundaries of the target that the head reads, e.g. (2, 18, 33); None: as its config says.
    taps: tuple[int, ...] | None = None
    # Positions the head looks back, 0 for all, and the first ones it sees besides; None: as its
    # config says, or a window where the context may exceed what it was trained for.
    draft_window: int | None = None
    draft_sinks: int | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        choice("numerics", self.numerics, ("auto", "fast", "exact"))
        choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        choice("attention", self.attention, ("auto", "pytorch", "triton"))
        choice("layer_ops", self.layer_ops, ("auto", "pytorch", "triton"))
        choice("linear", self.linear, ("auto", "library", "tuned"))
        choice("draft_products", self.draft_products, ("auto", "dense", "fp8"))
        choice("probe", self.probe, ("refuse", "warn", "off"))
        is_device = DEVICE.fullmatch(self.device) is not None
        require(is_device, f"device {self.device!r:.60} is unknown: cpu, cuda, cuda:N or auto")
        ranks = self.tensor_parallel
        require(1 <= ranks <= MAX_RANKS, f"tensor_parallel is {ranks}, must be 1 to {MAX_RANKS}")
        for name in ("draft_window", "draft_sinks"):
            size = getattr(self, name)
            is_size = size is None or 0 <= size <= 1 << 31
            require(is_size, f"{name} is {size}, limit 0..{1 << 31}")
        longest = self.max_model_len
        require(longest is None or longest >= 2, f"max_model_len is {longest}, must be at least 2")

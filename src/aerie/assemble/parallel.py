"""The composition root of targets: whole, or split over ranks; a follower's process is this module.

`python -m aerie.assemble.parallel` is started by `load_split` alone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from aerie.assemble.numerics import find_numerics
from aerie.config import ModelConfig, require
from aerie.errors import AerieError, RankLostError
from aerie.models.decoder import Decoder
from aerie.models.geometry import read_geometry
from aerie.models.load import LoadOptions, load_decoder
from aerie.models.partition import Partition, check_split
from aerie.parallel.group import Group
from aerie.parallel.processes import END, READY, Followers, Post
from aerie.parallel.ranks import follow, lead

OnTensor = Callable[[int, int], None]


def load_whole(
    directory: Path,
    config: ModelConfig,
    page_size: int,
    on_tensor: OnTensor = lambda done, total: None,
    partition: Partition | None = None,
) -> Decoder:
    """A target of this process alone, or its part of one; everything of `config` is chosen."""
    numerics = find_numerics(config, page_size)
    options = LoadOptions(
        dtype=getattr(torch, config.dtype),
        device=config.device,
        dense=numerics.dense,
        is_fused=numerics.is_fused,
        ops=numerics.ops,
        on_tensor=on_tensor,
        partition=partition,
        packed=numerics.packed,
    )
    return load_decoder(directory, numerics.prepare_attention, options)


def load_split(
    directory: Path, config: ModelConfig, page_size: int, on_tensor: OnTensor
) -> Decoder:
    """A target in as many processes as the configuration says; this one leads."""
    size = config.tensor_parallel
    check_split(read_geometry(directory), size)
    _require_devices(config)
    # A head and its taps are the leader's affair.
    told = asdict(replace(config, model=str(directory), draft=None, taps=None))
    model = {"config": told, "page_size": page_size}
    with TemporaryDirectory(prefix="aerie-ranks-") as folder:
        meeting = Path(folder) / "meeting"
        followers = Followers(__name__, size, meeting, torch.get_num_threads(), model)
        try:
            group = _group(0, config)
            part = load_whole(directory, placed(config, 0), page_size, on_tensor, _part(group))
            followers.on_loss = group.fail
            followers.await_ready()
            group.connect(meeting)
            return lead(part, group, followers)
        except BaseException:
            followers.end()
            raise


def placed(config: ModelConfig, rank: int) -> ModelConfig:
    """The configuration of one rank: on GPUs, each has its own."""
    return replace(config, device=f"cuda:{rank}") if config.device == "cuda" else config


def _require_devices(config: ModelConfig) -> None:
    size = config.tensor_parallel
    if not config.device.startswith("cuda"):
        return
    require(
        config.device == "cuda",
        f"tensor_parallel {size} takes the GPUs 0 to {size - 1}: use device cuda, not"
        f" {config.device}",
    )
    count = torch.cuda.device_count()
    require(count >= size, f"tensor_parallel {size}: torch sees {count} GPUs; use fewer ranks")


def _group(rank: int, config: ModelConfig) -> Group:
    device = torch.device(placed(config, rank).device)
    return Group(rank, config.tensor_parallel, device, config.numerics == "exact")


def _part(group: Group) -> Partition:
    return Partition(group.rank, group.size, group.sum, group.gather)


def _follow(post: Post) -> None:
    torch.set_num_threads(post.threads)
    said: Any = post.model
    config = ModelConfig(**said["config"])
    group = _group(post.rank, config)
    own = placed(config, post.rank)
    part = load_whole(Path(str(config.model)), own, said["page_size"], partition=_part(group))
    print(READY, flush=True)
    group.connect(Path(post.meeting))
    follow(part, group)


def main() -> None:
    """A follower's life: from its post, the first line it is told, to the leader's last word."""
    post = Post(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_obey, name="leader", daemon=True).start()
    try:
        _follow(post)
    except AerieError as error:
        _end(error)


def _obey() -> None:
    """Standard input is the leader's hold on this process: it ends with the leader."""
    word = sys.stdin.readline().strip()
    if word == END:
        os._exit(0)
    _end(RankLostError(word or "rank 0, the leader, ended"))


def _end(error: AerieError) -> None:
    """Say what happened and end at once, whatever another thread waits for."""
    print(f"aerie: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()

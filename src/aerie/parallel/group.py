"""Group: the ranks that hold one target, and where they meet: broadcast, sum, gather.

The only file that knows `torch.distributed`. Groups are values: a process may lead several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from aerie.errors import RankLostError

# A rank that died is noticed at once, by its process and by its sockets. This is for one that lives
# and does not answer: more than its part of one layer takes.
PATIENCE = timedelta(seconds=60)
FOREVER = timedelta(days=365)  # a follower waits for the next plan
LEADER = 0
dist: Any = torch.distributed  # its stubs leave out half of what is used here


@dataclass(eq=False)
class Group:
    """One rank's end of a group; every call is made by all ranks, in the same order.

    RankLostError if one of them is gone or does not answer; the group is of no use then.
    """

    rank: int
    size: int
    device: torch.device
    is_ordered: bool  # sums are taken in the order of ranks, whatever their shape: exact numerics
    patience: timedelta = PATIENCE
    lost: RankLostError | None = None  # known from the rank's process, by another thread
    _hosts: Any = None  # what joins the memories of hosts: plans, and everything on CPUs
    _devices: Any = None

    def connect(self, meeting: Path) -> None:
        """Meet the others by a file, on sockets that only this machine reaches."""
        store = dist.FileStore(str(meeting), self.size)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = PATIENCE
        hosts = dist.PrefixStore("hosts", store), self.rank, self.size, options
        self._hosts = self._devices = self._named(lambda: dist.ProcessGroupGloo(*hosts))
        self._hosts.set_timeout(FOREVER)  # of every operation; each wait has a limit of its own
        if self.device.type == "cuda":
            devices = dist.PrefixStore("devices", store), self.rank, self.size
            self._devices = self._named(lambda: dist.ProcessGroupNCCL(*devices))
        self._named(lambda: self._hosts.barrier().wait(PATIENCE))  # the file is not needed any more

    def broadcast(self, words: Tensor) -> None:
        """The leader's bytes, in the host's memory, to every rank."""
        options = dist.BroadcastOptions()
        options.rootRank = LEADER
        patience = self.patience if self.rank == LEADER else FOREVER
        self._named(lambda: self._hosts.broadcast([words], options).wait(patience))

    def sum(self, part: Tensor) -> Tensor:
        """The sum of what all ranks bring; `part` may be overwritten."""
        # Of two, any order gives the same bits.
        if not self.is_ordered or self.size == 2:
            self._run(lambda: self._devices.allreduce([part]))
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self._run(lambda: self._devices.allgather([parts], [part]))
        return reduce(torch.add, parts)

    def gather(self, part: Tensor) -> Tensor:
        """What all ranks bring side by side, to the leader; the others keep their own."""
        options = dist.GatherOptions()
        options.rootRank = LEADER
        n_parts = self.size if self.rank == LEADER else 0
        parts = [torch.empty_like(part) for _ in range(n_parts)]
        self._run(lambda: self._devices.gather([parts] if parts else [], [part], options))
        return torch.cat(parts, dim=-1) if parts else part

    def fail(self, error: RankLostError) -> None:
        """Every call from here on is refused; one that waits ends with the others' sockets."""
        self.lost = error
        if self._devices is not self._hosts:
            self._devices.abort()

    def _run(self, start: Callable[[], Any]) -> None:
        # On a GPU a plain wait is one of the stream's; with a limit the host would wait.
        limits = () if self.device.type == "cuda" else (self.patience,)
        self._named(lambda: start().wait(*limits))

    def _named(self, call: Callable[[], Any]) -> Any:
        """Give the library's errors the name of what has happened."""
        if self.lost is not None:
            raise self.lost
        try:
            return call()
        except RuntimeError as error:  # it knows no other kind
            said = str(error).partition("] ")[2].partition(".")[0] or error
            raise RankLostError(f"rank {self.rank} lost touch with another: {said}") from error

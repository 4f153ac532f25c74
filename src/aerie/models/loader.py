"""Loader: hands checked tensors to a model's parts, one at a time, and remembers bad values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from aerie.models.tensors import FLOATS, Offence, TensorSpec, compare
from aerie.models.weights import Checkpoint


class Loader:
    """Takes tensors from a checkpoint.

    On a CPU and in the file's own dtype a tensor is the mapped file itself. Otherwise one copy
    is made and the file's pages are given back, so that peak memory is the model plus one tensor.
    """

    def __init__(
        self,
        files: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        on_tensor: Callable[[int, int], None] = lambda done, total: None,
        cut: Callable[[str, Tensor], Tensor] = lambda name, whole: whole,
    ) -> None:
        self.files = files
        self.cut = cut  # what is taken of a stored tensor: the part of one rank of several
        self.dtype = dtype
        self.device = device
        self._on_tensor = on_tensor
        self._n_taken = 0
        self.offences: list[Offence] = []

    def take(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the run's device; floats in `dtype`, or the run's, others as stored."""
        stored = self.files.view(name)
        wanted = (dtype or self.dtype) if stored.is_floating_point() else stored.dtype
        tensor = self.cut(name, stored).to(device=self.device, dtype=wanted)
        self.check_finite(name, tensor)
        if tensor.untyped_storage().data_ptr() != stored.untyped_storage().data_ptr():
            self.files.release(name)
        self._n_taken += 1
        self._on_tensor(self._n_taken, len(self.files.entries))
        return tensor

    def has(self, name: str) -> bool:
        """Whether an optional tensor is in the checkpoint."""
        return name in self.files.entries

    def release(self, name: str) -> None:
        """Of a tensor that was copied into another form, the file's pages may go."""
        self.files.release(name)

    def note(self, offence: Offence) -> None:
        """Remember an offence that only the values show; loading then ends in one error."""
        self.offences.append(offence)

    def check_finite(self, name: str, tensor: Tensor) -> None:
        """Note the tensor if it holds a NaN or an infinity, as stored or after its cast."""
        if not tensor.is_floating_point() or not tensor.numel():
            return
        if tensor.dtype == torch.float8_e4m3fn:  # no infinities, and one NaN of either sign
            # The largest as bytes and as signed ones: no copy is made.
            if (
                int(tensor.view(torch.uint8).max()) == 255
                or int(tensor.view(torch.int8).max()) == 127
            ):
                self.offences.append(Offence("not finite", name, f"in {tensor.dtype}"))
            return
        # aminmax passes NaN on and makes no copy: 6 GB/s on one core, isfinite().all() 0.4.
        low, high = torch.aminmax(tensor)
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            self.offences.append(Offence("not finite", name, f"in {tensor.dtype}"))


def find_offences(files: Checkpoint, specs: Sequence[TensorSpec]) -> list[Offence]:
    """Compare headers with the specifications; on any offence the data is searched as well.

    One report is worth the reading: a repair sees everything at once.
    """
    offences = compare(specs, files.entries)
    if not offences:
        return []
    searcher = Loader(files, torch.float32, torch.device("cpu"))
    for spec in specs:
        entry = files.entries.get(spec.name)
        # Other dtypes are offences already, and torch cannot search them all.
        if entry is not None and entry.dtype in FLOATS:
            searcher.check_finite(spec.name, files.view(spec.name))
    return offences + searcher.offences

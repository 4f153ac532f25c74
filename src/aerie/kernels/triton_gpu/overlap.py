"""Launches that overlap: a kernel is brought up while the one before it still runs.

A kernel launched so (`launch_pdl`) calls `take_turn` in every program before it reads what another
kernel wrote and before it writes anything: that waits until the one before has ended. Since every
kernel of a chain does so, whatever came earlier has ended too. What it does ahead of its turn may
touch nothing but weights. Where a device's record has no such launches, they wait as ever.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aerie.chips import record_of


def overlapped(tensor: Tensor) -> dict[str, bool]:
    """Options of such a launch on a tensor's device."""
    is_overlapped = record_of(tensor.device).overlaps
    return {"OVERLAP": is_overlapped, "launch_pdl": is_overlapped}


@triton.jit
def take_turn(OVERLAP: tl.constexpr):
    """Wait for the kernel before, then let the one behind be brought up."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch_ahead(at: tl.tensor):
    """Bring the lines of some addresses into the L2 cache; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [at.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )

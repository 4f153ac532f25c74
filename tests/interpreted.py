"""Import this before triton: without a GPU its kernels then run in its interpreter, on NumPy."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    # Read when the kernels are defined, which is when their module is imported.
    os.environ["TRITON_INTERPRET"] = "1"

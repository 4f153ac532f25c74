"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.implementation import implementations_of

# The operations of an engine's round. Those that are called rarely, or are as quick as they are
# defined, come from the base.
KERNELS = implementations_of("aerie.kernels.numpy_cpu")

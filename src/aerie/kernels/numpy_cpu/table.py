"""The NumPy backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.catalogue import modules_of
from aerie.kernels.implementation import implementations_in

# The operations of an engine's round. Those that are called rarely, or are as quick as they are
# defined, come from the base.
KERNELS = implementations_in(*modules_of("aerie.kernels.numpy_cpu"))

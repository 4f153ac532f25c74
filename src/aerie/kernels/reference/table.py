"""The reference backend's kernels by name."""

from __future__ import annotations

from aerie.kernels.catalogue import modules_of
from aerie.kernels.implementation import implementations_in

KERNELS = implementations_in(*modules_of("aerie.kernels.reference"))

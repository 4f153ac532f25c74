"""The tree kernels and the steps of a round: cards, catalogue, registry and their backends."""

from aerie.kernels.catalogue import catalogue
from aerie.kernels.registry import load

__all__ = ["catalogue", "load"]

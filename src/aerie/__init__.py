"""aerie: lossless speculative decoding with cost-aware draft trees."""

__all__ = ["__version__"]

__version__ = "0.1.0"

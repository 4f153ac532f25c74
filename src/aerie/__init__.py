"""aerie: lossless speculative decoding with cost-aware draft trees."""

__all__ = [
    "Engine",
    "EngineConfig",
    "Grammar",
    "JsonSchema",
    "Regex",
    "SamplingParams",
    "__version__",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """The public names on first use: importing torch takes two seconds, `aerie --help` none."""
    from aerie.public import find

    return find(name)

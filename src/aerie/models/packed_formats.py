"""The formats of packed linears by `quant_method`: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aerie.models.awq import read_awq
from aerie.models.fields import Fields
from aerie.models.gptq import read_gptq
from aerie.models.packed import PackedFormat
from aerie.models.quantisation import AWQ, GPTQ, LINEARS, read_method

READERS: Mapping[str, Callable[[Fields], PackedFormat]] = {GPTQ: read_gptq, AWQ: read_awq}


def read_packed(config: Fields) -> PackedFormat | None:
    """How a config says its linears are packed, None where they are plain; problems are noted."""
    method = read_method(config, LINEARS)
    return None if method is None else READERS[method](config)

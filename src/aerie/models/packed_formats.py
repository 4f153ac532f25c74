"""The formats of packed linears by `quant_method`: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aerie.models.awq import read_awq
from aerie.models.fields import Fields
from aerie.models.fp8 import read_compressed, read_fp8
from aerie.models.gptq import read_gptq
from aerie.models.packed import PackedFormat
from aerie.models.quantisation import AWQ, COMPRESSED, FP8, GPTQ, LINEARS, read_method

READERS: Mapping[str, Callable[[Fields], PackedFormat]] = {
    AWQ: read_awq,
    COMPRESSED: read_compressed,
    FP8: read_fp8,
    GPTQ: read_gptq,
}


def read_packed(config: Fields) -> PackedFormat | None:
    """How a config says its linears are packed, None where they are plain; problems are noted."""
    method = read_method(config, LINEARS)
    return None if method is None else READERS[method](config)

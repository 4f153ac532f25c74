"""The quantisation a config declares: one that is read, or a refusal that says what to use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aerie.models import foreign
from aerie.models.fields import Fields, read_config, shown
from aerie.models.packed import LeftOut

MXFP4, GPTQ, AWQ, FP8, COMPRESSED = "mxfp4", "gptq", "awq", "fp8", "compressed-tensors"
FLOATS = "float-quantized"  # the format of compressed-tensors that is read
SECTION = "quantization_config"

# What is read, in the words of an error.
READ = {
    AWQ: "awq (4-bit)",
    COMPRESSED: f"compressed-tensors ({FLOATS})",
    FP8: "fp8",
    GPTQ: "gptq (4-bit)",
    MXFP4: "mxfp4 (experts)",
}
LINEARS, EXPERTS = (AWQ, COMPRESSED, FP8, GPTQ), (MXFP4,)  # of the linears of layers, of experts
PLAIN = "plain F32, BF16 or F16"

# Other places where a quantiser writes its settings, and fields of a section without quant_method.
SECTIONS = {"quantization": "mlx", "compression_config": "compressed-tensors"}
UNNAMED = {"load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes", "quant_algo": "modelopt"}
# Where a quantiser lists the layers it left as they were.
LEFT_OUT = ("modules_to_not_convert", "ignored_layers", "ignore")
VARIANTS = ("format", "quant_algo", "fmt", "bits")  # fields that tell variants of a method apart


def read_method(config: Fields, supported: Sequence[str]) -> str | None:
    """How the weights are stored if that is `supported`, None if they are plain.

    Any other method is noted, with what to use in its place.
    """
    section = config.section(SECTION)
    method = _method(config, section)
    is_variant = method != COMPRESSED or section.text("format", "") == FLOATS
    if not method or (method in supported and is_variant):
        return method or None
    what = foreign.METHODS.get(method, "a quantisation aerie does not know")
    variants = [f"{name} {shown(section.values[name])}" for name in VARIANTS if section.has(name)]
    told = f", {', '.join(variants)}" if variants else ""
    instead = foreign.INSTEAD.get(method, foreign.ORIGINAL)
    config.note(
        SECTION,
        f"quant_method {method!r} is not supported: it is {what}{told}; {instead}. Supported for "
        f"this architecture: {', '.join(READ[name] for name in supported)}, {PLAIN}",
    )
    return None


def has_packed_linears(directory: Path) -> bool:
    """Whether a model's config says so; what it says wrongly is named where it is loaded."""
    return read_method(read_config(directory), LINEARS) is not None


def read_left_out(section: Fields) -> LeftOut:
    """The layers that a quantiser says it left as they were."""
    return LeftOut(tuple(n for key in LEFT_OUT if section.has(key) for n in section.texts(key)))


def _method(config: Fields, section: Fields) -> str | None:
    if section.has("quant_method"):
        return section.text("quant_method")
    for name, method in SECTIONS.items():
        if config.has(name):
            return method
    for name, method in UNNAMED.items():
        if section.has(name):
            return method
    return section.text("quant_method") if config.has(SECTION) else None

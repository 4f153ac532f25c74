"""Formats that are not read: how each one shows itself, and what to use in its place."""

from __future__ import annotations

import re
from pathlib import Path

ORIGINAL = "use the unquantised model it was made from"
HF_FORMAT = (
    "download the model it was made from in the Hugging Face format: config.json, *.safetensors "
    "and tokenizer.json"
)

# `quant_method` of public configs, and the names their files go by where a config has none.
METHODS = {
    "aqlm": "AQLM (additive codebooks)",
    "auto-round": "AutoRound",
    "awq": "AWQ, which is not read for models with experts",
    "bitnet": "BitNet (ternary weights)",
    "bitsandbytes": "bitsandbytes (int8, NF4 or FP4)",
    "compressed-tensors": "compressed-tensors (llm-compressor)",
    "deepspeedfp": "DeepSpeed's small floats",
    "eetq": "EETQ (int8)",
    "exl2": "ExLlamaV2",
    "exl3": "ExLlamaV3",
    "experts_int8": "int8 experts",
    "fbgemm_fp8": "FP8 (FBGEMM)",
    "fouroversix": "Four Over Six (NVFP4)",
    "fp8": "FP8, which is not read for models with experts",
    "fp_quant": "FP-Quant (MXFP4 or NVFP4)",
    "gemma": "Gemma's quantisation-aware format",
    "gguf": "GGUF (llama.cpp)",
    "gptq": "GPTQ, which is not read for models with experts",
    "gptq_marlin": "GPTQ repacked for Marlin",
    "higgs": "HIGGS",
    "hqq": "HQQ",
    "marlin": "GPTQ repacked for Marlin",
    "metal": "Metal's affine format",
    "mlx": "MLX (Apple)",
    "modelopt": "ModelOpt (NVIDIA: FP8 or NVFP4)",
    "modelopt_fp4": "NVFP4 (ModelOpt)",
    "mxfp4": "MXFP4, which is read for the experts of gpt-oss alone",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "qqq": "QQQ",
    "quanto": "Quanto",
    "quark": "Quark (AMD)",
    "sinq": "SINQ",
    "spqr": "SpQR",
    "torchao": "torchao",
    "vptq": "VPTQ (vector codebooks)",
}
INSTEAD = {
    "auto-round": "export it again with the format auto_gptq, or use the unquantised model",
    "gguf": HF_FORMAT,
    "gptq_marlin": "use the GPTQ version it was repacked from, or the unquantised model",
    "marlin": "use the GPTQ version it was repacked from, or the unquantised model",
    "mlx": HF_FORMAT,
}

# Tensors a plain checkpoint never has, and what they tell.
_TRACES = (
    (r"midlayer\..*|d2t|t2d", "It is an EAGLE-3 head: give it as the draft of its target."),
    (
        r".*\.(?:qweight|qzeros|g_idx)",
        "GPTQ or AWQ weights in layers that config.json declares plain. If it has no "
        "quantization_config, copy the fields of quantize_config.json (GPTQ) or quant_config.json "
        '(AWQ) there, with "quant_method": "gptq" or "awq"',
    ),
    (r".*\.(?:weight_packed|weight_shape)", f"{METHODS['compressed-tensors']} weights; {ORIGINAL}"),
    (
        r".*\.(?:weight_scale(?:_inv|_2)?|input_scale|[kv]_scale)",
        f"scales of FP8 or NVFP4 weights; {ORIGINAL}",
    ),
    (
        r".*\.(?:SCB|absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..*)",
        f"{METHODS['bitsandbytes']} weights; {ORIGINAL}",
    ),
    (r".*\.(?:q_weight|q_invperm|q_scale|q_scale_max)", f"{METHODS['exl2']} weights; {ORIGINAL}"),
    (r".*\.(?:trellis|suh|svh)", f"{METHODS['exl3']} weights; {ORIGINAL}"),
    (r".*\.W_q", f"{METHODS['hqq']} weights; {ORIGINAL}"),
    (r".*\.biases", f"{METHODS['mlx']} weights; {HF_FORMAT}"),
    (
        r".*\.(?:lora_[AB](?:\..*)?|lora_magnitude_vector(?:\..*)?)",
        "a LoRA adapter; merge it into its base model and save the result",
    ),
)
TRACES = tuple((re.compile(pattern), told) for pattern, told in _TRACES)

DTYPES = {
    "F8_E4M3": "FP8 weights are read where quantization_config says how they are scaled "
    f'("quant_method": "fp8" or "compressed-tensors"); else {ORIGINAL}',
    "F8_E5M2": f"FP8 weights are read as e4m3 alone; {ORIGINAL}",
}

# Files of a directory that holds no safetensors, or no config.json.
FILES = (
    ("*.gguf", f"GGUF is llama.cpp's format and is not read; {HF_FORMAT}"),
    ("adapter_config.json", "it is a LoRA adapter; merge it into its base model and save that"),
    ("params.json", f"it is in its makers' own format; {HF_FORMAT}"),
    ("model_index.json", "it is a pipeline for images or video, not a language model"),
    ("*.onnx", f"ONNX is not read; {HF_FORMAT}"),
    ("*.h5", f"TensorFlow's weights are not read; {HF_FORMAT}"),
    ("*.msgpack", f"Flax's weights are not read; {HF_FORMAT}"),
)


def explain_tensor(name: str) -> str:
    """What an unknown tensor tells of its checkpoint; empty when it tells nothing."""
    return next((told for pattern, told in TRACES if pattern.fullmatch(name)), "")


def explain_file(path: Path) -> str:
    """What a single file is; empty when it is unknown."""
    return next((told for pattern, told in FILES if path.match(pattern)), "")


def explain_directory(directory: Path) -> str:
    """What a directory without a model in the Hugging Face format is; empty when it is unknown."""
    for pattern, told in FILES:
        found = sorted(path.name for path in directory.glob(pattern))
        if found:
            listed = ", ".join(found[:3]) + (", …" if found[3:] else "")
            return f"it holds {listed}: {told}"
    return ""

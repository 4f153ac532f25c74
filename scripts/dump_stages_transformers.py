"""Dumps the stages of a checkpoint as Hugging Face transformers computes them.

    python scripts/dump_stages_transformers.py MODEL OUT [--tokens 160] [--dtype float32]
    aerie compare --model MODEL --against OUT

Needs `pip install 'aerie[hf]'`. docs/stages.md describes the file that is written.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def stages_of(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Every stage of one pass over `tokens` [n]; the model is any decoder of transformers."""
    last: list[Tensor] = []
    # transformers returns the last state after the final norm; the stage is what enters it.
    hook = model.model.layers[-1].register_forward_hook(
        lambda module, inputs, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        out = model(tokens[None], output_hidden_states=True, use_cache=False)
    hook.remove()
    states = [*out.hidden_states[:-1], last[0]]
    stages = {"target.embedding": states[0]}
    stages |= {f"target.layers.{k}": state for k, state in enumerate(states[1:])}
    stages["target.logits"] = out.logits
    return {name: stage.reshape(tokens.shape[0], -1).clone() for name, stage in stages.items()}


def write(directory: Path, tokens: Tensor, stages: dict[str, Tensor]) -> None:
    """Write DIR/stages.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({"tokens": tokens, **stages}, directory / "stages.safetensors")


def open_model(directory: str, dtype: torch.dtype) -> Any:
    """The model with eager attention; experts in MXFP4 are dequantised."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "eager"}
    method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    if method == "mxfp4":
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, **options)
    return model.to(dtype).eval()  # dequantised experts arrive in bfloat16, which is exact


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a directory or a hub id")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    model = open_model(arguments.model, getattr(torch, arguments.dtype))
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.tokens,)
    tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator)
    write(arguments.out, tokens, stages_of(model, tokens))
    print(f"{arguments.out}/stages.safetensors: {arguments.tokens} tokens")


if __name__ == "__main__":
    main()

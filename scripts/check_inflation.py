"""Inflates a pair on a GPU and writes reports/inflation.json: same tokens, same time as random.

    PYTHONPATH=src python scripts/check_inflation.py --model DIR --draft DIR [--text FILE ...]

Needs about 36 GB of GPU memory for the geometry of an 8B model. The last line is the verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# A bare machine has no installed package: the source is beside us.
sys.path[:0] = [str(ROOT / "src")]

from aerie.attention import pytorch  # noqa: E402
from aerie.bench.provenance import provenance  # noqa: E402
from aerie.bench.round.inflation import CheckSettings, InflationCheck  # noqa: E402
from aerie.models.eagle3.load import load_head  # noqa: E402
from aerie.models.eagle3.resolve import HeadOptions  # noqa: E402
from aerie.models.inflate.embed import LargePair  # noqa: E402
from aerie.models.inflate.geometry import find_geometry  # noqa: E402
from aerie.models.inflate.pair import read_pair  # noqa: E402
from aerie.models.load import LoadOptions, load_decoder  # noqa: E402
from aerie.text.tokenizer import load_tokenizer  # noqa: E402

N_PROMPTS, PROMPT_TOKENS = 16, 64


def main() -> int:
    """Check, write the record, say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument(
        "--text", type=Path, nargs="*", default=sorted((ROOT / "src").rglob("*.py"))
    )
    parser.add_argument("--geometry", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "inflation.json")
    options = parser.parse_args()

    def load_small(dtype: torch.dtype) -> LargePair:
        chosen = LoadOptions(dtype=dtype, device=options.device)
        target = load_decoder(options.model, pytorch.prepare, chosen)
        return LargePair(target, load_head(options.draft, target, pytorch.prepare, HeadOptions()))

    pair, geometry = read_pair(options.model, options.draft), find_geometry(options.geometry)
    settings = CheckSettings(device=options.device)
    check = InflationCheck(pair, geometry, load_small, pytorch.prepare, settings)
    found = check.run(prompts(options.model, options.text))
    record = {**found, "geometry": options.geometry, "provenance": provenance(options.device)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return 0 if found["ok"] else 1


def prompts(model: Path, texts: list[Path]) -> list[torch.Tensor]:
    """The beginnings of text files, spread over those given."""
    tokenizer = load_tokenizer(model)
    chosen = texts[:: max(1, len(texts) // N_PROMPTS)][:N_PROMPTS]
    ids = [tokenizer.encode(path.read_text(encoding="utf-8"))[:PROMPT_TOKENS] for path in chosen]
    return [torch.tensor(entry) for entry in ids if entry]


if __name__ == "__main__":
    sys.exit(main())

"""Inflates the built-in pair on a GPU: same tokens, same time as random; writes inflation.json.

    python3 -m scripts.check_inflation [--geometry NAME or FILE.json] [--device cpu]

Needs about 36 GB of GPU memory for the geometry of an 8B model. The last line is the verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from aerie.attention import pytorch
from aerie.bench.provenance import provenance
from aerie.bench.record import write_json
from aerie.bench.round.inflation import CheckSettings, InflationCheck
from aerie.bench.round.setup import read_prompts
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.hub import find_pair
from aerie.models.inflate.embed import LargePair
from aerie.models.inflate.geometry import find_geometry
from aerie.models.inflate.pair import read_pair
from aerie.models.load import LoadOptions, load_decoder
from scripts import ROOT

N_PROMPTS, PROMPT_TOKENS = 16, 64


def main() -> int:
    """Check, write the record, say whether all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--geometry", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "reports/raw/inflation.json")
    options = parser.parse_args()
    model, draft = find_pair(None, None)
    assert draft is not None, "the built-in pair has a head"

    def load_small(dtype: torch.dtype) -> LargePair:
        chosen = LoadOptions(dtype=dtype, device=options.device)
        target = load_decoder(model, pytorch.prepare, chosen)
        return LargePair(target, load_head(draft, target, pytorch.prepare, HeadOptions()))

    pair, geometry = read_pair(model, draft), find_geometry(options.geometry)
    settings = CheckSettings(device=options.device)
    check = InflationCheck(pair, geometry, load_small, pytorch.prepare, settings)
    prompts = read_prompts(N_PROMPTS, PROMPT_TOKENS, geometry.vocab_size)
    found = check.run([torch.tensor(ids) for ids in prompts])
    record = {**found, "geometry": options.geometry, "provenance": provenance(options.device)}
    write_json(options.out, record)
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

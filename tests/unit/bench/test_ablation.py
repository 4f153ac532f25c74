"""An ablation runs every lever against all on, and what finishes is given up or kept."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from aerie.bench.profile.ablation import FULL, run_ablation, vocabularies
from aerie.bench.profile.session import Point, Session, Sizes
from aerie.bench.round.setup import RoundSetup
from aerie.models.draft_vocabulary import head_ids

SETUP = RoundSetup("cpu", "float32", None, "pytorch")
GEOMETRY = """{"num_hidden_layers": 8, "hidden_size": 512, "vocab_size": 6000,
 "draft_vocab_size": 5000, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128,
 "intermediate_size": 2048}"""


def test_every_lever_has_turns(tmp_path: Path) -> None:
    session = Session(SETUP, tmp_path, (Point(24, 4),), "tree3", Sizes(), True)
    record = run_ablation(session)
    levers = [(point["lever"], point["setting"]) for point in record["points"]]
    assert [lever for lever, _ in levers] == [
        FULL,
        "graphs",
        "tuned products",
        "tuned attention",
        "draft vocabulary",
        FULL,
        "compaction",
    ]
    full, compaction = record["points"][-2:]
    assert full["tokens_per_round"] == compaction["tokens_per_round"]
    assert full["effective_bytes_per_token"] < compaction["effective_bytes_per_token"]
    with (tmp_path / "raw/ablation_cpu.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(levers) * record["turns"]
    assert "| 24x4 | compaction |" in (tmp_path / "ablation_cpu.md").read_text(encoding="utf-8")


def test_inflated_heads_of_other_vocabularies_keep_the_live_ids(tmp_path: Path) -> None:
    config = tmp_path / "geometry.json"
    config.write_text(GEOMETRY, encoding="utf-8")
    session = Session(replace(SETUP, geometry=str(config)), tmp_path, (), "tree3", Sizes(), True)
    live = head_ids(SETUP.load().head)
    sizes = {}
    for label, make in vocabularies(session).items():
        ids = head_ids(make().head)
        sizes[label] = len(ids)
        assert label != "6000 draft ids" or set(live.tolist()) <= set(ids.tolist())
    assert sizes == {"2500 draft ids": 2500, "6000 draft ids": 6000}
    assert set(live.tolist()) <= set(head_ids(session.pair.head).tolist())
    # What a slice keeps are the lowest ids, and the live ones are the lowest of all.
    assert head_ids(session.pair.head)[: len(live)].tolist() == live.tolist()

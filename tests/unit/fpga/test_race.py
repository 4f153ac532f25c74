"""The memory model against its published figure, the race's arithmetic, and the committed pages."""

from __future__ import annotations

import json

import pytest

from aerie.fpga import design_page, memory_study
from aerie.fpga.draft_weights import HeadShape
from aerie.fpga.race import DSP, Draft, products_of
from aerie.perf.hbm import Access, Hbm, published, serve
from tests.laws.tree import ROOT


def test_a_sequential_read_gets_what_was_published() -> None:
    model, paper = published()
    assert model == pytest.approx(paper, rel=0.03)


def test_short_accesses_and_few_channels_get_less() -> None:
    hbm = Hbm(channels=4, peak_gbps=51.2)
    whole = serve(hbm, [Access(0, 1 << 16)], 512)
    jumps = [Access(at * 65536, 64) for at in range(1024)]
    scattered = serve(hbm, jumps, 512)
    assert whole.n_bytes == scattered.n_bytes
    assert scattered.gbps() < 0.5 * whole.gbps() < 0.5 * hbm.peak_gbps
    one_bank = serve(hbm, [Access(at * 4 * 512 * 64, 64) for at in range(64)], 512)
    assert one_bank.misses == 64


def test_products_and_time_of_a_draft() -> None:
    shape = HeadShape(8, 24, 8, 4, 4, 16, 100, 0)
    layer = 2 * 8 * (8 + 8) + 8 * 8 + 3 * 8 * 16
    head = 2 * (8 + 100) + 128 * 8
    assert products_of(shape, 2, 3, 2) == 3 * 24 * 8 + 11 * layer + 9 * head
    memory, products = Draft(10**9, DSP * 10**6, 0).milliseconds(1000.0, 1, 500.0)
    assert (memory, products) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("record", "page", "render"),
    [
        ("fusion_design_v1.json", "fusion_design_v1.md", design_page.render),
        ("fpga_memory.json", "fpga_memory.md", memory_study.page),
    ],
)
def test_committed_pages_are_those_of_their_records(record: str, page: str, render: object) -> None:
    assert callable(render)
    found = json.loads((ROOT / "reports" / record).read_text("utf-8"))
    assert render(found) == (ROOT / "reports" / page).read_text("utf-8")

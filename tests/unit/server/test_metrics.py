"""Metrics: what a sample leaves on the page, under both families of names."""

import time
from types import SimpleNamespace
from typing import Any

from aerie import SamplingParams
from aerie.api import Completion
from aerie.requests.request import Statistics
from aerie.server.metrics import GAUGES, HISTOGRAMS, Metrics, Standing
from aerie.server.samples import Ask, End

LABELS = '{engine="0",model_name="a model"}'


def values(metrics: Metrics) -> dict[str, float]:
    lines = metrics.page(Standing(3, 2, 0.5, 700, 9, 41)).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_a_sample_is_counted_under_both_names() -> None:
    metrics = Metrics("a model", "vllm")
    now = time.monotonic()
    statistics = Statistics(
        num_drafts=4, num_draft_tokens=20, num_accepted_tokens=6, accepted_by_depth={1: 4, 2: 2}
    )
    statistics.near_ties.count(("1024", "8"), 9, 0)
    statistics.near_ties.count(("8192", "8"), 2, 1)
    statistics.by_context.count(512, 3)
    statistics.by_context.count(513, 0)
    completion = Completion("text", tuple(range(11)), "stop", 0, statistics)
    metrics.entered(5)
    metrics.first_text(0.5)
    metrics.grew(4, None)
    metrics.grew(7, 0.25)
    ask = Ask((1, 2, 3, 4, 5), SamplingParams(), 0)
    metrics.ended(ask, End(0, completion, now - 9.0, now - 8.0), now - 10.0, now - 5.0)
    page = values(metrics)
    for prefix, labels in (("aerie_", ""), ("vllm:", LABELS)):
        found = {name: page[f"{prefix}{name}_sum{labels}"] for name in HISTOGRAMS}
        assert found["time_to_first_token_seconds"] == 0.5
        assert found["inter_token_latency_seconds"] == 0.25
        assert found["request_generation_tokens"] == 11 and found["request_prompt_tokens"] == 5
        assert round(found["request_queue_time_seconds"], 6) == 1
        assert round(found["request_prefill_time_seconds"], 6) == 3
        assert round(found["request_decode_time_seconds"], 1) == 5
        assert round(found["request_inference_time_seconds"], 1) == 8
        assert round(found["e2e_request_latency_seconds"], 1) == 10
        assert round(found["request_time_per_output_token_seconds"], 1) == 0.5
        assert page[f"{prefix}generation_tokens_total{labels}"] == 11
        assert page[f"{prefix}spec_decode_num_accepted_tokens_total{labels}"] == 6
        assert [page[f"{prefix}{name}{labels}"] for name in GAUGES] == [3, 2, 0.5]
    second = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a model",'
    assert page[second + 'position="1"}'] == 2
    assert page['aerie_request_success_total{finished_reason="stop"}'] == 1
    assert page['aerie_fast_tokens_total{batch="8",context="1024"}'] == 9
    assert page['aerie_near_ties_total{batch="8",context="8192"}'] == 1
    for name, counts in (("drafts", [1, 1]), ("accepted_tokens", [3, 0])):
        family = f"aerie_spec_decode_num_{name}_at_context_total"
        assert [page[f'{family}{{context="{n}"}}'] for n in (512, 1024)] == counts
    assert page["aerie_pending_tokens"] == 700 and page["aerie_reading_characters"] == 9
    assert metrics.totals.num_drafts == 4 and page["aerie_uptime_seconds"] >= 0


def test_without_a_dashboard_there_are_no_names_of_others() -> None:
    assert not any(name.startswith("vllm") for name in values(Metrics("a model")))


def test_loading_memory_and_what_was_recorded_are_told() -> None:
    metrics = Metrics("a model", "vllm")
    for n_pages in (65, 129):  # the second time after a reload
        facts: Any = SimpleNamespace(
            load_seconds={"reading": 1.5, "recording": 20.0}, page_size=16, n_pages=n_pages
        )
        metrics.loaded(facts)
    found = values(metrics)
    memory = {name: value for name, value in found.items() if "cache_config_info" in name}
    labels = 'block_size="16",engine="0",model_name="a model",num_gpu_blocks="128"'
    assert memory == {
        'aerie_cache_config_info{block_size="16",num_gpu_blocks="128"}': 1,
        f"vllm:cache_config_info{{{labels}}}": 1,
    }
    assert found["aerie_graphs_recorded"] == 41
    assert found['aerie_load_seconds{phase="recording"}'] == 20.0

"""Counters for Prometheus: requests, tokens, times, and what speculation won."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aerie.server.samples import Ask, End, Facts

COUNTS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens generated.",
    "num_preemptions": "Samples that gave their memory back for a while.",
    "prefix_cache_queries": "Prompt tokens looked for in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found there.",
    "spec_decode_num_drafts": "Rounds with at least one draft node.",
    "spec_decode_num_draft_tokens": "Draft nodes verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
}
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
FIRST = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
BETWEEN = (
    "0.001 0.0025 0.005 0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 10 20 40 80"
)
WHOLE = "0.1 0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
SIZES = " ".join(str(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
# vLLM 0.26 has them under these names.
HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    "time_to_first_token_seconds": ("From request to a sample's first token.", FIRST),
    "inter_token_latency_seconds": ("Between two rounds of a sample that added tokens.", BETWEEN),
    "request_time_per_output_token_seconds": ("A sample's decoding, a token.", BETWEEN),
    "e2e_request_latency_seconds": ("From request to a sample's end.", WHOLE),
    "request_queue_time_seconds": ("Until the engine began with a sample.", WHOLE),
    "request_prefill_time_seconds": ("From there to its first token.", WHOLE),
    "request_decode_time_seconds": ("From its first token to its last.", WHOLE),
    "request_inference_time_seconds": ("Both together.", WHOLE),
    "request_prompt_tokens": ("Tokens of a sample's prompt.", SIZES),
    "request_generation_tokens": ("Tokens of a sample.", SIZES),
}
GAUGES = {
    "num_requests_running": "Samples that hold a slot.",
    "num_requests_waiting": "Samples that wait for one.",
    "kv_cache_usage_perc": "Share of KV pages in use.",
}
# What a router has to know of the KV memory; vLLM has it as labels of a gauge that is 1.
MEMORY = "cache_config_info"
# By context and batch, of fast numerics: exact ones count neither.
CLOSE = {
    "fast_tokens": "Tokens that fast numerics decided; exact ones are not here.",
    "near_ties": "Of them, decided more closely than fast numerics can tell.",
}
# By the tokens before a round.
AT_CONTEXT = {
    "spec_decode_num_drafts_at_context": "Rounds with at least one draft node, by context.",
    "spec_decode_num_accepted_tokens_at_context": "Draft tokens accepted, by context.",
}
OWN_GAUGES = {
    "pending_tokens": "Prompts and most outputs of everything unfinished.",
    "reading_characters": "Of long texts that wait to be tokenised.",
    "uptime_seconds": "Since the server was started.",
    "graphs_recorded": "Graphs of rounds so far; where loading recorded them all, it stays so.",
}


@dataclass(frozen=True)
class Standing:
    """How things stand at the moment of a scrape; named as the gauges are."""

    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage_perc: float
    pending_tokens: int
    reading_characters: int
    graphs_recorded: int


@dataclass
class Totals:
    """Since the start; the log tells what was added every few seconds."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_drafts: int = 0
    num_accepted_tokens: int = 0

    def since(self, before: Totals) -> Totals:
        """What was added."""
        names = [entry.name for entry in fields(self)]
        return Totals(**{name: getattr(self, name) - getattr(before, name) for name in names})


class _Family:
    """Every metric under one prefix and one set of labels."""

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        options: dict[str, Any] = {"registry": registry}

        def made(kind: Any, name: str, words: str, more: tuple[str, ...] = (), **own: Any) -> Any:
            return kind(prefix + name, words, [*labels, *more], **options, **own)

        plain = {name: made(Counter, name, words) for name, words in COUNTS.items()}
        plain |= {name: made(Gauge, name, words) for name, words in GAUGES.items()}
        plain |= {
            name: made(Histogram, name, words, buckets=[float(part) for part in bounds.split()])
            for name, (words, bounds) in HISTOGRAMS.items()
        }
        self._plain = {
            name: metric.labels(**labels) if labels else metric for name, metric in plain.items()
        }
        by_depth = made(Counter, PER_POSITION, "Draft tokens accepted, by depth.", ("position",))
        by_reason = made(Counter, "request_success", "Samples that ended.", ("finished_reason",))
        memory = made(Gauge, MEMORY, "The KV memory.", ("block_size", "num_gpu_blocks"))
        self._labelled = {PER_POSITION: by_depth, "request_success": by_reason, MEMORY: memory}

    def __getitem__(self, name: str) -> Any:
        return self._plain[name]

    def labelled(self, name: str, **labels: str) -> Any:
        """A metric that has labels of its own."""
        return self._labelled[name].labels(**self._labels, **labels)

    def memory(self, page_size: int, n_pages: int) -> None:
        """Say how KV memory is divided; what was said before is gone."""
        self._labelled[MEMORY].clear()
        self.labelled(MEMORY, block_size=str(page_size), num_gpu_blocks=str(n_pages)).set(1)


class Metrics:
    """One registry of its own; under other names too where a dashboard expects them."""

    def __init__(self, name: str, compat: str | None = None) -> None:
        self.registry = CollectorRegistry()
        self.totals = Totals()
        self._began = time.monotonic()
        self._families = [_Family(self.registry, "aerie_", {})]
        if compat:
            labels = {"model_name": name, "engine": "0"}
            self._families.append(_Family(self.registry, f"{compat}:", labels))
        self._refused = Counter(
            "aerie_request_errors", "Answers with an error.", ["status"], registry=self.registry
        )
        self._load = Gauge(
            "aerie_load_seconds", "Loading, by phase.", ["phase"], registry=self.registry
        )
        self._close = {
            name: Counter(f"aerie_{name}", words, ["context", "batch"], registry=self.registry)
            for name, words in CLOSE.items()
        }
        self._at_context = {
            name: Counter(f"aerie_{name}", words, ["context"], registry=self.registry)
            for name, words in AT_CONTEXT.items()
        }
        self._gauges = {
            name: Gauge(f"aerie_{name}", words, registry=self.registry)
            for name, words in OWN_GAUGES.items()
        }

    def refused(self, status: int) -> None:
        """An answer was an error."""
        self._refused.labels(status=str(status)).inc()

    def entered(self, n_prompt: int) -> None:
        """A request was taken in."""
        self.totals.prompt_tokens += n_prompt
        self._add("prompt_tokens", n_prompt)

    def first_text(self, seconds: float) -> None:
        """A sample has its first tokens."""
        self._observe("time_to_first_token_seconds", seconds)

    def grew(self, n_tokens: int, seconds: float | None) -> None:
        """A round added tokens to a sample, so long after the one before."""
        self.totals.generation_tokens += n_tokens
        self._add("generation_tokens", n_tokens)
        if seconds is not None:
            self._observe("inter_token_latency_seconds", seconds)

    def ended(self, ask: Ask, end: End, began: float, first: float | None) -> None:
        """A sample is over."""
        now, completion = time.monotonic(), end.completion
        statistics, n_tokens = completion.statistics, len(completion.token_ids)
        self._observe("e2e_request_latency_seconds", now - began)
        self._observe("request_queue_time_seconds", end.started - end.entered)
        self._observe("request_inference_time_seconds", now - end.started)
        if first is not None:
            self._observe("request_prefill_time_seconds", first - end.started)
            self._observe("request_decode_time_seconds", now - first)
            if n_tokens > 1:
                per_token = (now - first) / (n_tokens - 1)
                self._observe("request_time_per_output_token_seconds", per_token)
        self._observe("request_prompt_tokens", len(ask.prompt))
        self._observe("request_generation_tokens", n_tokens)
        self._add("num_preemptions", statistics.preemptions)
        self._add("prefix_cache_queries", len(ask.prompt))
        self._add("prefix_cache_hits", statistics.reused_tokens)
        self._add("spec_decode_num_drafts", statistics.num_drafts)
        self._add("spec_decode_num_draft_tokens", statistics.num_draft_tokens)
        self._add("spec_decode_num_accepted_tokens", statistics.num_accepted_tokens)
        self.totals.num_drafts += statistics.num_drafts
        self.totals.num_accepted_tokens += statistics.num_accepted_tokens
        for name, counts in zip(CLOSE, statistics.near_ties.counts, strict=True):
            for (context, batch), count in counts.items():
                self._close[name].labels(context=context, batch=batch).inc(count)
        by_context = statistics.by_context
        for name, by in zip(AT_CONTEXT, (by_context.drafts, by_context.accepted), strict=True):
            for context, count in by.items():
                self._at_context[name].labels(context=context).inc(count)
        for family in self._families:
            family.labelled("request_success", finished_reason=completion.finish_reason).inc()
            for depth, count in statistics.accepted_by_depth.items():
                family.labelled(PER_POSITION, position=str(depth - 1)).inc(count)

    def loaded(self, facts: Facts) -> None:
        """The engine is ready, after so long by phase, with so much memory."""
        for phase, span in facts.load_seconds.items():
            self._load.labels(phase=phase).set(span)
        for family in self._families:
            family.memory(facts.page_size, facts.n_pages - 1)

    def page(self, now: Standing) -> bytes:
        """What a scrape reads."""
        for family in self._families:
            for name in GAUGES:
                family[name].set(getattr(now, name))
        for name in ("pending_tokens", "reading_characters", "graphs_recorded"):
            self._gauges[name].set(getattr(now, name))
        self._gauges["uptime_seconds"].set(time.monotonic() - self._began)
        return generate_latest(self.registry)

    def _add(self, name: str, count: int) -> None:
        for family in self._families:
            family[name].inc(count)

    def _observe(self, name: str, value: float) -> None:
        for family in self._families:
            family[name].observe(value)

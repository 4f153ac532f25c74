"""Counters for Prometheus: requests, tokens, times, and what speculation won."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aerie.api import Completion

COUNTS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens generated.",
    "spec_decode_num_drafts": "Rounds with at least one draft node.",
    "spec_decode_num_draft_tokens": "Draft nodes verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
}
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One registry of its own; under other names too where a dashboard expects them."""

    def __init__(self, compat: str | None = None) -> None:
        self.registry = CollectorRegistry()
        prefixes = ["aerie_", f"{compat}:"] if compat else ["aerie_"]
        counter = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=SECONDS)
        self._counts = {
            name: [counter(prefix + name, words) for prefix in prefixes]
            for name, words in COUNTS.items()
        }
        self._by_position = [
            counter(f"{prefix}{PER_POSITION}", "Draft tokens accepted, by depth.", ["position"])
            for prefix in prefixes
        ]
        self._ended = [
            counter(f"{prefix}request_success", "Samples that ended.", ["finished_reason"])
            for prefix in prefixes
        ]
        self._refused = counter("aerie_request_errors", "Answers with an error.", ["status"])
        self._first = seconds("aerie_time_to_first_token_seconds", "From request to text.")
        self._whole = seconds("aerie_request_seconds", "From request to its end.")
        self._gauges = {
            name: [Gauge(prefix + name, words, registry=self.registry) for prefix in prefixes]
            for name, words in (
                ("num_requests_running", "Samples that hold a slot."),
                ("kv_cache_usage_perc", "Share of KV pages in use."),
            )
        }

    def first_text(self, seconds: float) -> None:
        """The first text of a request has come."""
        self._first.observe(seconds)

    def refused(self, status: int) -> None:
        """An answer was an error."""
        self._refused.labels(status=str(status)).inc()

    def ended(self, n_prompt: int, completions: Sequence[Completion], seconds: float) -> None:
        """A request is over, with all its samples."""
        self._whole.observe(seconds)
        self._add("prompt_tokens", n_prompt)
        for completion in completions:
            statistics = completion.statistics
            self._add("generation_tokens", len(completion.token_ids))
            self._add("spec_decode_num_drafts", statistics.num_drafts)
            self._add("spec_decode_num_draft_tokens", statistics.num_draft_tokens)
            self._add("spec_decode_num_accepted_tokens", statistics.num_accepted_tokens)
            for depth, count in statistics.accepted_by_depth.items():
                for counter in self._by_position:
                    counter.labels(position=str(depth - 1)).inc(count)
            for counter in self._ended:
                counter.labels(finished_reason=completion.finish_reason).inc()

    def page(self, n_running: int, kv_usage: float) -> bytes:
        """What a scrape reads."""
        for name, value in (("num_requests_running", n_running), ("kv_cache_usage_perc", kv_usage)):
            for gauge in self._gauges[name]:
                gauge.set(value)
        return generate_latest(self.registry)

    def _add(self, name: str, count: int) -> None:
        for counter in self._counts[name]:
            counter.inc(count)

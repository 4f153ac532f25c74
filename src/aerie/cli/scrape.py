"""What a running server says of itself over HTTP: its health, what it serves, its metrics."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from aerie.errors import UsageError

ANSWER_SECONDS = 5.0
LINE = re.compile(r"(?P<name>[a-z0-9_]+)(?:\{(?P<labels>.+)\})? (?P<number>\S+)")
LABEL = re.compile(r'\w+="([^"]*)"')
PREFIX = "aerie_"
NO_ANSWER = "no answer"
Bucket = tuple[float, float]  # its upper bound, and how many values are at most that


@dataclass(frozen=True)
class Scrape:
    """One moment of a server; without values where it does not serve, and says why."""

    when: float
    status: str  # what /health says, or that nothing answers
    about: dict[str, Any] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)  # by name, without the prefix
    labelled: dict[str, dict[str, float]] = field(default_factory=dict)  # by name, by labels

    def buckets(self, name: str) -> list[Bucket]:
        """Of a histogram, in order, as counts up to each bound."""
        found = self.labelled.get(f"{name}_bucket", {})
        return sorted((float(bound), count) for bound, count in found.items())


def scrape(url: str, key: str | None) -> Scrape:
    """Ask a server how it stands; a wrong key is the caller's to mend."""
    now = time.monotonic()
    try:
        health = json.loads(_get(url + "/health", None))
        status = ": ".join(health[name] for name in ("status", "reason") if name in health)
        if health["status"] != "ready":
            return Scrape(now, status)
        about = json.loads(_get(url + "/about", key))
        values, labelled = parse(_get(url + "/metrics", key))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "reason", error)
        return Scrape(now, f"{NO_ANSWER}: {reason}")
    return Scrape(now, status, about, values, labelled)


def parse(page: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Our own names of a page of metrics: plain ones, and those with labels."""
    values: dict[str, float] = {}
    labelled: dict[str, dict[str, float]] = {}
    for line in page.splitlines():
        found = LINE.fullmatch(line)
        if found is None or not found["name"].startswith(PREFIX):
            continue
        name = found["name"].removeprefix(PREFIX)
        if found["labels"] is None:
            values[name] = float(found["number"])
        else:
            key = ",".join(LABEL.findall(found["labels"]))
            labelled.setdefault(name, {})[key] = float(found["number"])
    return values, labelled


def added(before: list[Bucket], after: list[Bucket]) -> list[Bucket]:
    """What came into a histogram between two looks at it."""
    old = dict(before)
    return [(bound, count - old.get(bound, 0.0)) for bound, count in after]


def percentile(buckets: list[Bucket], share: float) -> float | None:
    """The value below which that share lies, straight within a bucket; None: there are none."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    wanted, low, below = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            # The last bucket has no end: its beginning is all that is known.
            return low if bound == float("inf") else low + inside * (bound - low)
        low, below = bound, count
    return low


def _get(url: str, key: str | None) -> str:
    request = urllib.request.Request(url)
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise UsageError(
                f"{url} wants its API key: give --api-key KEY, or set AERIE_API_KEY"
            ) from error
        return error.read().decode()  # 503: it says why

"""`aerie top`: how a running server goes, live in a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from aerie.cli.checks import amount
from aerie.cli.output import console
from aerie.cli.scrape import NO_ANSWER, Bucket, Scrape, added, percentile, scrape
from aerie.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group

Url = Annotated[str, typer.Option(help="Where the server listens.")]
Key = Annotated[str | None, typer.Option(envvar="AERIE_API_KEY", help="The server's, if any.")]
Every = Annotated[float, amount(0.1, "Seconds between two looks.")]
Once = Annotated[bool, typer.Option("--once", help="One frame, then end; 1 if nothing serves.")]

BARS = " ▁▂▃▄▅▆▇█"
KEPT = 60  # looks that the curve shows
SHARES = (0.5, 0.9, 0.99)
TIMES = {"first token": "time_to_first_token_seconds", "gap": "inter_token_latency_seconds"}


def top(
    url: Url = "http://127.0.0.1:8000",
    api_key: Key = None,
    every: Every = 1.0,
    is_once: Once = False,
) -> None:
    """Watch a running server: tokens a second, requests, KV memory, acceptance, times, rounds."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url is {url!r}: it begins with http:// or https://")
    from rich.live import Live

    url = url.rstrip("/")
    looks = deque([scrape(url, api_key)], KEPT)
    if looks[0].status.startswith(NO_ANSWER):
        raise UsageError(f"{url}: {looks[0].status}; start a server, or give its --url")

    def look() -> Group:
        time.sleep(every)
        looks.append(scrape(url, api_key))
        return frame(url, list(looks))

    if is_once:
        console().print(look())
        if not looks[-1].values:
            raise typer.Exit(1)
        return
    with Live(frame(url, list(looks)), console=console(), screen=True) as shown:
        while True:
            shown.update(look(), refresh=True)


def frame(url: str, looks: list[Scrape]) -> Group:
    """One picture; the last two looks tell what happens now."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now, before = looks[-1], looks[-2] if len(looks) > 1 else looks[-1]
    head = Text(f"aerie top   {url}   {now.about.get('model', '')}   {now.status}", "bold")
    if not now.values:
        return Group(head)
    table = Table(box=box.SIMPLE, show_edge=False)
    for name in ("", f"last {now.when - before.when:.1f} s", "since it started"):
        table.add_column(name, no_wrap=True)
    if before.values.get("uptime_seconds", 0.0) > now.values["uptime_seconds"]:
        before = now  # it was started anew
    table.add_row("tokens/s out", *_rates("generation_tokens_total", before, now))
    table.add_row("", _curve(looks), "")
    table.add_row("tokens/s in", *_rates("prompt_tokens_total", before, now))
    running, waiting = (now.values[f"num_requests_{name}"] for name in ("running", "waiting"))
    pending = f"{now.values['pending_tokens']:,.0f} tokens pending"
    table.add_row("requests", f"{running:.0f} running, {waiting:.0f} waiting", pending)
    table.add_row("KV memory", _memory(now), "")
    table.add_row("acceptance", _acceptance(before.values, now.values), _acceptance({}, now.values))
    table.add_row("near ties", "", _near_ties(now))
    table.add_row("rounds/s", *_rounds(before, now))
    for words, name in TIMES.items():
        all_of_it = now.buckets(name)
        table.add_row(words, _times(added(before.buckets(name), all_of_it)), _times(all_of_it))
    table.add_row("ended", "", _listed(now.labelled.get("request_success_total", {})))
    table.add_row("errors", "", _listed(now.labelled.get("request_errors_total", {})))
    table.add_row("up", "", f"{now.values['uptime_seconds']:,.0f} s")
    policy = f"policy {now.about.get('policy')}: {now.about.get('reason') or 'nothing drafted yet'}"
    return Group(head, table, Text(policy))


def _rates(name: str, before: Scrape, now: Scrape) -> tuple[str, str]:
    up = now.values["uptime_seconds"]
    return _rate(name, before, now), f"{now.values[name] / up:.1f}" if up else "-"


def _rate(name: str, before: Scrape, now: Scrape) -> str:
    seconds = now.when - before.when
    return f"{(now.values[name] - before.values.get(name, 0.0)) / seconds:.1f}" if seconds else "-"


def _curve(looks: list[Scrape]) -> str:
    """Tokens a second, from look to look."""
    name = "generation_tokens_total"
    served = [look for look in looks if look.values]
    rates = [
        max(0.0, (after.values[name] - before.values[name]) / (after.when - before.when))
        for before, after in pairwise(served)
    ]
    most = max(rates, default=0.0) or 1.0
    return "".join(BARS[round(rate / most * (len(BARS) - 1))] for rate in rates)


def _memory(now: Scrape) -> str:
    share = now.values["kv_cache_usage_perc"]
    full = round(20 * share)
    return f"{'█' * full}{'░' * (20 - full)} {100 * share:.1f} %"


def _acceptance(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """Tokens a drafted round, the target's own included; counted when a sample ends."""
    drafts, accepted = (
        now[name] - before.get(name, 0.0)
        for name in (
            "spec_decode_num_drafts_total",
            "spec_decode_num_accepted_tokens_total",
        )
    )
    return f"{1 + accepted / drafts:.2f}" if drafts > 0 else "-"


def _near_ties(now: Scrape) -> str:
    """Share of the tokens that fast numerics decided and might have decided otherwise."""
    near, tokens = (
        sum(now.labelled.get(f"{name}_total", {}).values()) for name in ("near_ties", "fast_tokens")
    )
    if tokens:
        return f"{near / tokens:.1e} of {tokens:,.0f} tokens"
    return "none: exact numerics" if now.about.get("numerics") == "exact" else "-"


def _rounds(before: Scrape, now: Scrape) -> tuple[str, str]:
    """Rounds that added tokens to a sample: the first one, and each that followed it."""
    both = [f"{name}_count" for name in TIMES.values()]
    seconds, up = now.when - before.when, now.values["uptime_seconds"]
    total = sum(now.values[name] for name in both)
    recent = total - sum(before.values.get(name, 0.0) for name in both)
    return f"{recent / seconds:.1f}" if seconds else "-", f"{total / up:.1f}" if up else "-"


def _times(buckets: list[Bucket]) -> str:
    found = [percentile(buckets, share) for share in SHARES]
    return "  ".join(
        f"p{100 * share:.0f} {'-' if value is None else f'{1000 * value:,.0f} ms'}"
        for share, value in zip(SHARES, found, strict=True)
    )


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:,.0f}" for name, count in sorted(counts.items())) or "none"

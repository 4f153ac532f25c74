"""What is served and how it goes, in a line each: for the terminal and the log."""

from __future__ import annotations

from collections.abc import Mapping

from aerie.server.metrics import Standing, Totals
from aerie.server.samples import Facts


def describe_engine(name: str, facts: Facts) -> str:
    """Model, dtype, device, context, memory, policy and draft."""
    config, speculation = facts.config, facts.config.speculation
    limits = speculation.limits
    if speculation.method == "none":
        drafts = "no drafts"
    else:
        head = config.model.draft or ("its own head" if config.model.model is None else "no head")
        by = f"{speculation.method} ({head})" if "eagle3" in speculation.method else "ngram"
        shape = f"depth {limits.depth}, top-k {limits.top_k}, {limits.nodes} nodes at most"
        drafts = f"drafts by {by}, policy {speculation.chosen_policy}, {shape}"
    return (
        f"{name}: {config.model.dtype} on {config.model.device}, {config.backend} kernels,"
        f" {config.engine} rounds;"
        f" context {facts.limits.context} tokens, KV for {facts.n_slots} tokens,"
        f" {config.scheduler.max_batch} at a time; {drafts}"
    )


def describe_readiness(load_seconds: Mapping[str, float], n_graphs: int) -> str:
    """How long loading took, by phase, and what was recorded."""
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in load_seconds.items())
    return f"loaded in {sum(load_seconds.values()):.1f} s ({phases}); {n_graphs} graphs"


def describe_load(
    added: Totals, now: Standing, seconds: float, why: str | None = None
) -> str | None:
    """How the last seconds went; None where nothing happened. `why` is the policy's own reason."""
    if not (added.prompt_tokens or added.generation_tokens or now.num_requests_running):
        return None
    n_drafts = added.num_drafts
    accepted = f"{1 + added.num_accepted_tokens / n_drafts:.2f}" if n_drafts else "none"
    if not n_drafts and why:
        accepted += f" ({why})"
    return (
        f"{added.generation_tokens / seconds:.1f} tokens/s out, "
        f"{added.prompt_tokens / seconds:.1f} in; running {now.num_requests_running}, "
        f"waiting {now.num_requests_waiting}, KV {100 * now.kv_cache_usage_perc:.1f} %, "
        f"acceptance {accepted}"
    )

"""How drafts are made and judged, and what the planner plans from."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from aerie.config.values import choice, optional, read_fields, read_integer, read_text, require
from aerie.errors import UnknownNameError, UsageError

MAX_VERIFY = 128
MOST_HOT = 8192  # rows of the LM head that every seat keeps a copy of


@dataclass(frozen=True)
class TreeLimits:
    """A tree in three numbers: fixed trees have them, planned trees stay within them."""

    top_k: int  # children per frontier node; 1 is a chain
    depth: int  # draft levels
    nodes: int  # rows verified per request, the root included


# What each policy uses where nothing is given.
LIMITS = {
    "fixed": TreeLimits(1, 5, 6),
    "planner": TreeLimits(8, 12, 64),
    "cast": TreeLimits(8, 8, 64),
}


@dataclass(frozen=True)
class SpeculationConfig:
    """How drafts are made and judged; `method` none is plain decoding."""

    method: str = "eagle3"  # "eagle3", "ngram", "eagle3+ngram" or "none"
    # "planner" (trees from measured costs), "fixed", "cast"; auto: the planner, unless a shape
    # is given or there is no draft head whose cost could be planned.
    policy: str = "auto"
    top_k: int | None = None
    depth: int | None = None
    nodes: int | None = None
    ngram: int = 8  # longest suffix looked up in the request's own text
    # Ids that all drafts share, the most frequent of a file of `aerie draft-vocab build`; 0: the
    # head's own vocabulary. Beside them each request drafts ids of its prompt, at most so many.
    hot_vocabulary: int = 0
    hot_counts: str | None = None
    hot_prompt_ids: int = 1024
    rule: str = "match"  # "match" (same seed, same tokens) or "coins" (same distribution)

    def __post_init__(self) -> None:
        read_fields(self)
        choice("method", self.method, ("eagle3", "ngram", "eagle3+ngram", "none"))
        choice("policy", self.policy, ("auto", *LIMITS))
        choice("rule", self.rule, ("match", "coins"))
        require(self.hot_vocabulary >= 0, f"hot_vocabulary is {self.hot_vocabulary}, 0 or more")
        is_cap = 0 <= self.hot_prompt_ids <= MOST_HOT
        require(is_cap, f"hot_prompt_ids is {self.hot_prompt_ids}, limit 0..{MOST_HOT}")
        is_used = self.hot_vocabulary > 0 or self.hot_counts is None
        require(is_used, "hot_counts are for hot_vocabulary: say how many ids drafts share")
        is_counted = not self.hot_vocabulary or self.hot_counts is not None
        require(is_counted, "hot_vocabulary needs hot_counts: a file of aerie draft-vocab build")
        limits = self.limits
        require(1 <= limits.top_k <= 10, f"top_k is {limits.top_k}, limit 1..10")
        most = MAX_VERIFY // limits.top_k
        require(
            1 <= limits.depth <= most, f"depth is {limits.depth}, limit 1..{most} at this top_k"
        )
        require(1 <= limits.nodes <= MAX_VERIFY, f"nodes is {limits.nodes}, limit 1..{MAX_VERIFY}")

    @property
    def chosen_policy(self) -> str:
        """The policy, with auto resolved."""
        if self.policy != "auto":
            return self.policy
        is_shaped = any(number is not None for number in (self.top_k, self.depth, self.nodes))
        return "fixed" if is_shaped or "eagle3" not in self.method else "planner"

    @property
    def limits(self) -> TreeLimits:
        """The three numbers, given or the policy's own."""
        given = {"top_k": self.top_k, "depth": self.depth, "nodes": self.nodes}
        known = {name: number for name, number in given.items() if number is not None}
        return replace(LIMITS[self.chosen_policy], **known)

    @classmethod
    def from_vllm(cls, text: str) -> tuple[SpeculationConfig, str | None]:
        """vLLM's --speculative-config JSON; returns the draft model beside the configuration."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the speculative config is not JSON: {error}") from error
        require(isinstance(values, dict), "the speculative config must be a JSON object")
        known = {"method", "model", "num_speculative_tokens"}
        for name in values:
            if name not in known:
                raise UnknownNameError("key of the speculative config", name, known)
        method = values.get("method", "eagle3")
        require(method in ("eagle3", "ngram"), f"method {method!r:.60} is not eagle3 or ngram")
        depth = read_integer("num_speculative_tokens", values.get("num_speculative_tokens", 5))
        draft = optional(read_text)("model", values.get("model"))
        return cls(method=method, top_k=1, depth=depth, nodes=depth + 1), draft


@dataclass(frozen=True)
class PlannerConfig:
    """Where the planner's costs come from, and how often it looks further than it would."""

    costs: str | None = None  # a file of `aerie tune costs`; None: measured once, and kept
    explore_every: int = 24  # drafting rounds; 0 never
    foreign_costs: bool = False  # take a file that was measured on another device or pair, too

    def __post_init__(self) -> None:
        read_fields(self)
        require(self.explore_every >= 0, f"explore_every is {self.explore_every}, at least 0")

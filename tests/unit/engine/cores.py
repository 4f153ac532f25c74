"""A trained tiny pair as engine cores, and a loop that runs them; shared, not a test itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.assemble.core import build_core, load_draft, load_target, untapped
from aerie.config import (
    CacheConfig,
    EngineConfig,
    GraphConfig,
    ModelConfig,
    PlannerConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from aerie.engine.captured import Captured
from aerie.engine.engine import EngineCore, Limits
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.requests.params import SamplingParams
from tests.unit.models import pairs
from tests.unit.models.trained_pair import BOUNDARIES, train

DATA = Path(__file__).parents[2] / "data"
CHEAP = PlannerConfig(str(DATA / "costs_cheap.json"), explore_every=3, foreign_costs=True)
# Drafting hardly ever pays: spells without drafts, looks, and coming back.
DEAR = PlannerConfig(str(DATA / "costs_dear.json"), explore_every=2, foreign_costs=True)

PLAIN = SpeculationConfig(method="none")
SPECULATION = {
    "chain": SpeculationConfig(top_k=1, depth=4, nodes=5),
    "tree": SpeculationConfig(top_k=3, depth=3, nodes=12),
    "wide": SpeculationConfig(top_k=5, depth=2, nodes=20),
    "ngram": SpeculationConfig(method="ngram", depth=4, nodes=5),
    "merged": SpeculationConfig(method="eagle3+ngram", top_k=2, depth=3, nodes=9),
    "planned": SpeculationConfig(policy="planner", top_k=4, depth=4, nodes=20),
    "moody": SpeculationConfig(policy="planner", method="eagle3+ngram", top_k=3, depth=4, nodes=9),
}
PLANNERS = {"moody": DEAR}  # the others have CHEAP

LAUNCHERS = ("direct", "graphs")
# Small sizes, so that a run crosses several of each kind; whatever is missing is recorded at once.
BUCKETS = GraphConfig(
    slots=(1, 2, 4),
    rows=(4, 8, 16, 24),
    chunks=(4, 16, 64),
    tiles=(2, 4, 12),
    columns=(32, 64, 128),
    record_every=0,
)

LIMITS = Limits(context=96, vocabulary=pairs.VOCAB, eos_ids=(5,))


@dataclass
class Pair:
    """A loaded pair for one kind of numerics."""

    target: Decoder
    head: Eagle3Head
    limits: Limits = LIMITS


def write_pair(directory: Path) -> Path:
    """Train the tiny pair and write both checkpoints."""
    trained = train(directory)
    ids = [boundary - 1 for boundary in BOUNDARIES]
    trained.write_head(directory / "head", eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
    return directory


def load_pair(
    directory: Path, numerics: str, ranks: int = 1, window: int | None = 0, products: str = "auto"
) -> Pair:
    """The pair of a directory; its head sees everything unless a window is given, None: its own."""
    # The head's config names fewer positions than any test has: no window may come from that.
    config = ModelConfig(
        device="cpu",
        numerics=numerics,
        tensor_parallel=ranks,
        draft_window=window,
        draft_products=products,
    )
    target = load_target(directory / "target", config)
    return Pair(target, load_draft(directory / "head", target, config))


def core(pair: Pair, numerics: str = "exact", **settings: Any) -> EngineCore:
    """An engine over the pair; settings are those of the slices, by name."""
    speculation = settings.pop("speculation", SpeculationConfig())
    tap = settings.pop("tap", untapped)
    config = EngineConfig(
        model=ModelConfig(device="cpu", numerics=numerics),
        cache=CacheConfig(
            n_pages=settings.pop("n_pages", 256),
            page_size=settings.pop("page_size", 4),
            prefix_reuse=settings.pop("prefix_reuse", True),
        ),
        scheduler=SchedulerConfig(
            max_batch=settings.pop("max_batch", 8), prefill_chunk=settings.pop("chunk", 16)
        ),
        speculation=speculation,
        planner=settings.pop("planner", CHEAP),
        graphs=settings.pop("graphs", BUCKETS),
        audit=settings.pop("audit", True),
        **settings,
    )
    return build_core(config, pair.target, pair.head, pair.limits, tap)


def captured(engine: EngineCore) -> Captured:
    """The launcher of an engine whose rounds are graphs."""
    assert isinstance(engine.launcher, Captured)
    return engine.launcher


def assert_pool_is_unheld(engine: EngineCore) -> None:
    """Every page is free, or kept only for its content."""
    ledger = engine.memory.ledger
    assert ledger.n_free + ledger.n_idle == ledger.n_pages - 1


def finish_all(engine: EngineCore, most_steps: int = 2000) -> None:
    """Step until nothing is left."""
    for _ in range(most_steps):
        if engine.is_idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def outputs(engine: EngineCore, jobs: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    """Run jobs together; their outputs in order."""
    ids = [engine.submit(prompt, params) for prompt, params in jobs]
    finish_all(engine)
    return [engine.request(request_id).output for request_id in ids]

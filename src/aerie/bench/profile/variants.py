"""The levers of an ablation: engines that differ from the full one in a single thing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aerie.api import find_pair
from aerie.assemble_numerics import find_numerics
from aerie.attention.contract import PrepareAttention
from aerie.bench.profile.session import Session
from aerie.bench.round.setup import PAGE, RoundSetup
from aerie.config import GraphConfig
from aerie.models.draft_vocabulary import head_ids, slice_head
from aerie.models.inflate import InflateOptions, LargePair, inflate_to_device
from aerie.models.inflate_geometry import find_geometry
from aerie.models.inflate_pair import read_pair
from aerie.models.load import LoadOptions

FULL = "all on"


@dataclass(frozen=True, eq=False)
class Variant:
    """An engine of the comparison; `lever` is the one thing that is off."""

    lever: str
    setting: str
    setup: RoundSetup
    pair: LargePair
    graphs: GraphConfig = field(default_factory=GraphConfig)


def variants(session: Session) -> list[Variant]:
    """All on, then one lever off at a time."""
    setup, pair = session.setup, session.pair
    size = pair.head.summary.geometry.draft_vocab_size
    found = [Variant(FULL, f"{size} draft ids", setup, pair)]
    found.append(Variant("graphs", "called one by one", replace(setup, engine="direct"), pair))
    library = replace(setup, linear="library")
    loaded = session.shared("pair of library products", library.load)
    found.append(Variant("tuned products", "cuBLAS", library, loaded))
    found.append(Variant("tuned attention", "one tile for all", setup, untuned(setup, pair)))
    for label, make in vocabularies(session).items():
        other = session.shared(f"pair of {label}", make)
        found.append(Variant("draft vocabulary", label, setup, other))
    return found


def untuned(setup: RoundSetup, pair: LargePair) -> LargePair:
    """The pair with one attention tile for every shape; on a CPU there is nothing to untune."""
    if not setup.device.startswith("cuda"):
        return pair
    backend = importlib.import_module("aerie.attention.triton")
    # A common choice where nothing was measured: square blocks, two in flight, two programs.
    tile = backend.Tile(block_m=64, block_n=64, n_warps=4, n_stages=3, per_processor=2)
    attention: PrepareAttention = backend.TritonAttention(
        backend.one_tile(tile), backend.TritonOptions(page_size=PAGE)
    )
    return LargePair(
        replace(pair.target, prepare_attention=attention),
        replace(pair.head, prepare_attention=attention),
    )


def vocabularies(session: Session) -> dict[str, Callable[[], LargePair]]:
    """Heads with more and with fewer draft ids than the full engine's.

    An inflated head's further rows are never proposed, so these cost what they cost without
    changing a proposal; what fewer live ids do to acceptance is in reports/draft_vocabulary.md.
    """
    pair = session.pair
    ids = head_ids(pair.head)
    fewer = 16384 if len(ids) > 16384 else len(ids) // 2
    found: dict[str, Callable[[], LargePair]] = {
        f"{fewer} draft ids": lambda: sliced(session, fewer)
    }
    vocabulary = pair.target.geometry.vocab_size
    if session.setup.geometry is not None and len(ids) < vocabulary:
        found[f"{vocabulary} draft ids"] = lambda: widened(session)
    return found


def sliced(session: Session, size: int) -> LargePair:
    """The pair with the first ids of its head's vocabulary: an inflated pair's live ids are low."""
    pair = session.pair
    dense = find_numerics(session.setup.model, PAGE).dense
    return LargePair(pair.target, slice_head(pair.head, head_ids(pair.head)[:size], dense))


def widened(session: Session) -> LargePair:
    """The pair with a head that could propose every id of the target."""
    setup, pair = session.setup, session.pair
    assert setup.geometry is not None, "only an inflated head can be made wider"
    own = find_geometry(setup.geometry)
    geometry = replace(own, draft_vocab_size=own.vocab_size)
    numerics = find_numerics(setup.model, PAGE)
    options = LoadOptions(
        pair.target.embedding.dtype,
        setup.device,
        numerics.dense,
        numerics.is_fused,
        numerics.ops,
    )
    target_dir, draft_dir = find_pair(None, None)
    assert draft_dir is not None, "the built-in pair has a head"
    small = read_pair(target_dir, draft_dir)
    made = inflate_to_device(small, geometry, numerics.prepare_attention, InflateOptions(options))
    return LargePair(pair.target, made.head)

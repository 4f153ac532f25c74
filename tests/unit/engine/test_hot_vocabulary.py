"""Hot ids: which a prompt adds, what they are multiplied by, and tokens of plain decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.engine.masks import Masks
from aerie.errors import UsageError
from aerie.kernels import load
from aerie.models.draft_vocabulary import count_ids, head_ids, save_counts
from aerie.requests.params import SamplingParams
from aerie.speculation.hot import HotIds
from tests.unit.engine.cores import PLAIN, Pair, core, finish_all, outputs
from tests.unit.engine.test_grammar import make_jobs, run
from tests.unit.models import pairs

N_SHARED, MOST = 6, 3


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Low ids are frequent."""
    texts = [list(range(n)) for n in range(1, pairs.VOCAB)]
    path = tmp_path_factory.mktemp("counts") / "counts.json"
    save_counts(path, count_ids(texts, pairs.VOCAB, "a test"), ())
    return str(path)


def small(counts: str, most: int = MOST, **more: object) -> SpeculationConfig:
    shape = {"top_k": 2, "depth": 3, "nodes": 6, **more}
    return SpeculationConfig(
        hot_vocabulary=N_SHARED,
        hot_counts=counts,
        hot_prompt_ids=most,
        **shape,  # type: ignore[arg-type]
    )


def hot_of(engine: EngineCore) -> HotIds:
    draft = engine.parts.draft
    assert draft is not None and draft.hot is not None
    return draft.hot


def job(start: int, heat: float = 0.0) -> tuple[list[int], SamplingParams]:
    prompt = [(start + 7 * i) % pairs.VOCAB for i in range(6 + start % 5)]
    return prompt, SamplingParams(max_tokens=24, ignore_eos=True, temperature=heat, seed=start)


def test_a_prompt_adds_its_most_frequent_ids_that_not_all_share(pair: Pair, counts: str) -> None:
    engine = core(pair, speculation=small(counts))
    hot, known = hot_of(engine), head_ids(pair.head).tolist()
    shared = hot.token_map[0, :N_SHARED].tolist()
    assert shared == known[:N_SHARED]
    others = [token for token in known if token not in shared]
    unknown = [token for token in range(pairs.VOCAB) if token not in known]
    prompt = [*shared, *unknown, *others[:5], others[4], others[4], others[1]]
    assert hot.choose(prompt).tolist() == [others[4], others[1], others[0]]
    assert hot.choose(shared).tolist() == []


def test_logits_are_those_of_the_whole_head(pair: Pair, counts: str) -> None:
    """Two seats, each with its own ids; what a seat does not fill is impossible."""
    engine = core(pair, speculation=small(counts))
    hot, known = hot_of(engine), head_ids(pair.head)
    draft = engine.parts.draft
    assert draft is not None
    own = [known[-3:].numpy(), known[-1:].numpy()]
    hot.seat(own)
    normed = torch.randn((4, hot.weight.shape[1]))
    shared = torch.randn((4, N_SHARED))
    whole = normed @ hot.weight.T
    found = hot.logits(shared, normed, batch=2)
    assert torch.equal(found[:, :N_SHARED], shared)
    columns = torch.from_numpy(np.searchsorted(known.numpy(), own[0]))
    torch.testing.assert_close(found[:2, N_SHARED:], whole[:2][:, columns])
    torch.testing.assert_close(found[2:, N_SHARED], whole[2:, len(known) - 1])
    assert found[2:, N_SHARED + 1 :].isneginf().all()
    assert hot.token_map[0, N_SHARED:].tolist() == own[0].tolist()


@pytest.mark.parametrize(
    ("most", "more"),
    [(0, {}), (MOST, {"method": "eagle3+ngram"}), (MOST, {"policy": "planner"})],
    ids=["static", "with copied paths", "planned"],
)
def test_tokens_are_those_of_plain_decoding(
    pair: Pair, launcher: str, counts: str, most: int, more: dict[str, object]
) -> None:
    """Requests that come later, leave early and share a batch of several sizes."""
    jobs = [job(start, heat) for start, heat in ((1, 0.0), (5, 0.7), (9, 0.0), (13, 0.0), (4, 1.0))]
    plain = outputs(core(pair, speculation=PLAIN), jobs)
    engine = core(pair, speculation=small(counts, most, **more), engine=launcher)
    first = [engine.submit(*own) for own in jobs[:3]]
    for _ in range(3):
        engine.step()
    engine.cancel(first[1])
    later = [engine.submit(*own) for own in jobs[3:]]
    finish_all(engine)
    ids = [first[0], first[2], *later]
    kept = [plain[0], plain[2], *plain[3:]]
    assert [engine.request(request_id).output for request_id in ids] == kept
    assert sum(engine.request(request_id).statistics.num_drafts for request_id in ids) > 0


def test_only_hot_ids_are_drafted(pair: Pair, counts: str) -> None:
    """Every seat its own: what a neighbour's prompt has is not drafted."""
    engine = core(pair, speculation=small(counts))
    hot = hot_of(engine)
    jobs = [job(start) for start in (1, 5, 9)]
    allowed = {
        engine.submit(*own): {*hot.token_map[0, :N_SHARED].tolist(), *hot.choose(own[0]).tolist()}
        for own in jobs
    }
    n_beyond = 0
    while not engine.is_idle:
        engine.step()
        for request_id, tree in engine.launcher.trees.items():
            drafted = {node.token for node in tree.nodes[1:]}
            assert drafted <= allowed[request_id]
            n_beyond += len(drafted - set(hot.token_map[0, :N_SHARED].tolist()))
    assert n_beyond > 0


def test_what_cannot_be_is_refused(pair: Pair, counts: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hot_counts"):
        SpeculationConfig(hot_vocabulary=4)
    with pytest.raises(UsageError, match="hot_prompt_ids is 9000"):
        SpeculationConfig(hot_prompt_ids=9000)
    other = tmp_path / "other.json"
    save_counts(other, count_ids([[1, 2]], pairs.VOCAB + 1, "another target"), ())
    with pytest.raises(UsageError, match=f"counts {pairs.VOCAB + 1} ids"):
        core(pair, speculation=small(str(other)))
    with pytest.raises(UsageError, match="cannot come from"):
        core(pair, speculation=SpeculationConfig(hot_vocabulary=9999, hot_counts=counts))


def test_texts_under_grammars_are_those_of_plain_decoding(
    pair: Pair, launcher: str, counts: str
) -> None:
    jobs = make_jobs("hot", "greedy", n_jobs=5)
    plain = run(core(pair, speculation=PLAIN), jobs)
    found = run(core(pair, speculation=small(counts), engine=launcher), jobs)
    assert [request.output for request in found] == [request.output for request in plain]


def test_masks_are_of_each_seats_own_ids() -> None:
    masks = Masks(2, pairs.VOCAB, "cpu")
    masks.hold(2, 99)
    masks._first[:2] = torch.tensor([1, 2])
    masks._bits[1:] = torch.tensor([[1 << 5, 0], [1 << 4, 0]], dtype=torch.int32)
    ends, logits = torch.tensor([0, 1, 2], dtype=torch.int32), torch.zeros((2, 3))
    found = masks.masked(load("pytorch"), logits, ends, torch.tensor([[1, 5, 4], [4, 5, 9]]))
    assert [row.isfinite().nonzero().flatten().tolist() for row in found] == [[1], [0]]

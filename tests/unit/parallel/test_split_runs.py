"""A target in two processes: random runs, what a pass costs in messages, what is refused."""

import gc
from pathlib import Path

import pytest
import torch

from aerie.config import ModelConfig, SpeculationConfig
from aerie.errors import UsageError
from aerie.parallel.ranks import LeadingDecoder
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import core, finish_all, load_pair
from tests.unit.engine.random_runs import OPTIONS, TURNS, Tally
from tests.unit.parallel.split_runs import SEEDS, Both, load_built_in, play_both

# Both launchers and backends, with preemption, prefixes found again and cancels; others are slow.
FEW = (20, 23)


@pytest.mark.parametrize("seed", FEW)
def test_a_split_target_writes_what_the_whole_one_writes(both: Both, seed: int) -> None:
    tally = Tally()
    play_both(both, seed, tally)
    assert tally.counts["requests"]


@pytest.mark.slow
def test_all_runs_write_what_the_whole_target_writes(both: Both) -> None:
    tally, pairs = Tally(), (both, load_built_in())
    for seed in SEEDS:
        play_both(pairs[seed // len(TURNS)], seed, tally)
    assert len(tally.runs) == len(SEEDS) // 2 and len(tally.options) == len(OPTIONS)
    unmet = {name for name, n_met in tally.counts.items() if not n_met}
    assert unmet == {"tokens of previews", "tokens of previews that broke a run"}, "refused by name"


@pytest.mark.slow
def test_four_ranks_sum_in_one_order(pair_directory: Path) -> None:
    """With more than two, a library's sum depends on its length: on would not be off."""
    whole, split = load_pair(pair_directory, "exact"), load_pair(pair_directory, "exact", 4)
    tally = Tally()
    for seed in FEW:
        play_both(Both("tiny", whole, split), seed, tally)  # compares every token and its score
    assert tally.counts["tokens compared with the whole target's"]


def test_a_pass_is_one_broadcast(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    target = both.split.target
    assert isinstance(target, LeadingDecoder)
    group, sent, passes = target.broadcasts._group, [0], [0]
    broadcast, forward = group.broadcast, LeadingDecoder.forward

    def counted(words: torch.Tensor) -> None:
        sent[0] += 1
        broadcast(words)

    def run(*arguments: object) -> object:
        passes[0] += 1
        return forward(*arguments)  # type: ignore[arg-type]

    engine = core(both.split, speculation=SpeculationConfig(top_k=3, depth=3, nodes=12))
    ids = [engine.submit([7, 9, 11], SamplingParams(max_tokens=60)) for _ in range(3)]
    while not all(engine.request(request_id).output for request_id in ids):
        engine.step()
    monkeypatch.setattr(group, "broadcast", counted)
    monkeypatch.setattr(LeadingDecoder, "forward", run)
    finish_all(engine)
    assert passes[0] >= 5 and sent[0] == passes[0], (sent, passes)


def test_pools_that_are_gone_are_given_up_by_all_ranks(both: Both) -> None:
    target = both.split.target
    assert isinstance(target, LeadingDecoder)
    number = target.numbers[target.allocate_pool(8)]
    gc.collect()
    assert number in target.released, "the next plan says so"
    target.allocate_pool(8)
    assert number not in target.released


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (3, "tensor_parallel 3 does not divide 4 heads nor 2 KV heads; .* 1 or 2 or 4"),
        (5, "tensor_parallel 5 does not divide 4 heads nor 2 KV heads nor an MLP 48 wide"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    pair_directory: Path, ranks: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        load_pair(pair_directory, "exact", ranks)


def test_ranks_are_counted() -> None:
    with pytest.raises(UsageError, match="tensor_parallel is 0, must be 1 to 64"):
        ModelConfig(tensor_parallel=0)

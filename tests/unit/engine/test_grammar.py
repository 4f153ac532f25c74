"""Texts under grammars: plain decoding's tokens whatever is drafted, and nothing forbidden."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from aerie.engine import masks as masks_module
from aerie.engine import round as round_module
from aerie.engine.buckets import Bucket
from aerie.engine.engine import EngineCore
from aerie.engine.masks import Levels, Masks
from aerie.engine.sampler import CONSTRAINED, EVERYTHING, GREEDY
from aerie.engine.seat import Seat
from aerie.errors import UsageError
from aerie.kernels import load
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request
from aerie.text import walker as walker_module
from aerie.text.walker import Walker
from tests.unit.engine.automata import END, Automaton, AutomatonMatcher, submit
from tests.unit.engine.cores import (
    LAUNCHERS,
    LIMITS,
    PLAIN,
    SPECULATION,
    Pair,
    assert_pool_is_unheld,
    captured,
    core,
    finish_all,
)
from tests.unit.engine.test_captured import graphs_core, watch
from tests.unit.engine.test_lossless import SAMPLING, Job, speculating

FREE = SamplingParams(max_tokens=40, ignore_eos=True)


def make_jobs(seed: str, sampling: str, n_jobs: int = 7) -> list[Job]:
    """Most with a grammar, each another one; budgets, ends and stops of all kinds."""
    rng, jobs = random.Random(f"{seed}/{sampling}"), list[Job]()
    for index in range(n_jobs):
        is_free = index % 4 == 3
        params = SamplingParams(
            max_tokens=rng.choice([1, 2, 7, 16, 24]),
            seed=index,
            grammar=None if is_free else Automaton(f"{seed}{index % 5}"),
            ignore_eos=is_free and rng.random() < 0.5,
            stop_token_ids=tuple(rng.sample(range(LIMITS.vocabulary), rng.choice([0, 0, 3]))),
            logprobs=rng.choice([None, None, 2]),
            **SAMPLING[sampling],  # type: ignore[arg-type]
        )
        params = replace(params, min_tokens=min(params.max_tokens, rng.choice([0, 0, 4])))
        jobs.append(([rng.randrange(LIMITS.vocabulary) for _ in range(rng.randint(1, 9))], params))
    return jobs


def run(engine: EngineCore, jobs: list[Job], rng: random.Random | None = None) -> list[Request]:
    """All at once, or at random moments beside strangers that are cancelled."""
    ids: dict[int, int] = {}
    waiting, strangers = list(range(len(jobs)))[::-1], list[int]()
    while waiting or not engine.is_idle:
        for _ in range(len(jobs) if rng is None else rng.choice([0, 1, 2])):
            if waiting:
                index = waiting.pop()
                ids[index] = submit(engine, *jobs[index])
        if rng is not None and rng.random() < 0.2 and len(strangers) < 4:
            own = Automaton("stranger") if len(strangers) % 2 else None
            strangers.append(submit(engine, [1, 2], SamplingParams(max_tokens=9, grammar=own)))
        if rng is not None and strangers and rng.random() < 0.4:
            engine.cancel(rng.choice(strangers))
        engine.step()
    return [engine.request(ids[index]) for index in range(len(jobs))]


def check_texts(requests: list[Request]) -> None:
    """Every token was allowed where it stands, and the end only where the grammar accepts."""
    for request in requests:
        assert request.ended is not None and request.ended.error is None, request.ended
        grammar, output, job = request.params.grammar, request.output, request.job
        for place, token in enumerate(output if isinstance(grammar, Automaton) else []):
            assert isinstance(grammar, Automaton)
            allowed = grammar.after(output[:place])
            assert token in allowed, (job, place)
            if token in job.stop_ids:
                assert place == len(output) - 1
                # Before `min_tokens` only where nothing else could have followed.
                assert place >= job.params.min_tokens or allowed <= set(job.stop_ids)
        if grammar is not None:
            is_stopped = bool(output) and output[-1] in job.stop_ids
            assert request.ended.reason == ("stop" if is_stopped else "length")


def tokens_of(requests: list[Request]) -> list[list[int]]:
    return [request.output for request in requests]


@pytest.mark.parametrize("proposer", SPECULATION)
def test_same_tokens_as_plain_constrained_decoding(
    pair: Pair, launcher: str, proposer: str
) -> None:
    """A way of sampling each; requests come and leave meanwhile."""
    own = list(SPECULATION).index(proposer) + LAUNCHERS.index(launcher)
    jobs = make_jobs(proposer, list(SAMPLING)[own % len(SAMPLING)], n_jobs=5)
    plain = run(core(pair, speculation=PLAIN), jobs)
    check_texts(plain)
    engine = speculating(pair, proposer, launcher)(max_batch=2 + own % 4)
    found = run(engine, jobs, random.Random(own))
    assert tokens_of(found) == tokens_of(plain)
    assert_pool_is_unheld(engine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("proposer", SPECULATION)
def test_same_tokens_with_every_launcher(
    pair: Pair, launcher: str, proposer: str, sampling: str, seed: int
) -> None:
    jobs = make_jobs(f"{proposer}{seed}", sampling, n_jobs=11)
    plain = run(core(pair, speculation=PLAIN), jobs)
    check_texts(plain)
    engine = speculating(pair, proposer, launcher)(max_batch=2 + seed)
    assert tokens_of(run(engine, jobs, random.Random(seed))) == tokens_of(plain)


def test_preemption_keeps_the_place_in_a_grammar(pair: Pair, launcher: str) -> None:
    """A request that gave its memory back is matched again from the beginning of its text."""
    params = SamplingParams(max_tokens=30, temperature=0.7)
    jobs = [([n, 3], replace(params, seed=n, grammar=Automaton(f"long{n}"))) for n in range(12)]
    plain = run(core(pair, speculation=PLAIN), jobs)
    jobs = [job for job, done in zip(jobs, plain, strict=True) if len(done.output) > 14]
    plain = [done for done in plain if len(done.output) > 14]
    engine = speculating(pair, "moody", launcher)(page_size=2, n_pages=34)
    found = run(engine, jobs)
    assert tokens_of(found) == tokens_of(plain)
    check_texts(found)
    assert sum(request.statistics.preemptions for request in found) > 0, "the pool was too large"


def test_masked_drafts_are_accepted_more_often(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """No draft is forbidden, with either launcher, as far as masks are made."""
    params = SamplingParams(max_tokens=24)
    jobs = [([n, 7], replace(params, grammar=Automaton(f"d{n}"))) for n in range(5)]

    def accepted(launcher: str) -> int:
        found = run(speculating(pair, "tree", launcher)(), jobs)
        return sum(request.statistics.num_accepted_tokens for request in found)

    monkeypatch.setattr(masks_module, "HIDDEN_SECONDS", 99)
    for limit in ("MOST_HIDDEN", "MOST_LEVELS"):  # of a GPU, where looks take their time
        monkeypatch.setattr(round_module, limit, 99)
    masked = {launcher: accepted(launcher) for launcher in LAUNCHERS}
    assert masked["direct"] == masked["graphs"]
    monkeypatch.setattr(round_module, "MOST_HIDDEN", 1)  # the best node of each
    assert accepted("graphs") > 0.7 * masked["direct"]
    monkeypatch.setattr(Levels, "masked", lambda self, nodes, logits: logits)
    assert accepted("graphs") < 0.7 * masked["direct"]


def test_a_head_that_knows_no_allowed_token_proposes_nothing() -> None:
    """Its vocabulary may be a part of the target's: all of a row of a draft may be forbidden."""
    token_map = torch.arange(0, LIMITS.vocabulary, 2)
    masks = Masks(2, LIMITS.vocabulary, "cpu")
    masks.hold(2, 99)
    masks._first[:2] = torch.tensor([1, 2])
    masks._bits[1:] = torch.tensor([[1 << 5, 0], [1 << 4, 0]], dtype=torch.int32)
    kernels = load("pytorch")
    levels = Levels(masks, kernels, (), token_map[None], None, 9)
    masks.graphs.cut = lambda look: None  # type: ignore[method-assign]
    logits = torch.randn(2, len(token_map))
    found = levels.masked(torch.zeros((2, 1), dtype=torch.int64), logits)
    assert found[0].isneginf().all(), "5 is no token of the head"
    assert found[1].isfinite().nonzero().flatten().tolist() == [2]
    best = kernels["best_draft_children"](logits=found, node_top_k=2, hot_token_id=token_map)
    assert best.topk_probas.tolist() == [[0, 0], [1, 0]]


def test_a_grammar_that_fails_ends_its_own_request(
    pair: Pair, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = AutomatonMatcher.fill

    def failing(self: AutomatonMatcher, bits_out: Any, row: int) -> None:
        fill(self, bits_out, row)
        if self._own.text == "fails" and len(self.tokens) >= 3:
            self.error = "the lexer is too complex"
            bits_out[row] = -1

    monkeypatch.setattr(AutomatonMatcher, "fill", failing)
    engine = speculating(pair, "tree", launcher)()
    # Enough to choose from that it does not end before.
    grammars = (Automaton("fails"), Automaton("goes on"))
    jobs = [([1, 2], SamplingParams(max_tokens=20, grammar=grammar)) for grammar in grammars]
    failed, other = run(engine, jobs)
    assert failed.ended is not None and failed.ended.reason == "error"
    assert failed.ended.error == "the lexer is too complex"
    check_texts([other])
    assert tokens_of([other]) == tokens_of(run(core(pair, speculation=PLAIN), jobs[1:]))


def _no_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings are then judged below each other."""
    monkeypatch.setattr(AutomatonMatcher, "back", lambda self, n_tokens: None)


def _masks_of_the_root_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Walker.fill

    def rooted(self: Walker, paths: Any, out: Any) -> None:
        fill(self, paths, out)
        out[1:] = out[0]

    monkeypatch.setattr(Walker, "fill", rooted)


def _masks_of_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Walker.fill

    def rolled(self: Walker, paths: Any, out: Any) -> None:
        fill(self, paths, out)
        out[:] = np.roll(out, 1, axis=0)

    monkeypatch.setattr(Walker, "fill", rolled)


def _masks_of_texts_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walker_module, "_below", lambda found, taken: found)


def _masks_of_another_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Masks._make

    def turned(self: Masks, *given: Any) -> None:
        make(self, *given)
        own = self._first[: len(self.seats())]
        own.copy_(own.roll(1))

    monkeypatch.setattr(Masks, "_make", turned)


def _the_last_round_s_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Seat.follow

    def forgetful(self: Seat, line: list[int]) -> None:
        walker, self.walker = self.walker, None
        follow(self, line)
        self.walker = walker

    monkeypatch.setattr(Seat, "follow", forgetful)


def _ends_are_always_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = AutomatonMatcher.fill

    def with_end(self: AutomatonMatcher, bits_out: Any, row: int) -> None:
        fill(self, bits_out, row)
        bits_out[row, END // 32] |= 1 << END % 32

    monkeypatch.setattr(AutomatonMatcher, "fill", with_end)


def _halves_are_followed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Seat.follow

    def twice(self: Seat, line: list[int]) -> None:
        follow(self, line)
        if self.walker is not None:
            self.walker.advance(line[7 : 7 + line[0]])

    monkeypatch.setattr(Seat, "follow", twice)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _no_steps_back,
    _masks_of_texts_before,
    _masks_of_the_root_for_all,
    _masks_of_the_row_before,
    _masks_of_another_seat,
    _the_last_round_s_masks,
    _ends_are_always_allowed,
    _halves_are_followed_twice,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_mutants_of_the_masks_are_caught(
    pair: Pair, launcher: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = {END: 6.0}  # wherever it may end, it likes to
    params = SamplingParams(max_tokens=24, temperature=0.7, logit_bias=bias)
    jobs = [([n, 7], replace(params, seed=n, grammar=Automaton(f"m{n}"))) for n in range(4)]
    plain = tokens_of(run(core(pair, speculation=PLAIN), jobs))
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        found = run(speculating(pair, "tree", launcher)(), jobs)
        check_texts(found)
        assert tokens_of(found) == plain


def test_impossible_combinations_are_refused(pair: Pair) -> None:
    grammar = Automaton("x")
    engine = core(pair, speculation=replace(SPECULATION["tree"], rule="coins"))
    for asked, words in (
        (SamplingParams(grammar=grammar), "rule coins"),
        (SamplingParams(grammar=grammar, ignore_eos=True), "ignore_eos"),
    ):
        chosen = engine if words == "rule coins" else core(pair)
        with pytest.raises(UsageError, match=words):
            submit(chosen, [1], asked)
    with pytest.raises(UsageError, match="compiled first"):
        core(pair).submit([1], SamplingParams(grammar=grammar))
    with pytest.raises(UsageError, match="must be a JsonSchema"):
        SamplingParams(grammar={"type": "object"})  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["tree", "planner"])
def test_batches_without_grammars_are_untouched(pair: Pair, shape: str) -> None:
    """Not a launch, a read or a buffer more; and again so when requests with one have left."""
    engine, kinds, cuts = graphs_core(pair, shape), list[Any](), list[Any]()
    launcher = captured(engine)
    watch(launcher, kinds.append)
    masks, cut = launcher.parts.state.columns.masks, launcher.graphs.cut

    def counted(look: Callable[[], object]) -> None:
        cuts.append(look)
        cut(look)

    launcher.graphs.cut = counted  # type: ignore[method-assign]
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, FREE)
    for _ in range(6):
        engine.step()
    assert all(own.options in (GREEDY, EVERYTHING) for own in buckets(kinds))
    assert not cuts and not masks._sent.numel() and not masks._bits.numel()
    # Then one of three has a grammar: the host looks into its verification and at every level.
    request_id, ahead = submit(engine, [6], SamplingParams(max_tokens=9, grammar=Automaton("a"))), 0
    begun = len(kinds)
    while engine.request(request_id).ended is None:
        engine.step()
        ahead = launcher.counts.ahead
    masked = [key for key in kinds[begun:] if key[0] in ("verify", "draft")]
    masked = [key for key in masked if key[1].options == CONSTRAINED]
    assert len(masked) > 2
    assert len(cuts) == sum(1 if key[0] == "verify" else 1 + len(key[2]) for key in masked)
    begun, n_cuts = len(kinds), len(cuts)
    finish_all(engine)
    last, *left = buckets(kinds[begun:])  # one more may have been laid out with ended requests
    assert all(own.options in (GREEDY, EVERYTHING) for own in left)
    assert len(cuts) <= n_cuts + last.options.grammar
    assert launcher.counts.ahead > ahead, "they run ahead again"


def test_masks_are_made_while_a_model_thinks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what is sent and what is masked lies nothing but the pass of a model."""
    engine, order = graphs_core(pair, "tree"), list[str]()
    launcher = captured(engine)
    watch(launcher, lambda key: order.append(key[0]))
    head = launcher.parts.draft.head if launcher.parts.draft else None
    for owner, name in (
        (Masks, "send"),
        (Masks, "_make"),
        (Masks, "masked"),
        (type(launcher.parts.target), "forward"),
        (type(head), "extend"),
        (type(head), "step"),
    ):
        noted(monkeypatch, owner, name, order)
    run(engine, [([1, 2], SamplingParams(max_tokens=12, grammar=Automaton("b")))])
    looks = [order[place : place + 4] for place, what in enumerate(order) if what == "send"]
    assert {look[1] for look in looks} == {"forward", "extend", "step"}
    assert all(look[2:] == ["_make", "masked"] for look in looks)
    assert launcher.counts.ahead, "though verifications are launched before drafts are reported"


def noted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, order: list[str]) -> None:
    plainly = getattr(owner, name)

    def told(self: Any, *given: Any, **named: Any) -> Any:
        order.append(name)
        return plainly(self, *given, **named)

    monkeypatch.setattr(owner, name, told)


def buckets(keys: list[Any]) -> list[Bucket]:
    return [key[1] for key in keys if key[0] in ("verify", "draft")]

"""Texts under grammars: plain decoding's tokens whatever is drafted, and nothing forbidden."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aerie.engine import masks as masks_module
from aerie.engine.engine import EngineCore
from aerie.engine.masks import Masks
from aerie.engine.sampler import CONSTRAINED, EVERYTHING, GREEDY
from aerie.engine.seat import Seat
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams
from aerie.requests.request import Request
from tests.unit.engine.automata import END, Automaton, AutomatonMatcher, submit
from tests.unit.engine.cores import (
    LAUNCHERS,
    LIMITS,
    Pair,
    assert_pool_is_unheld,
    captured,
    core,
    finish_all,
)
from tests.unit.engine.test_captured import graphs_core, watch
from tests.unit.engine.test_lossless import PLAIN, SAMPLING, SPECULATION, Job, speculating

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
    """Whoever gave its memory back is matched again from the beginning of its text."""
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


def test_masked_drafts_are_accepted_more_often(pair: Pair) -> None:
    """Where the host may look between levels, no draft is forbidden; from graphs some are."""
    params = SamplingParams(max_tokens=24)
    jobs = [([n, 7], replace(params, grammar=Automaton(f"d{n}"))) for n in range(5)]
    found = {launcher: run(speculating(pair, "tree", launcher)(), jobs) for launcher in LAUNCHERS}
    assert tokens_of(found["direct"]) == tokens_of(found["graphs"])
    accepted = {
        launcher: sum(request.statistics.num_accepted_tokens for request in requests)
        for launcher, requests in found.items()
    }
    assert accepted["direct"] > accepted["graphs"]


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
    monkeypatch.setattr(AutomatonMatcher, "back", lambda self, n: None)


def _masks_of_the_root_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    write = masks_module._write
    monkeypatch.setattr(
        masks_module, "_write", lambda seat, out, row, depth: row or write(seat, out, row, depth)
    )


def _masks_of_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    write = masks_module._write
    monkeypatch.setattr(
        masks_module,
        "_write",
        lambda seat, out, row, depth: write(seat, out, (row + 1) % len(out), depth),
    )


def _masks_of_another_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Masks.write

    def turned(self: Masks, seats: list[Seat], noted: Any) -> None:
        write(self, seats, noted)
        own = self._first[: len(seats)]
        own.copy_(own.roll(1))

    monkeypatch.setattr(Masks, "write", turned)


def _the_last_round_s_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Seat.follow

    def forgetful(self: Seat, line: list[int]) -> None:
        matcher, self.matcher = self.matcher, None
        follow(self, line)
        self.matcher = matcher

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
        if self.matcher is not None:
            self.matcher.advance(line[7 : 7 + line[0]])

    monkeypatch.setattr(Seat, "follow", twice)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _no_steps_back,
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
    """Not a launch, a read or a buffer more; and again so when whoever had one has left."""
    engine, kinds = graphs_core(pair, shape), list[Any]()
    launcher = captured(engine)
    watch(launcher, kinds.append)
    masks = launcher.parts.state.columns.masks
    for prompt in ([1, 2, 3], [4, 5]):
        engine.submit(prompt, FREE)
    for _ in range(6):
        engine.step()
    free = {key[0] for key in kinds}
    assert not free & {"ask", "judge", "fetch"}
    assert all(key[1].options in (GREEDY, EVERYTHING) for key in kinds if key[0] == "verify")
    assert masks.said is None and masks.drafted is None and not masks._bits.numel()
    # Then one of three has a grammar: two launches instead of one, and one small copy a round.
    request_id, ahead = submit(engine, [6], SamplingParams(max_tokens=9, grammar=Automaton("a"))), 0
    begun = len(kinds)
    while engine.request(request_id).ended is None:
        engine.step()
        ahead = launcher.counts.ahead
    here = [key for key in kinds[begun:] if key[0] in ("ask", "judge", "fetch", "publish")]
    n_each = {kind: sum(key[0] == kind for key in here) for kind in ("ask", "judge", "fetch")}
    assert n_each["ask"] == n_each["judge"] <= n_each["fetch"] <= n_each["ask"] + 2
    assert all(key[1].options == CONSTRAINED for key in here if key[0] == "judge")
    begun = len(kinds)
    finish_all(engine)
    assert not {key[0] for key in kinds[begun + 3 :]} & {"ask", "judge"}
    assert launcher.counts.ahead > ahead, "they run ahead again"


def test_masks_are_written_while_the_target_works(pair: Pair) -> None:
    """Between the two halves, and from what came with the report: no read of their own."""
    engine, order = graphs_core(pair, "tree"), list[str]()
    launcher = captured(engine)
    watch(launcher, lambda key: order.append(key[0]))
    masks = launcher.parts.state.columns.masks
    write = masks.write

    def noted(seats: Any, trees: Any) -> None:
        order.append("masks")
        assert trees is masks.drafted
        write(seats, trees)

    masks.write = noted  # type: ignore[method-assign]
    run(engine, [([1, 2], SamplingParams(max_tokens=12, grammar=Automaton("b")))])
    where = [place for place, kind in enumerate(order) if kind == "masks"]
    assert where and all(
        order[place - 1] == "ask" and order[place + 1] == "judge" for place in where
    )
    assert launcher.counts.ahead == 0

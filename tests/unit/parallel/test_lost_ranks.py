"""A rank that dies ends all ranks, with one named error, in seconds."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from aerie import Engine, SamplingParams
from aerie.errors import EngineFailedError, RankLostError
from aerie.models.norm import RMSNorm
from aerie.parallel.processes import Followers
from aerie.parallel.ranks import LeadingDecoder

LIMIT_SECONDS = 10
SMALL = {"speculation": {"top_k": 2, "depth": 2, "nodes": 4}, "scheduler": {"max_batch": 2}}


def followers_of(engine: Engine) -> Followers:
    target = engine.core.parts.target
    assert isinstance(target, LeadingDecoder)
    return target.followers


@pytest.mark.parametrize("is_idle", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dead_rank_ends_all_of_them(capfd: pytest.CaptureFixture[str], is_idle: bool) -> None:
    engine = Engine.load(tensor_parallel=4, **SMALL)
    processes = followers_of(engine).processes
    request_id = engine.submit("def add(a, b):\n", SamplingParams(max_tokens=3 if is_idle else 400))
    while not engine.core.request(request_id).output:
        engine.step()
    began = time.monotonic()
    os.kill(processes[1].pid, signal.SIGKILL)
    named = "RankLostError: rank 2 was killed by SIGKILL; load the engine again"
    with pytest.raises(EngineFailedError, match=named):
        while time.monotonic() - began < LIMIT_SECONDS:
            engine.core.require_life() if is_idle else engine.core.step()
            time.sleep(0.01)
    statuses = [process.wait(LIMIT_SECONDS) for process in processes]
    assert time.monotonic() - began < LIMIT_SECONDS
    assert statuses == [1, -signal.SIGKILL, 1]
    # The others say it as well, each in its words.
    assert capfd.readouterr().err.count("aerie: RankLostError: rank ") == 2
    assert engine.failure is not None and named in engine.failure
    if not is_idle:
        (event,) = engine.core.take_events()[-1:]
        assert named in str(getattr(event, "error", None)), "its request heard of it"
    with pytest.raises(EngineFailedError, match="rank 2"):
        engine.submit("x", SamplingParams(max_tokens=1))


@pytest.mark.slow
def test_an_interrupted_pass_ends_the_engine_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine = Engine.load(tensor_parallel=2, **SMALL)
    engine.submit("def add(a, b):\n", SamplingParams(max_tokens=4))
    monkeypatch.setattr(RMSNorm, "after", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.core.step()
    assert isinstance(engine.core.parts.target.lost, RankLostError)
    with pytest.raises(EngineFailedError, match="a pass was cut off by KeyboardInterrupt"):
        engine.core.step()
    assert followers_of(engine).processes[0].wait(LIMIT_SECONDS) == 1


def test_a_closed_engine_has_no_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    with Engine.load(tensor_parallel=2, **SMALL) as engine:
        (process,) = followers_of(engine).processes
        assert engine.generate("def add(a, b):\n", SamplingParams(max_tokens=2))[0].token_ids
    assert process.wait(LIMIT_SECONDS) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_given_up() -> None:
    engine = Engine.load(tensor_parallel=2, **SMALL)
    target = engine.core.parts.target
    assert isinstance(target, LeadingDecoder)
    target.broadcasts._group.patience = timedelta(seconds=1)
    engine.submit("def add(a, b):\n", SamplingParams(max_tokens=4))
    os.kill(target.followers.processes[0].pid, signal.SIGSTOP)
    with pytest.raises(EngineFailedError, match="RankLostError: rank 0 lost touch with another"):
        engine.core.step()
    assert target.followers.processes[0].wait(LIMIT_SECONDS) == -signal.SIGKILL


LEADER = """
import sys, time
from aerie import Engine
engine = Engine.load(tensor_parallel=2, speculation={"method": "none"})
followers = engine.core.parts.target.followers
print(followers.processes[0].pid, flush=True)
time.sleep(600)
"""


def test_followers_end_with_their_leader() -> None:
    path = os.pathsep.join(sys.path)
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with leader:
        assert leader.stdout is not None and leader.stderr is not None
        follower = int(leader.stdout.readline())
        began = time.monotonic()
        leader.kill()
        # The follower holds the other end of standard error: it ends with the last of them.
        said = leader.stderr.read()
    assert time.monotonic() - began < LIMIT_SECONDS
    assert "aerie: RankLostError: rank 0" in said
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(follower, 0)
            time.sleep(0.05)

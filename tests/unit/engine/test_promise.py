"""The promise: whatever drafts, is sampled, arrives or is given up, a text is plain decoding's."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.config import SpeculationConfig
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import LAUNCHERS, LIMITS, PLAIN, Pair, core, outputs

CHAIN = SpeculationConfig(top_k=1, depth=4, nodes=5)
TREE = SpeculationConfig(top_k=3, depth=3, nodes=12)
COPIED = SpeculationConfig(method="ngram", depth=4, nodes=5)
PLANNED = SpeculationConfig(method="eagle3+ngram", policy="planner", top_k=4, depth=4, nodes=20)


@dataclass(frozen=True)
class Ask:
    """One request, the step at which it arrives, and that at which it is given up."""

    prompt: list[int]
    params: SamplingParams
    arrives: int
    leaves: int | None


options = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.7, 1.2]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 999),
)
prompts = st.lists(st.integers(0, LIMITS.vocabulary - 1), min_size=1, max_size=24)
asks = st.builds(Ask, prompts, options, st.integers(0, 6), st.none() | st.integers(1, 9))
policies = st.sampled_from([CHAIN, TREE, COPIED, PLANNED])


@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(asks, min_size=1, max_size=4), policies, st.sampled_from(LAUNCHERS))
def test_promise(pair: Pair, asked: list[Ask], policy: SpeculationConfig, way: str) -> None:
    engine, ids, now = core(pair, speculation=policy, engine=way), dict[int, int](), 0
    while len(ids) < len(asked) or not engine.is_idle:
        for place, ask in enumerate(asked):
            if ask.arrives == now:
                ids[place] = engine.submit(ask.prompt, ask.params)
            if ask.leaves == now and place in ids:
                engine.cancel(ids[place])
        engine.step()
        now += 1
    for place, ask in enumerate(asked):
        (plain,) = outputs(core(pair, speculation=PLAIN), [(ask.prompt, ask.params)])
        text = engine.request(ids[place]).output
        assert text == (plain if ask.leaves is None else plain[: len(text)])

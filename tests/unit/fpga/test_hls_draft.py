"""An engine whose drafts come from the fused region: the same text, with drafts worth verifying."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from aerie.bench.bed import PromptBook
from aerie.fpga.draft_round import FusedChoice
from aerie.fpga.levers import (
    CONTEXT,
    Study,
    card_weights,
    head_of,
    load_engine,
    put_card,
    run_whole_head,
)
from aerie.requests.params import SamplingParams

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (apt-get install g++)")


def test_the_region_drafts_for_a_live_engine() -> None:
    study = Study(n_prompts=2, n_tokens=16, batch=2)
    prompts = [prompt.tokens for prompt in PromptBook().choose(CONTEXT, study.n_prompts)]
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=study.n_tokens, ignore_eos=True)
    expected = load_engine(study).generate(prompts, params)
    engine = load_engine(study)
    hidden = head_of(engine).summary.geometry.hidden_size
    weights = card_weights(study, np.eye(hidden))
    card = put_card(engine, weights, FusedChoice(head="half"), keep=9)
    made = engine.generate(prompts, params)
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    drafts = [one.statistics.num_drafts for one in made]
    accepted = [one.statistics.num_accepted_tokens for one in made]
    # Sixteen-bit and four-bit weights lose a little; a wrong cache or tree loses nearly all.
    assert 1 + sum(accepted) / sum(drafts) > 0.8 * run_whole_head(study).length
    assert {one.batch for one in card.rounds} == {1, 2}  # the second joins while the first decodes
    assert card.counter.calls["fused_draft"] >= max(drafts)

"""The shipped pair: it loads everywhere, decodes losslessly and leaves for other engines intact."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from aerie import Engine, SamplingParams
from aerie.api import find_pair
from aerie.assemble.core import load_draft, load_target
from aerie.attention.rows import Bounds, Rows, causal_rows
from aerie.bench.comparison import first_difference
from aerie.cli.main import app
from aerie.config import ModelConfig
from aerie.errors import UsageError
from aerie.models.eagle3.blueprint import TargetSizes
from aerie.models.eagle3.convert import DIALECTS, read_normal, write_head
from aerie.models.eagle3.export import ExportDetails
from aerie.models.eagle3.head import Eagle3Head
from aerie.text.heldout import read_documents

TARGET, HEAD = find_pair(None, None)
TOKENS = torch.tensor([17, 300, 42, 1999, 7, 7, 81, 4000, 12, 5])
SPECULATION = {
    "chain": {"top_k": 1, "depth": 5, "nodes": 6},
    "tree": {"top_k": 4, "depth": 4, "nodes": 20},
    "merged": {"method": "eagle3+ngram", "top_k": 2, "depth": 3, "nodes": 10},
}


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output


def heldout(n_prompts: int) -> list[str]:
    return [document.text for document in read_documents(512, n_prompts)]


def rows_of(tokens: torch.Tensor) -> tuple[Rows, int]:
    n = tokens.shape[0]
    ends = torch.tensor([0, n], dtype=torch.int32)
    slots = torch.arange(1, n + 1, dtype=torch.int32)
    return causal_rows(tokens, ends, ends, slots, Bounds(n, n)), n


def draft_logits(head: Eagle3Head, target_taps: torch.Tensor) -> torch.Tensor:
    rows, n = rows_of(TOKENS[1:])
    return head.extend(rows, target_taps[:-1], head.allocate_pool(n + 1)).logits


def test_sizes_stay_within_what_a_repository_can_carry() -> None:
    def megabytes(folder: Path) -> float:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

    assert HEAD is not None
    assert megabytes(TARGET) <= 24
    assert megabytes(HEAD) <= 8
    assert megabytes(Path("src/aerie/assets/heldout")) <= 4


def test_transformers_reads_the_target_too() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    target = load_target(TARGET, ModelConfig())
    rows, n = rows_of(TOKENS)
    ours = target.forward(rows, target.allocate_pool(n + 1), torch.arange(n)).logits
    with torch.inference_mode():
        expected = theirs(TOKENS[None]).logits[0]
    assert (ours - expected).abs().max() <= 1e-4
    text = "def f(x):\n    return x + 1\n"
    encoded = transformers.AutoTokenizer.from_pretrained(TARGET)(text)["input_ids"]
    assert encoded == Engine.load(speculation={"method": "none"}).tokenizer.encode(text)


@pytest.mark.parametrize("dialect", [entry.name for entry in DIALECTS])
def test_head_survives_every_dialect(dialect: str, tmp_path: Path) -> None:
    assert HEAD is not None
    config = ModelConfig()
    target = load_target(TARGET, config)
    geometry = target.geometry
    sizes = TargetSizes(geometry.n_layers, geometry.hidden_size, geometry.vocab_size)
    details = ExportDetails(geometry.max_positions, "built-in", geometry.architecture)
    write_head(tmp_path, read_normal(HEAD, sizes), dialect, details)
    original, converted = load_draft(HEAD, target, config), load_draft(tmp_path, target, config)
    assert converted.taps == original.taps
    rows, n = rows_of(TOKENS)
    pool = target.allocate_pool(n + 1)
    taps = target.forward(rows, pool, torch.zeros(0, dtype=torch.int64), original.taps).taps
    assert torch.equal(draft_logits(original, taps), draft_logits(converted, taps))


@pytest.mark.parametrize("dialect", ["specforge", "speculators"])
def test_inflated_head_leaves_for_other_engines(dialect: str, tmp_path: Path) -> None:
    """Inflated to a larger geometry, written for SGLang or vLLM, read back: the same drafts."""
    geometry = {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 9,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 5000,
        "draft_vocab_size": 4500,
    }
    (tmp_path / "geometry.json").write_text(json.dumps(geometry))
    big = tmp_path / "big"
    run(
        *("inflate", "--model", str(TARGET), "--draft", str(HEAD), "--out", str(big)),
        *("--geometry", str(tmp_path / "geometry.json"), "--dtype", "float32"),
    )
    folders = {path.parent.name: path.parent for path in big.rglob("config.json")}
    target_dir, head_dir = folders["target"], folders["head"]
    run(
        *("convert", "--model", str(target_dir), "--draft", str(head_dir)),
        *("--dialect", dialect, "--out", str(tmp_path / "out")),
    )
    config = ModelConfig()
    target = load_target(target_dir, config)
    original = load_draft(head_dir, target, config)
    converted = load_draft(tmp_path / "out", target, config)
    rows, n = rows_of(TOKENS)
    pool = target.allocate_pool(n + 1)
    taps = target.forward(rows, pool, torch.zeros(0, dtype=torch.int64), original.taps).taps
    assert torch.equal(draft_logits(original, taps), draft_logits(converted, taps))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", SPECULATION)
def test_lossless_in_a_batch(name: str, temperature: float) -> None:
    """Exact numerics, three held-out prompts at once, random lengths: the same tokens."""
    rng = random.Random(name)
    lengths = [rng.choice([40, 75, 90]) for _ in range(3)]
    params = [
        SamplingParams(max_tokens=rng.choice([9, 16, 24]), temperature=temperature, seed=seed)
        for seed in range(3)
    ]
    results = []
    for settings in ({"method": "none"}, SPECULATION[name]):
        engine = Engine.load(numerics="exact", audit=True, speculation=settings)
        texts = zip(heldout(3), lengths, strict=True)
        prompts = [engine.tokenizer.encode(text)[:length] for text, length in texts]
        ids = [engine.submit(p, asked) for p, asked in zip(prompts, params, strict=True)]
        while not engine.core.is_idle:
            engine.step()
        results.append([engine.collect(request_id) for request_id in ids])
    plain, speculative = results
    assert [c.token_ids for c in plain] == [c.token_ids for c in speculative]
    assert [c.text for c in plain] == [c.text for c in speculative]


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_eight_bits_keep_nearly_all_of_acceptance(name: str) -> None:
    """Greedy and of equal length, so that target passes say it all."""
    found = []
    for products in ("dense", "fp8"):
        chosen = {"draft_products": products, "speculation": SPECULATION[name]}
        engine = Engine.load(numerics="exact", **chosen)  # type: ignore[arg-type]
        prompts = [engine.tokenizer.encode(text)[:90] for text in heldout(12)]
        params = SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.0)
        found.append(engine.generate(prompts, params))
    dense, rounded = found
    assert [text.token_ids for text in dense] == [text.token_ids for text in rounded]
    n_passes = [sum(text.statistics.target_passes for text in texts) for texts in found]
    assert n_passes[0] / n_passes[1] >= 0.97, n_passes


def test_stop_strings_end_a_run_where_plain_decoding_ends() -> None:
    prompt = "def read_lines(path):\n"
    found = []
    for settings in ({"method": "none"}, SPECULATION["chain"]):
        engine = Engine.load(numerics="exact", speculation=settings)
        params = SamplingParams(max_tokens=40, stop=("lines", "return"))
        found.append(engine.generate(prompt, params)[0])
    assert found[0].finish_reason == "stop"
    assert (found[0].text, found[0].token_ids) == (found[1].text, found[1].token_ids)
    assert "lines" not in found[0].text and "return" not in found[0].text


def test_streaming_adds_up_and_walking_away_cancels() -> None:
    engine = Engine.load()
    params = SamplingParams(max_tokens=20, seed=1)
    whole = engine.generate("import json\n", params)[0].text
    assert "".join(update.text for update in engine.stream("import json\n", params)) == whole
    stream = engine.stream("import json\n", params)
    next(stream)
    stream.close()
    engine.step()
    assert engine.core.is_idle
    assert not engine.open_requests


def test_one_bad_prompt_leaves_nothing_behind() -> None:
    engine = Engine.load()
    with pytest.raises(UsageError, match="the prompt is empty"):
        engine.generate(["import os\n", ""], SamplingParams(max_tokens=4))
    engine.step()
    assert engine.core.is_idle and not engine.open_requests
    assert engine.generate("import os\n", SamplingParams(max_tokens=4))[0].finish_reason == "length"


def test_a_text_ends_once() -> None:
    """A stop string completed by the last token that was allowed: one end, and it is the stop."""
    engine = Engine.load(speculation={"method": "none"})
    whole = engine.generate("import ", SamplingParams(max_tokens=3))[0]
    last = engine.tokenizer.decode(whole.token_ids[2:]).strip()
    ends = [
        update.finish_reason
        for update in engine.stream("import ", SamplingParams(max_tokens=3, stop=(last,)))
        if update.finish_reason
    ]
    assert ends == ["stop"]


def test_n_samples_of_one_prompt_differ_and_repeat() -> None:
    engine = Engine.load(speculation=SPECULATION["tree"])
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=9, n=3)
    first = [completion.token_ids for completion in engine.generate("import ", params)]
    again = [completion.token_ids for completion in engine.generate("import ", params)]
    assert len(set(first)) == 3
    assert first == again


def test_fast_numerics_part_only_at_near_ties() -> None:
    """Default numerics on held-out text, greedy and sampled: a divergence is a near tie, listed."""
    plain = Engine.load(speculation={"method": "none"})
    engine = Engine.load(speculation=SPECULATION["tree"])
    listed = []
    for seed, text in enumerate(heldout(8)):
        prompt = plain.tokenizer.encode(text)[:60]
        params = SamplingParams(max_tokens=40, temperature=0.8 * (seed % 2), seed=seed)
        pair = [found.generate([prompt], params)[0] for found in (plain, engine)]
        difference = first_difference(plain, prompt, params, *pair)
        if difference is not None:
            listed.append((seed, difference))
    assert all(difference.logit_gap < 1e-4 for _, difference in listed), listed


def test_the_gap_is_that_of_the_noisy_choice() -> None:
    """A forged difference is measured where it lies, with the seed's own noise."""
    engine = Engine.load(speculation={"method": "none"})
    params = SamplingParams(max_tokens=6, temperature=0.9, seed=11)
    found = engine.generate("import sys\n", params)[0]
    forged = replace(found, token_ids=(*found.token_ids[:3], 1, *found.token_ids[4:]))
    difference = first_difference(engine, "import sys\n", params, found, forged)
    assert difference is not None
    assert (difference.index, difference.plain) == (3, found.token_ids[3])
    assert difference.logit_gap > 0

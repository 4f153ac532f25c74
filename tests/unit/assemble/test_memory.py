"""The account of KV memory: what fits is taken, what does not is refused with numbers."""

from dataclasses import replace

import pytest

from aerie.api import Engine
from aerie.assemble import memory
from aerie.assemble.memory import Needs, with_pages
from aerie.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams
from tests.unit.assemble import gpu

MIB = 1 << 20
# A position of 1 KiB, and texts of 1,000 positions.
NEEDS = Needs(slot_bytes=1024, most_slots=1 << 30, longest=1000, reserve=0)
PLAIN = {"method": "none"}


def pages(device: str, needs: Needs = NEEDS, **cache: float) -> int:
    config = EngineConfig(
        ModelConfig(device=device),
        CacheConfig(**cache),  # type: ignore[arg-type]
        SchedulerConfig(max_batch=4),
    )
    return with_pages(config, needs).cache.n_pages


def test_no_more_than_the_batch_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages("cpu") == 4 * 1000 // 16 + 1
    gpu.pretend(monkeypatch)
    assert pages("cuda") == 4 * 1000 // 16 + 1


def test_a_gpu_gives_its_share_and_keeps_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.pretend(monkeypatch)
    page = 16 << 20
    large = replace(NEEDS, slot_bytes=1 << 20, longest=1 << 20)
    used = gpu.TOTAL - gpu.FREE
    assert pages("cuda", large) == int(0.9 * gpu.TOTAL - used) // page
    assert pages("cuda", large, gpu_memory=0.5) == int(0.5 * gpu.TOTAL - used) // page
    held = replace(large, reserve=4 << 30)
    assert pages("cuda", held) == int(0.9 * gpu.TOTAL - used - (4 << 30)) // page
    assert pages("cuda", replace(large, most_slots=1600)) == 100
    with pytest.raises(UsageError, match=r"n_pages 99999 .* need 1677\.7 GB .* at most 8960"):
        pages("cuda", large, n_pages=99999)


def test_a_small_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_ram", lambda: 2 * MIB)
    assert pages("cpu") == MIB // (16 * 1024)  # half of what is free
    assert pages("cpu", n_pages=100) == 100
    with pytest.raises(UsageError, match=r"n_pages 129 .* at most 128"):
        pages("cpu", n_pages=129)
    monkeypatch.setattr(memory, "free_ram", lambda: 40 * 1024)
    with pytest.raises(UsageError, match="take a smaller model"):
        pages("cpu")


def test_the_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    machine = memory.free_ram()
    for name, text in (("max", "max"), ("current", "700"), ("stat", "anon 5\ninactive_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)  # type: ignore[operator]
    assert memory.free_ram() == pytest.approx(machine, rel=0.2)
    (tmp_path / "memory.max").write_text("1000\n")  # type: ignore[operator]
    assert memory.free_ram() == 600


def test_a_billion_pages_are_an_error_with_numbers() -> None:
    with pytest.raises(UsageError, match=r"1000000000 of 16 positions need 1\d{5}\.\d GB"):
        Engine.load(device="cpu", cache={"n_pages": 10**9}, speculation=PLAIN)


def test_a_shorter_context(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.load(device="cpu", max_model_len=64, speculation=PLAIN)
    assert engine.core.limits.context == 64
    assert engine.config.cache.n_pages < 200
    done = engine.generate([list(range(60))], SamplingParams(max_tokens=50, ignore_eos=True))[0]
    assert len(done.token_ids) == 4
    with pytest.raises(UsageError, match="max_model_len is 99999, the model's context holds 34816"):
        Engine.load(device="cpu", max_model_len=99999, speculation=PLAIN)

"""The hls backend: built once per content, bound by the cards, refusing by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.errors import BackendUnavailableError, KernelBoundsError
from aerie.kernels import catalogue, load
from aerie.kernels.cases import cases_for
from aerie.kernels.cases.case import Case
from aerie.kernels.hls import build as building
from aerie.kernels.hls.bind import CSimulation
from aerie.kernels.hls.build import FOLDER, Sources, build, cache_folder, cached_library
from aerie.kernels.hls.signature import FIRST_BOUND, hls_card
from aerie.kernels.hls.table import PORTED, implementations
from aerie.kernels.host import adopt
from aerie.kernels.implementation import Implementation
from aerie.kernels.registry import Kernel, Kernels, backend_info, why_unavailable
from aerie.parity.run import run_parity
from tests.parity.hls_bounds import calls, wrong_code

REASON = why_unavailable(backend_info("hls"))
needs_compiler = pytest.mark.skipif(bool(REASON), reason=f"hls: {REASON}")

K1, K8 = "draft_tree_layer_score_index_gen_op", "compute_kv_indices"


@needs_compiler
def test_a_port_of_one_kernel_runs_on_its_base() -> None:
    base = load("reference")
    card = hls_card(catalogue()[K8])
    own = Kernel(card, implementations([K8])[K8], adopt, True)
    mixed = Kernels("hls", "cpu", "raise", {**base, K8: own})
    for name in (K8, "calculate_work_deltas"):
        assert not run_parity(mixed, base, cases_for(name)[:9]).failed


@needs_compiler
def test_a_library_is_compiled_once_per_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = Sources("memory")
    first = build(sources, tmp_path)
    assert first.is_file() and not list(tmp_path.glob("*.part"))
    # Were it compiled again, there would be no compiler to do it.
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build(sources, tmp_path) == first
    assert replace(sources, flags=(*sources.flags, "-O1")).digest() != sources.digest()


@needs_compiler
def test_another_source_is_another_library(tmp_path: Path) -> None:
    for folder in ("include", "bridge"):
        (tmp_path / folder).mkdir()
        for path in (FOLDER / folder).iterdir():
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    copied = Sources("memory", tmp_path)
    assert copied.digest() == Sources("memory").digest()
    (tmp_path / "include" / "memory.hpp").write_text("#error spoiled\n")
    assert copied.digest() != Sources("memory").digest()
    with pytest.raises(BackendUnavailableError, match="spoiled"):
        build(copied, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "COMPILER", "no-such-compiler")
    building.compiler_version.cache_clear()
    with pytest.raises(BackendUnavailableError, match="apt-get install no-such-compiler"):
        building.compiler_version()
    building.compiler_version.cache_clear()


def test_the_registry_says_which_program_is_missing() -> None:
    info = replace(backend_info("hls"), tools=("no-such-compiler",))
    assert "no-such-compiler is not installed" in (why_unavailable(info) or "")


def test_the_cache_can_be_moved(tmp_path: Path) -> None:
    assert cache_folder({"AERIE_CACHE": str(tmp_path)}) == tmp_path / "hls"
    assert cache_folder({}) == Path("~/.cache/aerie/hls").expanduser()


@needs_compiler
@pytest.mark.parametrize("name", PORTED)
def test_the_kernel_itself_refuses_every_bound(name: str) -> None:
    card = hls_card(catalogue()[name])
    assert len(list(calls(card))) >= 2 * len(card.axes)
    assert wrong_code(card, cached_library(card.family)) is None


@needs_compiler
def test_a_refusal_of_the_kernel_is_an_error() -> None:
    """The host checks first; a kernel called past it still refuses."""
    card = replace(catalogue()["calculate_work_deltas"], axes=(), limits=())
    simulated = CSimulation(card, cached_library)
    with pytest.raises(KernelBoundsError, match="the kernel refuses"):
        simulated._refuse(FIRST_BOUND, {"node_top_k": 11})


def accepted(name: str) -> Case:
    """A case of several requests that is not refused, and within the hardware's limits."""
    return [case for case in cases_for(name) if not case.expects][4]


def scattered(array: Any) -> Any:
    """The same values in memory that is not packed."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


@needs_compiler
@pytest.mark.parametrize("name", PORTED)
def test_arrays_need_not_be_packed(name: str) -> None:
    kernels = load("hls")
    plain, spread = accepted(name).build(), accepted(name).build()
    spread = {k: scattered(v) if hasattr(v, "dtype") else v for k, v in spread.items()}
    left, right = kernels[name](**plain), kernels[name](**spread)
    for entry in left._fields:
        assert np.array_equal(getattr(left, entry), getattr(right, entry)), entry
    for entry in catalogue()[name].written:
        assert np.array_equal(plain.get(entry), spread.get(entry)), entry


def test_every_kernel_but_the_round_s_is_ported() -> None:
    assert set(catalogue()) - set(PORTED) == {
        card.name for card in catalogue().values() if card.family == "round"
    }
    assert set(implementations(PORTED)) == set(PORTED)
    assert all(isinstance(e, Implementation) for e in implementations([K1]).values())


@needs_compiler
def test_rows_before_an_empty_request_are_filled() -> None:
    """No request owns the first two rows, and the one that stands behind them has none."""
    inputs = {
        "logits": np.zeros((4, 3), np.float32),
        "temperature": np.ones(2, np.float32),
        "qo_indptr": np.array([2, 2, 4], np.int32),
    }
    found = [
        load(backend)["convert_logits_to_probas"](**inputs) for backend in ("reference", "hls")
    ]
    assert np.array_equal(found[0].target_probas[:2], np.zeros((2, 3)))
    assert np.array_equal(found[0].target_probas, found[1].target_probas)

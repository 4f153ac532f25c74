"""Hub ids: found in a cache laid out as the hub's client does, else the download command."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.errors import HubError
from aerie.models.hub import cache_folder, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / "models--org--tiny-model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    blob = folder / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    return tmp_path / "hub"


def test_resolves_from_the_cache(cache: Path) -> None:
    want = cache / "models--org--tiny-model" / "snapshots" / COMMIT
    assert find_model("org/tiny-model", {"HF_HUB_CACHE": str(cache)}) == want
    assert find_model("org/tiny-model", {"HF_HOME": str(cache.parent)}) == want


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert find_model(str(tmp_path), {}) == tmp_path


def test_the_order_of_the_variables() -> None:
    both = {"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}
    assert cache_folder(both) == Path("/a")
    assert cache_folder({"HF_HOME": "/b"}) == Path("/b/hub")
    assert cache_folder({}) == Path("~/.cache/huggingface/hub").expanduser()


def test_absent_prints_the_command(cache: Path) -> None:
    environment = {"HF_HUB_CACHE": str(cache)}
    with pytest.raises(HubError, match=r"hf download org/other\b"):
        find_model("org/other", environment)


def test_an_incomplete_snapshot_prints_the_command(cache: Path) -> None:
    (cache / "models--org--tiny-model" / "blobs" / "abc").unlink()
    with pytest.raises(HubError, match=r"(?s)has no config\.json.*hf download org/tiny-model"):
        find_model("org/tiny-model", {"HF_HUB_CACHE": str(cache)})


@pytest.mark.parametrize("name", ["tiny", "../../etc/passwd", "a/b/c", "org/..", "", "/nowhere"])
def test_what_is_not_an_id(name: str, cache: Path) -> None:
    with pytest.raises(HubError, match=r"neither a directory nor a hub id|is not in|is a file"):
        find_model(name, {"HF_HUB_CACHE": str(cache)})


def test_a_poisoned_reference_cannot_leave_the_cache(cache: Path) -> None:
    (cache / "models--org--tiny-model" / "refs" / "main").write_text("../../..")
    with pytest.raises(HubError, match="hf download"):
        find_model("org/tiny-model", {"HF_HUB_CACHE": str(cache)})


def test_what_cannot_be_looked_up(cache: Path) -> None:
    for name in ("x" * 5000, "~nobody-of-that-name/model"):
        with pytest.raises(HubError, match="cannot be looked up"):
            find_model(name, {"HF_HUB_CACHE": str(cache)})
    (cache / "models--org--tiny-model" / "refs" / "main").write_bytes(b"\xff\xfe")
    with pytest.raises(HubError, match="hf download"):
        find_model("org/tiny-model", {"HF_HUB_CACHE": str(cache)})


def test_gguf_is_named_before_a_download_is_advised(cache: Path, tmp_path: Path) -> None:
    (cache / "models--org--tiny-model" / "blobs" / "abc").unlink()
    snapshot = cache / "models--org--tiny-model" / "snapshots" / COMMIT
    (snapshot / "tiny-Q4_K_M.gguf").write_bytes(b"GGUF")
    with pytest.raises(HubError, match=r"holds tiny-Q4_K_M\.gguf: GGUF is llama\.cpp's format"):
        find_model("org/tiny-model", {"HF_HUB_CACHE": str(cache)})
    with pytest.raises(HubError, match=r"is a file, not a model directory; GGUF is llama\.cpp's"):
        find_model(str(snapshot / "tiny-Q4_K_M.gguf"), {})
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(HubError, match="give the directory that holds it"):
        find_model(str(tmp_path / "model.safetensors"), {})

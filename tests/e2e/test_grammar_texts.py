"""Texts of random schemas by the built-in pair: valid, complete, and plain decoding's."""

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance: pip install 'aerie[grammar]'")
pytest.importorskip("jsonschema", reason="texts are judged by jsonschema, which dev installs")

from tests.e2e.grammar_runs import TREE, check, load, main, write
from tests.e2e.schemas import draw_schema, kinds_of


def test_a_few_schemas() -> None:
    """The short cut, from graphs: recursion, unicode, patterns; valid texts or prefixes."""
    schemas, most = [draw_schema(seed) for seed in (4, 8)], 32
    kinds = set[str]().union(*map(kinds_of, schemas))
    assert {"object", "array", "$ref", "enum", "pattern", "unicode"} <= kinds
    plain = load("direct", {"method": "none"})
    texts = write(plain, schemas, most)
    others = write(load("graphs", TREE), schemas, most)
    assert [text.token_ids for text in others] == [text.token_ids for text in texts]
    ended = [check(plain, schemas[i // 3], text, most) for i, text in enumerate(texts)]
    assert any(ended)


@pytest.mark.slow
def test_three_hundred_schemas(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Every text that ends is valid, every other a prefix, nine of ten end; some 40 minutes."""
    monkeypatch.setattr("sys.argv", ["grammar_runs", str(tmp_path / "log"), "300"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, (tmp_path / "log").read_text()

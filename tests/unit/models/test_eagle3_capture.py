"""Captured states: every notation, by the rule of the strongest statement."""

from __future__ import annotations

import pytest

from aerie.errors import ConfigFieldError, UsageError
from aerie.models.eagle3.capture import DeclaredCaptures, resolve_boundaries
from aerie.models.eagle3.names import normalise, normalise_all

Ids = tuple[int, ...] | None


@pytest.mark.parametrize(
    ("top", "nested", "option", "n_layers", "want", "origin"),
    [
        (None, None, None, 32, (2, 16, 29), "default"),
        (None, None, None, 36, (2, 18, 33), "default"),
        (None, None, None, 80, (2, 40, 77), "default"),
        (None, (1, 17, 32), None, 36, (2, 18, 33), "config"),  # layer outputs
        (None, (1, 17, 33), None, 36, (2, 18, 34), "config"),
        (None, (24, 30, 36), None, 36, (24, 30, 36), "config"),  # 36 is no layer of 36
        ((1, 17, 32), (5, 6, 7), None, 36, (1, 17, 32), "config"),  # top level: verbatim
        ((1, 17, 32), None, (2, 18, 33), 36, (2, 18, 33), "option"),
    ],
)
def test_resolution(
    top: Ids, nested: Ids, option: Ids, n_layers: int, want: Ids, origin: str
) -> None:
    resolved = resolve_boundaries(DeclaredCaptures(top, nested, None), option, n_layers)
    assert resolved.value == want
    assert resolved.origin == origin
    assert "layer outputs" in str(resolved)


def test_every_error_names_the_option() -> None:
    for declared, n_layers in (
        (DeclaredCaptures((2, 4, 9), None, None), 8),  # beyond the target
        (DeclaredCaptures(None, None, 4), 36),  # counted, not named
        (DeclaredCaptures(None, None, None), 6),  # too small for the default
    ):
        with pytest.raises(ConfigFieldError, match=rf"\(0 to {n_layers}\) as taps, as in taps=\("):
            resolve_boundaries(declared, None, n_layers)


@pytest.mark.parametrize("taps", [(2, 4, 9), (-1, 2, 3), (2, 2, 4)])
def test_a_wrong_option_is_the_callers_mistake(taps: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"taps are boundaries .* boundaries 0 to 8 and each may"):
        resolve_boundaries(DeclaredCaptures((2, 4, 5), None, None), taps, 8)


@pytest.mark.parametrize(
    ("stored", "normal"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("model.fc.weight", "fc.weight"),
        ("aux_norm_mid.weight", "fc_norm.1.weight"),
        ("model.aux_norm_high.weight", "fc_norm.2.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("d2t", "d2t"),
        ("submodel.norm.weight", "submodel.norm.weight"),
    ],
)
def test_names(stored: str, normal: str) -> None:
    assert normalise(stored) == normal
    assert normalise(normal) == normal


def test_collisions_are_offences() -> None:
    table = normalise_all(["fc.weight", "model.fc.weight", "layers.0.rotary_emb.inv_freq"])
    assert list(table.stored) == ["fc.weight"]
    assert table.buffers == ("layers.0.rotary_emb.inv_freq",)
    assert [offence.kind for offence in table.offences] == ["ambiguous"]

"""Corrupt heads: each is refused by the named error, and one error lists everything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aerie.attention import pytorch
from aerie.errors import (
    CheckpointError,
    ConfigFieldError,
    PickleRefusedError,
    TensorMismatchError,
    UnsupportedArchitectureError,
    UsageError,
    WeightFileError,
)
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.load import load_head
from aerie.models.eagle3.resolve import HeadOptions
from aerie.models.load import LoadOptions, load_decoder
from tests.unit.attention.trees import causal_batch, packed_slots
from tests.unit.models import pairs

Change = Callable[[dict[str, Any], dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> Decoder:
    directory = pairs.write_target(tmp_path_factory.mktemp("target") / "t")
    return load_decoder(directory, pytorch.prepare, LoadOptions())


def load(directory: Path, target: Decoder, **options: Any) -> Eagle3Head:
    return load_head(directory, target, pytorch.prepare, HeadOptions(**options))


def without(*names: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for name in names:
            del tensors[name]

    return change


def with_tensors(**tensors_by_name: Tensor) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors |= {name.replace("__", "."): value for name, value in tensors_by_name.items()}

    return change


def with_fields(**fields: Any) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config |= fields

    return change


def with_nested(**fields: Any) -> Change:
    return with_fields(eagle_config=fields)


def with_layer_field(**fields: Any) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["transformer_layer_config"] |= fields

    return change


def with_nan(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.mlp.up_proj.weight"][1, 2] = torch.nan
    tensors["norm.weight"][0] = torch.inf


def narrow_fc(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, :-5].contiguous()


def two_chunk_fc(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, : 2 * pairs.HIDDEN].contiguous()


def short_head(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-3].contiguous()


def absolute_map(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] = pairs.draft_ids()


def absolute_map_alone(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    absolute_map(config, tensors)
    del tensors["t2d"]


def far_map(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"][-2:] += pairs.VOCAB
    tensors["d2t"][0] = -5


def doubled_map(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"][4] = tensors["d2t"][3] - 1


def wrong_flags(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["t2d"] = ~tensors["t2d"]


def half_tensor(name: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].to(torch.float64)

    return change


def two_names(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["norm.weight"].clone()


def gap_in_layers(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in [n for n in tensors if n.startswith("layers.1.")]:
        tensors[name.replace("layers.1.", "layers.2.")] = tensors.pop(name)


def both_extra_norms(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["layers.1.hidden_norm.weight"] = torch.ones(pairs.HIDDEN)


def everything_at_once(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    narrow_fc(config, tensors)
    with_nan(config, tensors)
    del tensors["midlayer.hidden_norm.weight"]
    tensors["surprise"] = torch.zeros(2)
    config["intermediate_size"] = 99


# What is broken, in which dialect, the error, and what its message must say.
BROKEN: dict[str, tuple[str, Change, type[CheckpointError], tuple[str, ...]]] = {
    "a whole model": (
        "official",
        without("fc.weight", "midlayer.hidden_norm.weight"),
        TensorMismatchError,
        ("Every EAGLE-3 head has a hidden_norm: this is a whole model, or another kind",),
    ),
    "no draft vocabulary": (
        "official",
        with_tensors(lm_head__weight=torch.zeros(0, 32), d2t=torch.zeros(0, dtype=torch.int64)),
        TensorMismatchError,
        ("empty (1)", "lm_head has no values"),
    ),
    "missing fc": ("official", without("fc.weight"), TensorMismatchError, ("missing", "fc.weight")),
    "fc of a wrong width": (
        "official",
        narrow_fc,
        TensorMismatchError,
        ("captured states", "fc.weight reads 91", "multiple of the target's 32"),
    ),
    "fc for fewer states than the ids": (
        "specforge",
        two_chunk_fc,
        TensorMismatchError,
        ("captured states is 3", "fc.weight reads 64 values"),
    ),
    "fc for fewer states than the default": (
        "official",
        two_chunk_fc,
        TensorMismatchError,
        ("fc.weight reads 2 states, the convention names (2, 4, 5)",),
    ),
    "wrong hidden width": (
        "official",
        with_fields(hidden_size=48),
        TensorMismatchError,
        ("hidden_size is 48 in config.json, but norm.weight says 32",),
    ),
    "wrong MLP width": (
        "official",
        with_fields(intermediate_size=40),
        TensorMismatchError,
        ("intermediate_size is 40", "gate_proj says 48"),
    ),
    "wrong head count": (
        "official",
        with_fields(num_attention_heads=8, num_key_value_heads=8, head_dim=8),
        TensorMismatchError,
        ("num_attention_heads x head_dim is 64", "num_key_value_heads x head_dim is 64"),
    ),
    "heads that cannot share": (
        "official",
        with_fields(num_key_value_heads=3),
        ConfigFieldError,
        ("4 heads cannot share 3 KV heads",),
    ),
    "NaN and infinity": (
        "official",
        with_nan,
        TensorMismatchError,
        ("not finite (2)", "layers.0.mlp.up_proj.weight", "norm.weight"),
    ),
    "unknown tensor": (
        "official",
        with_tensors(surprise=torch.zeros(2)),
        TensorMismatchError,
        ("unknown (1)", "surprise"),
    ),
    "P-EAGLE tensor": (
        "official",
        with_tensors(mask_hidden=torch.zeros(1, 96)),
        TensorMismatchError,
        ("mask_hidden (a P-EAGLE head",),
    ),
    "MLA tensor": (
        "official",
        with_tensors(midlayer__self_attn__q_a_proj__weight=torch.zeros(4, 4)),
        TensorMismatchError,
        ("latent attention (MLA)",),
    ),
    "absolute d2t with t2d": ("official", absolute_map, TensorMismatchError, ("absolute ids",)),
    "absolute d2t alone": (
        "official",
        absolute_map_alone,
        TensorMismatchError,
        ("holds target ids, not offsets", "subtract arange"),
    ),
    "d2t out of range": (
        "official",
        far_map,
        TensorMismatchError,
        ("out of range", "maps 3 draft ids outside 0..60", "0 -> -5"),
    ),
    "d2t names an id twice": (
        "official",
        doubled_map,
        TensorMismatchError,
        ("not strictly increasing: draft ids 3, 4",),
    ),
    "t2d of another map": (
        "official",
        wrong_flags,
        TensorMismatchError,
        ("contradictory", "t2d flags 38 target ids, d2t names 23"),
    ),
    "missing d2t": ("official", without("d2t"), TensorMismatchError, ("missing", "d2t [23]")),
    "draft vocabulary mismatch": (
        "official",
        with_fields(draft_vocab_size=30),
        TensorMismatchError,
        ("draft_vocab_size is 30 in config.json, but lm_head says 23",),
    ),
    "head shorter than the map": (
        "official",
        short_head,
        TensorMismatchError,
        ("draft_vocab_size is 23", "lm_head says 20", "d2t [23], must be [20]"),
    ),
    "no head and nothing to share": (
        "official",
        without("lm_head.weight"),
        TensorMismatchError,
        ("lm_head.weight and cannot be shared: draft_vocab_size is 23, the target has 61",),
    ),
    "narrow head without embedding": (
        "narrow",
        without("model.embed_tokens.weight"),
        TensorMismatchError,
        ("embed_tokens.weight and cannot be shared: the head is 24 wide, the target 32",),
    ),
    "both norms": (
        "official",
        with_fields(fc_norm=True, norm_before_fc=True),
        ConfigFieldError,
        ("norm_before_fc", "both set"),
    ),
    "norm promised, not stored": (
        "official",
        with_fields(norm_before_fc=True),
        TensorMismatchError,
        ("missing", "input_norm.weight [96]"),
    ),
    "norm stored, not promised": (
        "official",
        with_tensors(input_norm__weight=torch.ones(96)),
        TensorMismatchError,
        ("unknown", "input_norm.weight"),
    ),
    "bias promised, not stored": (
        "official",
        with_fields(attention_bias=True),
        TensorMismatchError,
        ("attention_bias is True in config.json, the file says False",),
    ),
    "wrong dtype": ("official", half_tensor("fc.weight"), TensorMismatchError, ("F64, must be",)),
    "two names for one tensor": (
        "official",
        two_names,
        TensorMismatchError,
        ("norm.weight is stored twice, as model.norm.weight and as norm.weight",),
    ),
    "a gap in the layers": ("two_layers", gap_in_layers, TensorMismatchError, ("['0', '2']",)),
    "layers not declared": (
        "two_layers",
        with_fields(num_hidden_layers=1),
        TensorMismatchError,
        ("num_hidden_layers is 1 in config.json, but 2 are stored",),
    ),
    "both names of an extra norm": (
        "two_layers",
        both_extra_norms,
        TensorMismatchError,
        ("layers.1 has both input_layernorm and hidden_norm",),
    ),
    "another target's vocabulary": (
        "official",
        with_fields(vocab_size=64),
        TensorMismatchError,
        ("vocab_size is 64 in config.json, but the target has 61",),
    ),
    "another target's width": (
        "official",
        with_fields(target_hidden_size=64),
        TensorMismatchError,
        ("target_hidden_size is 64 in config.json, but the target has 32",),
    ),
    "states beyond the target": (
        "specforge",
        with_nested(eagle_aux_hidden_state_layer_ids=[1, 3, 9]),
        ConfigFieldError,
        ("boundaries [2, 4, 10] = layer outputs [1, 3, 9]", "boundaries 0 to 8"),
    ),
    "the same state twice": (
        "specforge",
        with_nested(eagle_aux_hidden_state_layer_ids=[1, 3, 3]),
        ConfigFieldError,
        ("each may be named once",),
    ),
    "negative state": (
        "specforge",
        with_nested(eagle_aux_hidden_state_layer_ids=[-1, 3, 4]),
        ConfigFieldError,
        ("[-1, 3, 4] is not a list of", "whole numbers from 0 on"),
    ),
    "counted but unnamed states": (
        "official",
        with_fields(num_aux_hidden_states=4),
        ConfigFieldError,
        ("4 captured states but not which",),
    ),
    "MLA architecture": (
        "official",
        with_fields(architectures=["Eagle3DeepseekV3ForCausalLM"]),
        UnsupportedArchitectureError,
        ("latent (MLA)",),
    ),
    "parallel drafting": (
        "official",
        with_fields(architectures=["PEagleDraftModel"]),
        UnsupportedArchitectureError,
        ("P-EAGLE",),
    ),
    "not a head at all": (
        "official",
        with_fields(architectures=["LlamaForCausalLMEagle4"]),
        UnsupportedArchitectureError,
        ("'LlamaForCausalLMEagle4' is not an EAGLE-3 head that aerie knows. Known: Llama",),
    ),
    "parallel draft step": (
        "official",
        with_nested(parallel_draft_step=2),
        ConfigFieldError,
        ("parallel_draft_step",),
    ),
    "a norm this head does not have": (
        "modelopt",
        with_nested(use_mtp_layernorm=True),
        ConfigFieldError,
        ("eagle_config.use_mtp_layernorm: True is not supported",),
    ),
    "other speculator": (
        "speculators",
        with_fields(speculators_model_type="mlp_speculator"),
        ConfigFieldError,
        ("only 'eagle3'",),
    ),
    "other activation": (
        "speculators",
        with_layer_field(hidden_act="gelu"),
        ConfigFieldError,
        ("hidden_act: 'gelu' is not supported",),
    ),
    "unknown rotary rule": (
        "official",
        with_fields(rope_scaling={"type": "dynamic", "factor": 2.0}),
        ConfigFieldError,
        ("rope_type: 'dynamic' is not supported",),
    ),
    "everything at once": (
        "official",
        everything_at_once,
        TensorMismatchError,
        ("fc.weight", "not finite", "hidden_norm", "surprise", "intermediate_size is 99"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_head_is_refused(tmp_path: Path, target: Decoder, name: str) -> None:
    dialect, change, error_class, fragments = BROKEN[name]
    case = pairs.CASES[dialect]
    config, tensors = copy.deepcopy(case.config), pairs.stored_tensors(case)
    change(config, tensors)
    pairs.save(tmp_path, config, tensors)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, target)
    assert type(caught.value) is error_class
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_pickled_head_names_the_converter(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["official"])
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(PickleRefusedError, match=r"python -m aerie\.models\.convert_pickle"):
        load(tmp_path, target)


def test_truncated_file(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["official"])
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(WeightFileError, match="download it again"):
        load(tmp_path, target)


def test_options_win_and_say_so(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["specforge"])
    head = load(tmp_path, target, boundaries=(0, 1, 8), is_residual_normed=True)
    assert head.taps == (0, 1, 8)
    resolved = {entry.name: entry for entry in head.summary.resolved}
    assert resolved["boundaries"].origin == "option"
    assert "layer outputs [-1, 0, 7]" in resolved["boundaries"].reason
    assert head.first.is_residual_normed


def test_option_of_the_wrong_length(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["official"])
    with pytest.raises(TensorMismatchError, match=r"(?s)names \(2, 4\).*Give the 3 boundaries"):
        load(tmp_path, target, boundaries=(2, 4))


def test_option_for_a_head_that_reads_none(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["modelopt_final_state"])
    with pytest.raises(UsageError, match="this head has none: use_aux_hidden_state is false"):
        load(tmp_path, target, boundaries=(2, 4, 5))


def test_small_target_has_no_default(tmp_path: Path) -> None:
    directory = pairs.write_target(tmp_path / "t", num_hidden_layers=6)
    small = load_decoder(directory, pytorch.prepare, LoadOptions())
    pairs.write_head(tmp_path / "h", pairs.CASES["official"])
    with pytest.raises(ConfigFieldError, match="do not exist in a target of 6 layers"):
        load(tmp_path / "h", small)


def test_shared_parts_are_not_copied(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path / "shared", pairs.CASES["modelopt"])
    head = load(tmp_path / "shared", target)
    assert head.embedding is target.embedding
    assert head.output is target.head
    case = pairs.CASES["tied_own_embedding"]
    tensors = pairs.stored_tensors(case) | {"embed_tokens.weight": target.embedding}
    pairs.save(tmp_path / "same", case.config, tensors)
    assert load(tmp_path / "same", target).embedding is target.embedding


def test_shared_output_keeps_the_target_dtype(tmp_path: Path, target: Decoder) -> None:
    pairs.write_head(tmp_path, pairs.CASES["modelopt"])
    with pytest.raises(ConfigFieldError, match="leave the head's dtype unset"):
        load(tmp_path, target, dtype=torch.float16)


def test_rotary_tables_are_left_out_if_they_are_the_configs(
    tmp_path: Path, target: Decoder
) -> None:
    case, name = pairs.CASES["official"], "midlayer.self_attn.rotary_emb.inv_freq"
    tensors = pairs.stored_tensors(case)
    tensors[name] = 10000.0 ** -(torch.arange(0, pairs.HEAD_DIM, 2) / pairs.HEAD_DIM)
    pairs.save(tmp_path, case.config, tensors)
    assert load(tmp_path, target).taps == case.boundaries
    pairs.save(tmp_path, case.config, tensors | {name: torch.ones(4)})
    with pytest.raises(TensorMismatchError, match=f"{name} is not what config.json implies"):
        load(tmp_path, target)


def test_wrong_inputs_are_refused(tmp_path: Path, target: Decoder) -> None:
    head = load(pairs.write_head(tmp_path, pairs.CASES["official"]), target)
    rows = causal_batch([torch.arange(4)], packed_slots([4]))
    pool = head.allocate_pool(5)
    with pytest.raises(UsageError, match="this head needs"):
        head.extend(rows, torch.zeros(4, 2, pairs.HIDDEN), pool)
    with pytest.raises(UsageError, match="must be"):
        head.step(rows, torch.zeros(3, pairs.HIDDEN), pool)

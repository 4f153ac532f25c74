"""Writes config.json of a draft head in the words of each public dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aerie.models.eagle3.blueprint import derive_storage
from aerie.models.eagle3.capture import IDS
from aerie.models.eagle3.config import MODELOPT, MODELOPT_SWITCHES, SPECFORGE, SPECULATORS
from aerie.models.eagle3.values import HeadConvention, HeadGeometry, HeadStorage
from aerie.models.rope import RopeSettings

Config = dict[str, Any]


@dataclass(frozen=True, eq=False)
class NormalHead:
    """A head without a dialect: its values, and its tensors by normal name as they are stored."""

    geometry: HeadGeometry
    convention: HeadConvention
    tensors: Mapping[str, Tensor]
    quantisation: Mapping[str, Any] | None = None  # `quantization_config` as it was written

    @property
    def storage(self) -> HeadStorage:
        """What the names tell."""
        return derive_storage(self.tensors)


@dataclass(frozen=True)
class ExportDetails:
    """What a config.json carries beside the head itself."""

    max_positions: int = 2048  # readers that size tables by it need the target's
    target_name: str = ""  # speculators: the verifier's path or hub id
    target_architecture: str = ""


def _layer_fields(head: NormalHead, details: ExportDetails) -> Config:
    """The decoder fields every dialect has somewhere."""
    geometry, storage, window = head.geometry, head.storage, head.convention.reach.window
    fields: Config = {
        "model_type": "llama",
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.mlp_width,
        "num_attention_heads": geometry.n_heads,
        "num_key_value_heads": geometry.n_kv_heads,
        "head_dim": geometry.head_dim,
        "num_hidden_layers": geometry.n_layers,
        "rms_norm_eps": geometry.norm_eps,
        "hidden_act": "silu",
        "vocab_size": geometry.vocab_size,
        "max_position_embeddings": details.max_positions,
        "attention_bias": storage.has_qkv_bias,
        "mlp_bias": storage.has_mlp_bias,
        "rope_theta": geometry.rope.theta,
    }
    if geometry.rope.kind != "default":
        fields["rope_scaling"] = _rope_scaling(geometry.rope)
    if window is not None:
        fields["sliding_window"] = window
        fields["layer_types"] = ["sliding_attention"] * geometry.n_layers
    return fields


def _rope_scaling(rope: RopeSettings) -> Config:
    fields: Config = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        fields["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        fields["low_freq_factor"] = rope.low_frequency
        fields["high_freq_factor"] = rope.high_frequency
    if rope.kind == "yarn":
        fields["beta_fast"], fields["beta_slow"] = rope.beta_fast, rope.beta_slow
        fields["truncate"], fields["attention_factor"] = rope.truncate, rope.attention_factor
    return fields


def _head_fields(head: NormalHead) -> Config:
    """Fields that stand at the top level in every dialect."""
    geometry, convention, storage = head.geometry, head.convention, head.storage
    is_shared = not storage.has_own_head
    fields: Config = {
        # null is how a head says that it shares the target's LM head.
        "draft_vocab_size": None if is_shared else geometry.draft_vocab_size,
        "target_hidden_size": geometry.target_hidden_size,
        "tie_word_embeddings": False,
        "fc_norm": convention.has_chunk_norms,
        "norm_before_fc": convention.has_input_norm,
        "norm_output": convention.is_output_normed,
        "norm_before_residual": convention.is_residual_normed,
    }
    if convention.logit_scale != 1.0:
        fields["logit_scale"] = convention.logit_scale
    if storage.has_fc_bias:
        fields["bias"] = True
    return fields


def _outputs(head: NormalHead) -> list[int]:
    return [boundary - 1 for boundary in head.convention.boundaries]


def _specforge(head: NormalHead, details: ExportDetails) -> Config:
    nested = {IDS: _outputs(head), "use_aux_hidden_state": True}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_fields(head, details),
        **_head_fields(head),
        "num_aux_hidden_states": head.geometry.n_captures,
        "eagle_config": nested,
    }


def _modelopt(head: NormalHead, details: ExportDetails) -> Config:
    convention = head.convention
    nested: Config = {
        **MODELOPT_SWITCHES,
        "use_aux_hidden_state": convention.uses_captures,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "norm_before_fc": convention.has_input_norm,
        "return_hidden_post_norm": convention.is_output_normed,
    }
    if convention.uses_captures:
        nested[IDS] = _outputs(head)
    fields = {**_layer_fields(head, details), **_head_fields(head)}
    return {"architectures": ["LlamaForCausalLMEagle3"], **fields, "eagle_config": nested}


def _speculators(head: NormalHead, details: ExportDetails) -> Config:
    verifier = {
        "name_or_path": details.target_name,
        "architectures": [details.target_architecture] if details.target_architecture else [],
    }
    method = {"proposal_type": "greedy", "speculative_tokens": 5}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        **_head_fields(head),
        IDS: list(head.convention.boundaries),
        "transformer_layer_config": _layer_fields(head, details),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": verifier,
        },
    }


WRITERS = {SPECFORGE: _specforge, SPECULATORS: _speculators, MODELOPT: _modelopt}

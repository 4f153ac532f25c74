"""The blueprint of a draft head: sizes derived from its tensors, and every tensor it needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aerie.models.eagle3.config import DeclaredStorage, HeadConfig
from aerie.models.eagle3.names import (
    DRAFT_TO_TARGET,
    EMBEDDING,
    FC,
    FINAL_NORM,
    HEAD,
    INPUT_NORM,
    TARGET_TO_DRAFT,
    chunk_norm,
    layer_prefix,
)
from aerie.models.eagle3.values import HeadConvention, HeadGeometry, HeadStorage
from aerie.models.linear import DenseFormat, LinearFormat, LinearShape
from aerie.models.packed import PackedFormat, Stored
from aerie.models.tensors import Offence, TensorSpec

FIRST = layer_prefix(0)
OFFSETS = ("I64", "I32")
FLAGS = ("BOOL", "U8")


@dataclass(frozen=True)
class TargetSizes:
    """What a head must fit."""

    n_layers: int
    hidden_size: int
    vocab_size: int


def derive_storage(stored: Collection[str]) -> HeadStorage:
    """What the names alone tell."""
    second = f"{layer_prefix(1)}."
    has_hidden_norm = f"{second}hidden_norm.weight" in stored
    return HeadStorage(
        has_own_embedding=EMBEDDING in stored,
        has_own_head=any(name.startswith(f"{HEAD}.") for name in stored),
        has_fc_bias=f"{FC}.bias" in stored,
        has_qkv_bias=f"{FIRST}.self_attn.q_proj.bias" in stored,
        has_output_bias=f"{FIRST}.self_attn.o_proj.bias" in stored,
        has_mlp_bias=f"{FIRST}.mlp.gate_proj.bias" in stored,
        has_qk_norm=f"{FIRST}.self_attn.q_norm.weight" in stored,
        # vLLM and speculators keep the decoder's name, SGLang and TensorRT-LLM the head's.
        extra_norm="hidden_norm" if has_hidden_norm else "input_layernorm",
    )


def derive_geometry(
    config: HeadConfig, stored: Stored, target: TargetSizes
) -> tuple[HeadGeometry, list[Offence]]:
    """Sizes from the tensors, each checked against the config and the target."""
    sizes, ruler = config.sizes, _Ruler(stored)
    hidden = ruler.agree("hidden_size", sizes.hidden_size, FINAL_NORM, 0)
    uses_captures = config.convention.uses_captures
    target_hidden = sizes.target_hidden_size or target.hidden_size
    if target_hidden != target.hidden_size:
        ruler.contradict(
            "target_hidden_size", target_hidden, f"the target has {target.hidden_size}"
        )
    if sizes.vocab_size not in (None, target.vocab_size):
        ruler.contradict("vocab_size", sizes.vocab_size, f"the target has {target.vocab_size}")
    head_dim = sizes.head_dim or max(1, hidden // sizes.n_heads)
    n_query, n_key = sizes.n_heads * head_dim, sizes.n_kv_heads * head_dim
    ruler.agree("num_attention_heads x head_dim", n_query, f"{FIRST}.self_attn.q_proj", 0)
    ruler.agree("num_key_value_heads x head_dim", n_key, f"{FIRST}.self_attn.k_proj", 0)
    geometry = HeadGeometry(
        hidden_size=hidden,
        target_hidden_size=target.hidden_size,
        n_captures=ruler.captures(config, target.hidden_size) if uses_captures else 0,
        n_layers=ruler.layers(sizes.n_layers),
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        head_dim=head_dim,
        mlp_width=ruler.agree("intermediate_size", sizes.mlp_width, f"{FIRST}.mlp.gate_proj", 0),
        vocab_size=target.vocab_size,
        draft_vocab_size=ruler.draft_vocabulary(sizes.draft_vocab_size, target.vocab_size),
        rope=config.rope,
        norm_eps=config.norm_eps,
    )
    return geometry, ruler.offences


class _Ruler:
    """Reads sizes off tensors and notes where a statement disagrees."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.offences: list[Offence] = []

    def contradict(self, field: str, value: object, found: str) -> None:
        """Note that a field of the config is not borne out."""
        detail = f"is {value} in config.json, but {found}"
        self.offences.append(Offence("contradictory", field, detail))

    def agree(self, field: str, declared: int | None, tensor: str, axis: int) -> int:
        """The size the tensor has; the declared one, or 1, when the tensor is absent."""
        found = self.size(tensor, axis)
        if found is None:
            return declared or 1
        if found == 0:
            self.offences.append(Offence("empty", tensor, "has no values"))
            return declared or 1
        if declared is not None and declared != found:
            self.contradict(field, declared, f"{tensor} says {found}")
        return found

    def size(self, tensor: str, axis: int) -> int | None:
        """One axis of a tensor or of a linear layer's outside, packed or not."""
        plain = self.stored.get(tensor) or self.stored.get(f"{tensor}.weight")
        if plain is not None:
            return plain.shape[axis] if axis < len(plain.shape) else None
        packed = self.stored.get(f"{tensor}.scales")
        is_output = packed is not None and axis == 0 and len(packed.shape) == 2
        return packed.shape[1] if packed is not None and is_output else None

    def captures(self, config: HeadConfig, target_hidden: int) -> int:
        """How many captured states fc reads."""
        declared = config.convention.captures
        ids = declared.top_level or declared.nested or ()
        width = self.size(FC, 1)
        # A silent config leaves the number to the tensor; the convention is checked against it.
        found = None if width is None else width // target_hidden
        expected = declared.count or len(ids) or found or 3
        if width is None:
            return expected
        if width % target_hidden:
            reads = f"{FC}.weight reads {width}, no multiple of the target's {target_hidden}"
            self.contradict("captured states", expected, reads)
            return expected
        if width // target_hidden != expected:
            self.contradict("captured states", expected, f"{FC}.weight reads {width} values")
        return width // target_hidden

    def layers(self, declared: int | None) -> int:
        """Layers in the file; they must be numbered from 0 without a gap."""
        numbers = {name.split(".")[1] for name in self.stored if name.startswith("layers.")}
        found = len(numbers)
        if numbers != {str(i) for i in range(found)}:
            self.contradict("num_hidden_layers", declared, f"layers {sorted(numbers)} are stored")
        elif declared is not None and declared != max(found, 1):
            self.contradict("num_hidden_layers", declared, f"{found} are stored")
        return max(found, 1)

    def draft_vocabulary(self, declared: int | None, target_vocab: int) -> int:
        """Rows of the head; without one the map's length, or the whole target vocabulary."""
        field = "draft_vocab_size"
        if self.size(HEAD, 0) is not None:
            return self.agree(field, declared, HEAD, 0)
        if DRAFT_TO_TARGET in self.stored:
            return self.agree(field, declared, DRAFT_TO_TARGET, 0)
        return declared or target_vocab


def check_storage(declared: DeclaredStorage, storage: HeadStorage, stored: Stored) -> list[Offence]:
    """Statements about biases that the file does not bear out, and doubled norms."""
    checks = (
        ("attention_bias", declared.attention_bias, storage.has_qkv_bias),
        ("mlp_bias", declared.mlp_bias, storage.has_mlp_bias),
        ("bias", declared.fc_bias, storage.has_fc_bias),
    )
    offences = [
        Offence("contradictory", field, f"is {stated} in config.json, the file says {found}")
        for field, stated, found in checks
        if stated is not None and stated != found
    ]
    extra = layer_prefix(1)
    if {f"{extra}.hidden_norm.weight", f"{extra}.input_layernorm.weight"} <= stored.keys():
        detail = "has both input_layernorm and hidden_norm; only the first layer may"
        offences.append(Offence("contradictory", extra, detail))
    return offences


def all_linears(geometry: HeadGeometry, storage: HeadStorage) -> dict[str, LinearShape]:
    """The linear layers of a head by normal name, its own LM head included if it has one."""
    hidden = geometry.hidden_size
    linears: dict[str, LinearShape] = {}
    if geometry.n_captures:
        n_in = geometry.n_captures * geometry.target_hidden_size
        linears[FC] = LinearShape(hidden, n_in, storage.has_fc_bias)
    for layer_idx in range(geometry.n_layers):
        # The first layer reads the token's embedding beside the hidden state.
        n_in = 2 * hidden if layer_idx == 0 else hidden
        for name, shape in _layer_linears(geometry, storage, n_in).items():
            linears[f"{layer_prefix(layer_idx)}.{name}"] = shape
    if storage.has_own_head:
        linears[HEAD] = LinearShape(geometry.draft_vocab_size, hidden)
    return linears


def _layer_linears(
    geometry: HeadGeometry, storage: HeadStorage, n_in: int
) -> dict[str, LinearShape]:
    hidden, width = geometry.hidden_size, geometry.mlp_width
    n_query = geometry.n_heads * geometry.head_dim
    n_key = geometry.n_kv_heads * geometry.head_dim
    return {
        "self_attn.q_proj": LinearShape(n_query, n_in, storage.has_qkv_bias),
        "self_attn.k_proj": LinearShape(n_key, n_in, storage.has_qkv_bias),
        "self_attn.v_proj": LinearShape(n_key, n_in, storage.has_qkv_bias),
        "self_attn.o_proj": LinearShape(hidden, n_query, storage.has_output_bias),
        "mlp.gate_proj": LinearShape(width, hidden, storage.has_mlp_bias),
        "mlp.up_proj": LinearShape(width, hidden, storage.has_mlp_bias),
        "mlp.down_proj": LinearShape(hidden, width, storage.has_mlp_bias),
    }


@dataclass(frozen=True)
class Formats:
    """How the linear layers of a head are stored, layer by layer."""

    dense: DenseFormat
    packed: PackedFormat | None

    def of(self, name: str, stored: Stored) -> LinearFormat:
        """Quantisers leave fc and the LM head as they are, so each layer is looked at."""
        is_packed = self.packed is not None and self.packed.is_stored(name, stored)
        return self.packed if self.packed is not None and is_packed else self.dense


def expected_tensors(
    geometry: HeadGeometry, convention: HeadConvention, storage: HeadStorage
) -> list[TensorSpec]:
    """Every tensor beside the linear layers."""
    hidden, target_hidden = (geometry.hidden_size,), geometry.target_hidden_size
    specs = [TensorSpec(FINAL_NORM, hidden)]
    if storage.has_own_embedding:
        specs.append(TensorSpec(EMBEDDING, (geometry.vocab_size, *hidden)))
    if convention.has_input_norm:
        specs.append(TensorSpec(INPUT_NORM, (geometry.n_captures * target_hidden,)))
    if convention.has_chunk_norms:
        for chunk_idx in range(geometry.n_captures):
            specs.append(TensorSpec(chunk_norm(chunk_idx), (target_hidden,)))
    is_whole = geometry.draft_vocab_size == geometry.vocab_size
    drafts, targets = (geometry.draft_vocab_size,), (geometry.vocab_size,)
    specs.append(TensorSpec(DRAFT_TO_TARGET, drafts, OFFSETS, is_optional=is_whole))
    specs.append(TensorSpec(TARGET_TO_DRAFT, targets, FLAGS, is_optional=True))
    for layer_idx in range(geometry.n_layers):
        specs += _layer_norms(geometry, storage, layer_idx)
    return specs


def _layer_norms(geometry: HeadGeometry, storage: HeadStorage, layer_idx: int) -> list[TensorSpec]:
    prefix, hidden = layer_prefix(layer_idx), (geometry.hidden_size,)
    first = ("input_layernorm", "hidden_norm") if layer_idx == 0 else (storage.extra_norm,)
    names = (*first, "post_attention_layernorm")
    specs = [TensorSpec(f"{prefix}.{name}.weight", hidden) for name in names]
    if storage.has_qk_norm:
        for name in ("q_norm", "k_norm"):
            specs.append(TensorSpec(f"{prefix}.self_attn.{name}.weight", (geometry.head_dim,)))
    return specs

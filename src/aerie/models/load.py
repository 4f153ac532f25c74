"""Loads a decoder from a model directory, strictly: every tensor is used, or one error says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, PrepareAttention, Reach
from aerie.errors import UsageError
from aerie.models.blueprint import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    expected_tensors,
    head_shape,
    layer_linears,
    layer_prefix,
    router_shape,
)
from aerie.models.decoder import AttentionBlock, Decoder, DecoderLayer
from aerie.models.feed_forward import (
    ClampedGate,
    ExpertLinear,
    ExpertProduct,
    Experts,
    FeedForward,
    GatedMLP,
)
from aerie.models.fields import Fields, read_config
from aerie.models.footprint import refuse_too_large
from aerie.models.geometry import ExpertGeometry, Geometry, parse_geometry
from aerie.models.layer_ops import TORCH_OPS, LayerOps
from aerie.models.linear import (
    DENSE,
    DenseFormat,
    Linear,
    LinearFormat,
    Projections,
    SeparateProjections,
    join,
)
from aerie.models.loader import Loader, find_offences
from aerie.models.mxfp4 import LARGEST_SCALES, PackedExpertLinear, dequantise, pitched
from aerie.models.norm import RMSNorm
from aerie.models.packed import BY_DEVICE, MixedFormat, PackedProducts
from aerie.models.packed_formats import read_packed
from aerie.models.partition import SUMMED, Partition
from aerie.models.rope import build_rotary
from aerie.models.rope_buffers import check_buffers, without_buffers
from aerie.models.tensors import Offence, refuse
from aerie.models.weights import DTYPES, open_checkpoint


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is brought into memory."""

    dtype: torch.dtype | None = None  # None: as the embedding is stored
    device: torch.device | str = "cpu"
    dense: DenseFormat = DENSE  # how dense layers are multiplied: layers, router and head
    is_fused: bool = False  # one product for q, k, v and for gate, up; copies those weights
    ops: LayerOps = TORCH_OPS  # what runs between the products
    on_tensor: Callable[[int, int], None] = lambda done, total: None  # told after each tensor
    partition: Partition | None = None  # the part of one rank of several; None: all of it
    packed: PackedProducts = BY_DEVICE  # how packed layers are multiplied


def load_decoder(
    directory: Path, prepare_attention: PrepareAttention, options: LoadOptions
) -> Decoder:
    """Read config and weights of an HF-format directory.

    Raises ConfigFieldError, UnsupportedArchitectureError, WeightFileError, PickleRefusedError, or
    TensorMismatchError with every tensor that is unknown, missing, mis-shaped or not finite;
    UsageError if the weights do not fit into the device's memory.
    """
    config = read_config(directory)
    geometry = parse_geometry(config)
    stored = open_checkpoint(directory)
    linears = _layer_format(config, geometry, options)
    files = without_buffers(stored)
    offences = find_offences(files, expected_tensors(geometry, linears))
    buffers = stored.entries.keys() - files.entries.keys()
    offences += check_buffers(stored, buffers, geometry.rope, geometry.attention.head_dim)
    refuse(offences, str(directory))
    stored_as = DTYPES[files.entries[EMBEDDING].dtype]
    dtype, device = options.dtype or stored_as, torch.device(options.device)
    is_mapped = (dtype, device.type) == (stored_as, "cpu") and linears == DENSE
    loader = Loader(files, dtype, device, options.on_tensor)
    if options.partition is not None:
        loader.cut = options.partition.cutter(geometry)
        geometry = options.partition.own(geometry)
    if not is_mapped:
        refuse_too_large(geometry, dtype, device, linears)
    decoder = _Builder(geometry, loader, options, linears).decoder(prepare_attention)
    refuse(loader.offences, str(directory))
    return decoder


def build_decoder(
    geometry: Geometry, loader: Loader, prepare_attention: PrepareAttention, options: LoadOptions
) -> Decoder:
    """A decoder from a loader that computes its dense tensors: no files, so nothing to check."""
    return _Builder(geometry, loader, options, options.dense).decoder(prepare_attention)


def _layer_format(config: Fields, geometry: Geometry, options: LoadOptions) -> LinearFormat:
    """How the linears of the layers are stored; experts have a format of their own."""
    packed = read_packed(config) if geometry.experts is None else None
    config.finish()
    if packed is None:
        return options.dense
    if options.partition is not None:
        raise UsageError(
            f"tensor_parallel splits plain weights, these are packed ({packed.method}); use "
            "tensor_parallel 1"
        )
    return MixedFormat(packed.with_products(options.packed), options.dense)


@dataclass(frozen=True, eq=False)
class _Builder:
    """Turns checked tensors into a decoder's parts."""

    geometry: Geometry
    loader: Loader
    options: LoadOptions
    linears: LinearFormat

    def decoder(self, prepare_attention: PrepareAttention) -> Decoder:
        geometry = self.geometry
        embedding = self.loader.take(EMBEDDING)
        return Decoder(
            geometry=geometry,
            embedding=embedding,
            layers=tuple(self.layer(i) for i in range(geometry.n_layers)),
            final_norm=self.norm(FINAL_NORM),
            head=self.head(embedding),
            rotary=build_rotary(geometry.rope, geometry.attention.head_dim, embedding.device),
            prepare_attention=prepare_attention,
            ops=self.options.ops,
        )

    def head(self, embedding: Tensor) -> Linear:
        """The LM head. A tied head that is also written must be the embedding, bit for bit."""
        name, dense = f"{HEAD}.weight", self.options.dense
        if self.geometry.has_tied_head:
            tied = self.loader.cut(name, embedding)
            if self.loader.has(name) and not torch.equal(self.loader.take(name), tied):
                detail = "differs from the embedding, but tie_word_embeddings is true"
                self.loader.offences.append(Offence("contradictory", name, detail))
            head = dense.make(tied, None)
        else:
            head = dense.build(self.loader, HEAD, head_shape(self.geometry))
        part = self.options.partition
        return head if part is None else part.gathered(head, self.geometry.vocab_size)

    def layer(self, layer_idx: int) -> DecoderLayer:
        prefix = layer_prefix(layer_idx)
        return DecoderLayer(
            attention_norm=self.norm(f"{prefix}.input_layernorm.weight"),
            attention=self.attention(prefix, layer_idx),
            feed_forward_norm=self.norm(f"{prefix}.post_attention_layernorm.weight"),
            feed_forward=self.feed_forward(prefix),
        )

    def attention(self, prefix: str, layer_idx: int) -> AttentionBlock:
        shape = self.geometry.attention
        block = f"{prefix}.self_attn"
        sinks = self.loader.take(f"{block}.sinks", torch.float32) if shape.has_sinks else None
        return AttentionBlock(
            qkv=self.projections(prefix, "self_attn", ("q_proj", "k_proj", "v_proj")),
            output=self.linear(prefix, "self_attn.o_proj"),
            head_dim=shape.head_dim,
            query_norm=self.norm(f"{block}.q_norm.weight") if shape.has_qk_norm else None,
            key_norm=self.norm(f"{block}.k_norm.weight") if shape.has_qk_norm else None,
            rule=LayerAttention(shape.head_dim**-0.5, Reach(shape.windows[layer_idx]), sinks),
            ops=self.options.ops,
        )

    def feed_forward(self, prefix: str) -> FeedForward:
        if self.geometry.experts is not None:
            return self.experts(f"{prefix}.mlp", self.geometry.experts)
        gate_up = self.projections(prefix, "mlp", ("gate_proj", "up_proj"))
        return GatedMLP(gate_up, self.linear(prefix, "mlp.down_proj"), self.options.ops)

    def experts(self, prefix: str, experts: ExpertGeometry) -> Experts:
        shape = router_shape(self.geometry, experts)
        gate = ClampedGate(experts.activation_alpha, experts.activation_limit)
        return Experts(
            router=self.options.dense.build(self.loader, f"{prefix}.router", shape),
            gate_up=self.expert_linear(f"{prefix}.experts.gate_up_proj", experts, gate),
            down=self.expert_linear(f"{prefix}.experts.down_proj", experts, None),
            n_active=experts.n_active,
            ops=self.options.ops,
        )

    def expert_linear(
        self, name: str, experts: ExpertGeometry, gate: ClampedGate | None
    ) -> ExpertProduct:
        bias = self.loader.take(f"{name}_bias")
        if not experts.is_mxfp4:
            return ExpertLinear(self.loader.take(name).transpose(1, 2), bias, gate)
        blocks, scales = (self.loader.take(f"{name}_{part}") for part in ("blocks", "scales"))
        dtype, largest = self.loader.dtype, int(scales.max())
        if largest > LARGEST_SCALES[dtype]:  # rare: only then is every weight looked at
            for own in (slice(i, i + 1) for i in range(experts.n_experts)):
                weight = dequantise(blocks[own], scales[own], dtype)
                self.loader.check_finite(f"{name}_scales", weight)
        constants = () if gate is None else (gate.alpha, gate.limit)
        return PackedExpertLinear(
            kernel=self.options.packed.kernel("multiply_experts", blocks.device),
            blocks=blocks,
            scales=pitched(scales),
            bias=bias,
            gate=torch.tensor(constants, dtype=torch.float32, device=blocks.device),
            largest_scale=largest,
        )

    def projections(self, prefix: str, block: str, names: tuple[str, ...]) -> Projections:
        linears = tuple(self.linear(prefix, f"{block}.{name}") for name in names)
        if not self.options.is_fused:
            return SeparateProjections(linears)
        return join(linears, self.options.dense.make, f"{prefix}.{block}")

    def linear(self, prefix: str, name: str) -> Linear:
        shape = layer_linears(self.geometry)[name]
        made = self.linears.build(self.loader, f"{prefix}.{name}", shape)
        part = self.options.partition
        return part.summed(made) if part and name.rpartition(".")[2] in SUMMED else made

    def norm(self, name: str) -> RMSNorm:
        # float32 whatever the run's dtype: the norm multiplies before it rounds.
        weight = self.loader.take(name, torch.float32)
        return RMSNorm(weight, self.geometry.norm_eps, self.options.ops)

"""Loads a draft head, strictly: sizes come from the tensors, every contradiction is listed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, PrepareAttention
from aerie.errors import ConfigFieldError, UsageError
from aerie.models.decoder import AttentionBlock, Decoder, DecoderLayer
from aerie.models.eagle3 import names as names
from aerie.models.eagle3.blueprint import (
    Formats,
    TargetSizes,
    all_linears,
    check_storage,
    derive_geometry,
    derive_storage,
    expected_tensors,
)
from aerie.models.eagle3.config import HeadConfig, read_head_config
from aerie.models.eagle3.head import Eagle3Head, FeatureMixer, FusionLayer
from aerie.models.eagle3.resolve import HeadOptions, resolve_convention, resolve_sharing
from aerie.models.eagle3.values import HeadConvention, HeadGeometry, HeadStorage, HeadSummary
from aerie.models.eagle3.vocabulary import check_map, target_ids
from aerie.models.feed_forward import GatedMLP
from aerie.models.linear import (
    DenseFormat,
    Linear,
    LinearShape,
    Projections,
    SeparateProjections,
    WholeWeight,
    join,
)
from aerie.models.loader import Loader, find_offences
from aerie.models.norm import RMSNorm
from aerie.models.rope import build_rotary
from aerie.models.rope_buffers import check_buffers
from aerie.models.tensors import Offence, refuse
from aerie.models.weights import Checkpoint, open_checkpoint


def load_head(
    directory: Path, target: Decoder, prepare_attention: PrepareAttention, options: HeadOptions
) -> Eagle3Head:
    """Read config and weights of a head's directory, for one target.

    Raises ConfigFieldError, UnsupportedArchitectureError, WeightFileError, PickleRefusedError,
    or TensorMismatchError with everything that is wrong with the tensors, in one list.
    """
    sizes = TargetSizes(
        target.geometry.n_layers, target.geometry.hidden_size, target.geometry.vocab_size
    )
    found = read_head(directory, sizes, options)
    dtype, device = options.dtype or target.embedding.dtype, target.embedding.device
    loader = Loader(found.files, dtype, device)
    packed = found.config.quantisation
    formats = Formats(options.dense, packed and packed.with_products(options.packed))
    fusing = options.dense if options.is_fused else None
    builder = _Builder(found.summary, loader, formats, target, fusing)
    refuse([*found.offences, *builder.search()], str(directory))
    is_tied = found.config.storage.is_head_tied
    head = builder.head(prepare_attention, options.dense if is_tied else None)
    refuse(loader.offences, str(directory))
    return head


def build_head(
    summary: HeadSummary,
    loader: Loader,
    target: Decoder,
    prepare_attention: PrepareAttention,
    options: HeadOptions,
) -> Eagle3Head:
    """A head from a loader that computes its dense tensors: no files, so nothing to check."""
    dense = options.dense
    fusing = dense if options.is_fused else None
    builder = _Builder(summary, loader, Formats(dense, None), target, fusing)
    return builder.head(prepare_attention, None)


@dataclass(frozen=True, eq=False)
class ReadHead:
    """A head's directory in normal form, and every contradiction in it that shows so far."""

    config: HeadConfig
    files: Checkpoint  # by normal name
    summary: HeadSummary
    offences: list[Offence]


def read_head(directory: Path, target: TargetSizes, options: HeadOptions) -> ReadHead:
    """Read config and headers of a head of any dialect."""
    config = read_head_config(directory)
    stored = open_checkpoint(directory)
    table = names.normalise_all(stored.entries)
    files = Checkpoint({normal: stored.entries[name] for normal, name in table.stored.items()})
    summary, offences = _describe(config, files, target, options)
    geometry = summary.geometry
    tables = check_buffers(stored, table.buffers, geometry.rope, geometry.head_dim)
    return ReadHead(config, files, summary, [*offences, *table.offences, *tables])


def _describe(
    config: HeadConfig, files: Checkpoint, target: TargetSizes, options: HeadOptions
) -> tuple[HeadSummary, list[Offence]]:
    storage = derive_storage(files.entries)
    geometry, offences = derive_geometry(config, files.entries, target)
    offences += check_storage(config.storage, storage, files.entries)
    convention, resolved = resolve_convention(config, target.n_layers, options)
    if convention.uses_captures and len(convention.boundaries) != geometry.n_captures:
        # Explicit boundaries can contradict the file as well as a config can.
        detail = f"reads {geometry.n_captures} states, the convention names {convention.boundaries}"
        hint = f"Give the {geometry.n_captures} boundaries the head was trained with as taps."
        offences.append(Offence("contradictory", f"{names.FC}.weight", detail, hint))
    sharing, sharing_offences = resolve_sharing(config, storage, geometry)
    offences += sharing_offences
    return HeadSummary(
        config.dialect, geometry, convention, storage, (*resolved, *sharing)
    ), offences


@dataclass(frozen=True, eq=False)
class _Builder:
    """Turns checked tensors into a head's parts."""

    summary: HeadSummary
    loader: Loader
    formats: Formats
    target: Decoder
    fusing: DenseFormat | None = None  # how one product for q, k, v and for gate, up is made

    @property
    def geometry(self) -> HeadGeometry:
        return self.summary.geometry

    @property
    def convention(self) -> HeadConvention:
        return self.summary.convention

    @property
    def storage(self) -> HeadStorage:
        return self.summary.storage

    def search(self) -> list[Offence]:
        """Compare headers with the blueprint; search the data too if anything is wrong."""
        stored = self.loader.files.entries
        specs = expected_tensors(self.geometry, self.convention, self.storage)
        for name, shape in all_linears(self.geometry, self.storage).items():
            specs += self.formats.of(name, stored).tensors(name, shape)
        return [names.explained(offence) for offence in find_offences(self.loader.files, specs)]

    def head(self, prepare_attention: PrepareAttention, tie: DenseFormat | None) -> Eagle3Head:
        """The head; `tie` is how a head tied to its own embedding is multiplied, if it may be."""
        embedding = self.embedding()
        return Eagle3Head(
            summary=self.summary,
            embedding=embedding,
            mixer=self.mixer(),
            first=self.first(),
            extra=tuple(self.extra(i) for i in range(1, self.geometry.n_layers)),
            final_norm=self.norm(names.FINAL_NORM),
            output=self.output(embedding, tie),
            token_map=self.token_map(),
            rotary=build_rotary(self.geometry.rope, self.geometry.head_dim, embedding.device),
            prepare_attention=prepare_attention,
        )

    def embedding(self) -> Tensor:
        shared = self.target.embedding
        if not self.storage.has_own_embedding:
            return shared.to(self.loader.dtype)
        own = self.loader.take(names.EMBEDDING)
        # Trainers often save the target's table again: one copy is enough.
        is_same = own.dtype == shared.dtype and torch.equal(own, shared)
        return shared if is_same else own

    def output(self, embedding: Tensor, tie: DenseFormat | None) -> Linear:
        if self.storage.has_own_head:
            return self.linear(names.HEAD)
        if tie is not None and self.storage.has_own_embedding:
            return tie.make(embedding, None)
        if self.loader.dtype != self.target.embedding.dtype:
            raise ConfigFieldError(
                f"the head shares the target's LM head, so it runs in {self.target.embedding.dtype}"
                f", not in {self.loader.dtype}; leave the head's dtype unset"
            )
        if not isinstance(self.target.head, WholeWeight):
            raise UsageError(
                "the draft head shares the target's LM head, which is split over ranks; use a head "
                "with its own, or tensor_parallel 1"
            )
        return self.formats.dense.shared(self.target.head)

    def token_map(self) -> Tensor | None:
        """Target ids of the draft ids; the map's offences go into the one error at the end."""
        if not self.loader.has(names.DRAFT_TO_TARGET):
            return None
        offsets = self.loader.take(names.DRAFT_TO_TARGET)
        has_flags = self.loader.has(names.TARGET_TO_DRAFT)
        flags = self.loader.take(names.TARGET_TO_DRAFT) if has_flags else None
        for offence in check_map(offsets, flags, self.geometry.vocab_size):
            self.loader.note(offence)
        is_whole = self.geometry.draft_vocab_size == self.geometry.vocab_size
        return None if is_whole else target_ids(offsets)

    def mixer(self) -> FeatureMixer:
        convention = self.convention
        n_chunks = self.geometry.n_captures if convention.has_chunk_norms else 0
        return FeatureMixer(
            target_norm=None if convention.uses_captures else self.target.final_norm,
            input_norm=self.norm(names.INPUT_NORM) if convention.has_input_norm else None,
            chunk_norms=tuple(self.norm(names.chunk_norm(k)) for k in range(n_chunks)),
            fc=self.linear(names.FC) if convention.uses_captures else None,
        )

    def first(self) -> FusionLayer:
        prefix = names.layer_prefix(0)
        return FusionLayer(
            embedding_norm=self.norm(f"{prefix}.input_layernorm.weight"),
            hidden_norm=self.norm(f"{prefix}.hidden_norm.weight"),
            attention=self.attention(prefix),
            feed_forward_norm=self.norm(f"{prefix}.post_attention_layernorm.weight"),
            feed_forward=self.feed_forward(prefix),
            is_residual_normed=self.convention.is_residual_normed,
        )

    def extra(self, layer_idx: int) -> DecoderLayer:
        prefix = names.layer_prefix(layer_idx)
        return DecoderLayer(
            attention_norm=self.norm(f"{prefix}.{self.storage.extra_norm}.weight"),
            attention=self.attention(prefix),
            feed_forward_norm=self.norm(f"{prefix}.post_attention_layernorm.weight"),
            feed_forward=self.feed_forward(prefix),
        )

    def attention(self, prefix: str) -> AttentionBlock:
        block, has_norm = f"{prefix}.self_attn", self.storage.has_qk_norm
        head_dim, reach = self.geometry.head_dim, self.convention.reach
        qkv = [self.linear(f"{block}.{name}") for name in ("q_proj", "k_proj", "v_proj")]
        return AttentionBlock(
            qkv=self.projections(qkv, block),
            output=self.linear(f"{block}.o_proj"),
            head_dim=head_dim,
            query_norm=self.norm(f"{block}.q_norm.weight") if has_norm else None,
            key_norm=self.norm(f"{block}.k_norm.weight") if has_norm else None,
            rule=LayerAttention(head_dim**-0.5, reach),
            ops=self.target.ops,
        )

    def feed_forward(self, prefix: str) -> GatedMLP:
        gate_up = [self.linear(f"{prefix}.mlp.{name}") for name in ("gate_proj", "up_proj")]
        down = self.linear(f"{prefix}.mlp.down_proj")
        return GatedMLP(self.projections(gate_up, f"{prefix}.mlp"), down, self.target.ops)

    def projections(self, linears: list[Linear], name: str) -> Projections:
        if self.fusing is None:
            return SeparateProjections(tuple(linears))
        return join(linears, self.fusing.make, name)

    def linear(self, name: str) -> Linear:
        shape: LinearShape = all_linears(self.geometry, self.storage)[name]
        return self.formats.of(name, self.loader.files.entries).build(self.loader, name, shape)

    def norm(self, name: str) -> RMSNorm:
        weight = self.loader.take(name, torch.float32)
        return RMSNorm(weight, self.geometry.norm_eps, self.target.ops)

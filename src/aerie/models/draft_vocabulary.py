"""Draft vocabularies: token counts, the most frequent ids, and heads sliced to them.

    counts = count_ids(texts, vocab_size, "what was counted")
    ids = choose_ids(counts, 16384, forced=eos_ids, allowed=head_ids(head))
    small = slice_head(head, ids)

A smaller vocabulary makes the draft's LM head cheaper and never changes the output: the target
verifies over all ids. Counts of text that the target wrote itself choose better than raw text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from aerie.errors import CheckpointError, UsageError
from aerie.models.eagle3 import names as names
from aerie.models.eagle3.export import NormalHead
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.vocabulary import target_ids
from aerie.models.fields import read_fields
from aerie.models.linear import DENSE, DenseFormat
from aerie.models.resolved import OPTION, Resolved

MAX_COUNT = 1 << 40  # of one id; a vocabulary of such counts still has a sum
MAX_DIGITS = 9  # of an id

Texts = Iterable[Sequence[int] | Tensor]


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often each id of a target's vocabulary was seen, and where."""

    counts: Tensor  # [vocab] i64
    source: str

    @property
    def n_tokens(self) -> int:
        """Tokens counted."""
        return int(self.counts.sum())

    def coverage(self, ids: Tensor) -> float:
        """Share of the counted tokens that are among these ids."""
        return float(self.counts[ids].sum()) / max(1, self.n_tokens)


def count_ids(texts: Texts, vocab_size: int, source: str) -> TokenCounts:
    """Count the ids of some texts."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for text in texts:
        ids = torch.as_tensor(text, dtype=torch.int64)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise UsageError(
                f"{source}: id {int(ids.max())} is outside the target's {vocab_size} ids; use the "
                "tokenizer that belongs to the model"
            )
        counts += torch.bincount(ids, minlength=vocab_size)
    return TokenCounts(counts, source)


def choose_ids(
    counts: TokenCounts, size: int, forced: Sequence[int] = (), allowed: Tensor | None = None
) -> Tensor:
    """The `size` most frequent target ids, ascending: [size] i64.

    `forced` ids are always among them (a draft that cannot say the end of a text wastes its last
    round); `allowed` are the ids a head knows, all when None. Of equal counts the lower id wins.
    """
    known = torch.arange(counts.counts.shape[0]) if allowed is None else allowed.cpu()
    if not 0 < size <= known.shape[0]:
        raise UsageError(f"a draft vocabulary of {size} ids cannot come from {known.shape[0]}")
    unknown = sorted(set(forced) - set(known.tolist()))
    if unknown:
        raise UsageError(f"forced ids {unknown} are not in the head's vocabulary")
    if len(set(forced)) > size:
        raise UsageError(f"{len(set(forced))} forced ids do not fit into {size}")
    order = counts.counts[known]
    order[torch.isin(known, torch.tensor(list(forced), dtype=torch.int64))] = counts.n_tokens + 1
    chosen = torch.argsort(order, descending=True, stable=True)[:size]
    return known[chosen].sort().values


def save_counts(path: Path, counts: TokenCounts, forced: Sequence[int]) -> None:
    """Write a token-count file: JSON, ids that were never seen left out."""
    seen = counts.counts.nonzero().flatten().tolist()
    values = {
        "vocab_size": counts.counts.shape[0],
        "source": counts.source,
        "n_tokens": counts.n_tokens,
        "forced": sorted(set(forced)),
        "counts": {str(token): int(counts.counts[token]) for token in seen},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")


def read_counts(path: Path) -> tuple[TokenCounts, tuple[int, ...]]:
    """A token-count file: the counts, and the ids that are always kept."""
    fields = read_fields(path)
    size, source = fields.integer("vocab_size"), fields.text("source")
    stored, forced = fields.values.get("counts"), fields.values.get("forced", [])
    is_counted = isinstance(stored, dict) and all(
        type(n) is int and 0 < n < MAX_COUNT for n in stored.values()
    )
    if not is_counted:
        fields.note(
            "counts", f"must be an object of numbers from 1, below {MAX_COUNT}, by token id"
        )
    if not isinstance(forced, list) or not all(type(i) is int and 0 <= i < size for i in forced):
        fields.note("forced", f"must be a list of ids below {size}")
    fields.finish()
    assert isinstance(stored, dict) and isinstance(forced, list)
    counts = torch.zeros(size, dtype=torch.int64)
    for name, count in stored.items():
        if not name.isdecimal() or len(name) > MAX_DIGITS or int(name) >= size:
            raise CheckpointError(f"{path}: {name!r:.20} is no id of a vocabulary of {size}")
        counts[int(name)] = count
    return TokenCounts(counts, source), tuple(forced)


def head_ids(head: Eagle3Head) -> Tensor:
    """Target ids a loaded head can draft, ascending: [draft vocab] i64 on the CPU."""
    if head.token_map is None:
        return torch.arange(head.summary.geometry.draft_vocab_size)
    return head.token_map.cpu()


def output_weight(head: Eagle3Head) -> Tensor:
    """The LM head's weight [draft vocab, hidden]; packed ones have none."""
    weight = getattr(head.output, "weight", None)
    if not isinstance(weight, Tensor) or weight.shape[0] != head.summary.geometry.draft_vocab_size:
        raise UsageError("the LM head is not plainly dense: slice the checkpoint before packing it")
    return weight


def slice_head(head: Eagle3Head, ids: Tensor, dense: DenseFormat = DENSE) -> Eagle3Head:
    """The head restricted to these target ids, ascending; its LM head's other rows are not kept.

    Everything but the LM head is shared with the head that was given. `dense` is how the new LM
    head is multiplied.
    """
    weight = output_weight(head)
    rows = draft_rows(head_ids(head), ids).to(weight.device)
    size = rows.shape[0]
    summary = head.summary
    note = Resolved[object](
        "draft vocabulary",
        f"{size} of {summary.geometry.vocab_size} target ids",
        OPTION,
        f"sliced from {head_ids(head).shape[0]}",
    )
    kept = tuple(entry for entry in summary.resolved if entry.name != note.name)
    return replace(
        head,
        output=dense.make(weight[rows], None),
        token_map=None if size == summary.geometry.vocab_size else ids.to(weight.device),
        summary=replace(
            summary,
            geometry=replace(summary.geometry, draft_vocab_size=size),
            storage=replace(summary.storage, has_own_head=True),
            resolved=(*kept, note),
        ),
    )


def slice_normal(head: NormalHead, ids: Tensor, target_output: Tensor) -> NormalHead:
    """The same for a head's files; `target_output` is the LM head of a target it may share."""
    name = f"{names.HEAD}.weight"
    if f"{names.HEAD}.qweight" in head.tensors:
        raise UsageError("the LM head is quantised; slice the head before it is packed")
    offsets = head.tensors.get(names.DRAFT_TO_TARGET)
    known = torch.arange(head.geometry.draft_vocab_size) if offsets is None else target_ids(offsets)
    rows = draft_rows(known, ids)
    flags = torch.zeros(head.geometry.vocab_size, dtype=torch.bool)
    flags[ids] = True
    tensors = {
        **head.tensors,
        name: head.tensors.get(name, target_output)[rows],
        names.DRAFT_TO_TARGET: ids - torch.arange(ids.shape[0]),
        names.TARGET_TO_DRAFT: flags,
    }
    geometry = replace(head.geometry, draft_vocab_size=ids.shape[0])
    return replace(head, geometry=geometry, tensors=tensors)


def draft_rows(known: Tensor, ids: Tensor) -> Tensor:
    """Row of each wanted target id in a vocabulary `known`, both ascending."""
    if ids.ndim != 1 or not ids.numel() or bool((ids.diff() <= 0).any()):
        raise UsageError("ids of a draft vocabulary must be strictly ascending and not empty")
    missing = ids[~torch.isin(ids, known)]
    if missing.numel():
        raise UsageError(
            f"the head cannot draft {missing.numel()} of the wanted ids, the first is "
            f"{int(missing[0])}; choose among the ids it knows"
        )
    return torch.searchsorted(known, ids)

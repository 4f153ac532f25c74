"""What a smaller draft vocabulary costs: agreement and chain acceptance beside the bytes it saves.

The target continues some prompts greedily; heads with the full and with sliced vocabularies then
draft from every position of what it wrote. Position i pairs the target's state of i with token
i + 1; an honest draft guesses the tokens from i + 2 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.attention.rows import Bounds, Rows, causal_rows, ragged
from aerie.errors import UsageError
from aerie.models.decoder import Decoder
from aerie.models.draft_vocabulary import head_ids, output_weight, slice_head
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.probe_text import whole_texts
from aerie.models.written_text import Writing, continue_texts

BF16_BYTES = 2


@dataclass(frozen=True)
class ReportSettings:
    """What is measured."""

    n_new: int = 64  # tokens the target writes behind each prompt
    n_drafted: int = 5  # length of a drafted chain
    top_k: int = 8


@dataclass(frozen=True)
class VocabularyRow:
    """One size; agreement is with the target's first choice, given the target's own text."""

    n_ids: int
    head_bytes: int  # of the LM head in bf16, whatever the measurement ran in
    coverage: float  # share of the written tokens that the draft can say
    top1: float
    top_k: float
    acceptance: float  # tokens per round of a greedy chain, bonus token included
    n_rounds: int


@dataclass(frozen=True, eq=False)
class _Text:
    """One prompt with its continuation, and what the head reads of it."""

    tokens: Tensor  # [n] i64
    first: int  # the first position that drafts: the prompt's last
    taps: Tensor  # [n - 1, captures, target hidden]


def report(
    target: Decoder,
    head: Eagle3Head,
    vocabularies: Sequence[Tensor],
    prompts: Sequence[Tensor],
    settings: ReportSettings,
) -> list[VocabularyRow]:
    """The head as it is, then sliced to each vocabulary (target ids, ascending)."""
    if settings.n_new < settings.n_drafted + 2:
        raise UsageError(
            f"{settings.n_new} new tokens are too few for {settings.n_drafted} drafted"
        )
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UsageError("the report needs at least one prompt, none of them empty")
    texts = _read(target, head, prompts, settings)
    heads = [head, *(slice_head(head, ids) for ids in vocabularies)]
    return [_measure(entry, texts, settings) for entry in heads]


def as_json(rows: Sequence[VocabularyRow], settings: ReportSettings) -> dict[str, Any]:
    """The table as JSON values."""
    return {"settings": asdict(settings), "rows": [asdict(row) for row in rows]}


def as_markdown(rows: Sequence[VocabularyRow], settings: ReportSettings) -> str:
    """The table as Markdown; acceptance also in units of the full vocabulary's."""
    lines = [
        f"| ids | LM head in bf16, MB | coverage | top-1 | top-{settings.top_k} | acceptance at "
        f"{settings.n_drafted} | of full |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = row.acceptance / rows[0].acceptance
        lines.append(
            f"| {row.n_ids} | {row.head_bytes / 1e6:.2f} | {row.coverage:.4f} | {row.top1:.3f} | "
            f"{row.top_k:.3f} | {row.acceptance:.3f} | {share:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _read(
    target: Decoder, head: Eagle3Head, prompts: Sequence[Tensor], settings: ReportSettings
) -> list[_Text]:
    out = []
    for prompt in prompts:
        (tokens,) = continue_texts(target, [prompt], Writing(settings.n_new))
        rows = whole_texts((tokens[:-1],))
        nothing = torch.zeros(0, dtype=torch.int64, device=tokens.device)
        pool = target.allocate_pool(rows.n_rows + 1)
        taps = target.forward(rows, pool, nothing, head.taps).taps
        out.append(_Text(tokens, prompt.shape[0] - 1, taps))
    return out


def _measure(head: Eagle3Head, texts: Sequence[_Text], settings: ReportSettings) -> VocabularyRow:
    hits, ranked, rounds, covered = [], [], [], []
    for text in texts:
        guesses, top = _draft_everywhere(head, text, settings)
        truth = text.tokens[text.first + 2 :]
        n = truth.shape[0]
        hits.append(guesses[:n, 0] == truth)
        ranked.append((top[:n] == truth[:, None]).any(-1))
        covered.append(torch.isin(truth.cpu(), head_ids(head)))
        rounds += _walk(guesses, truth)
    return VocabularyRow(
        n_ids=head.summary.geometry.draft_vocab_size,
        head_bytes=output_weight(head).numel() * BF16_BYTES,
        coverage=_share(covered),
        top1=_share(hits),
        top_k=_share(ranked),
        acceptance=sum(rounds) / max(1, len(rounds)),
        n_rounds=len(rounds),
    )


def _draft_everywhere(
    head: Eagle3Head, text: _Text, settings: ReportSettings
) -> tuple[Tensor, Tensor]:
    """Guesses [positions, drafted] and first candidates [positions, k], as target ids."""
    n_pairs = text.tokens.shape[0] - 1
    starts = torch.arange(text.first, n_pairs, device=text.tokens.device)
    pool = head.allocate_pool(1 + n_pairs + starts.shape[0] * settings.n_drafted)
    out = head.extend(whole_texts((text.tokens[1:],)), text.taps, pool, starts)
    k = min(settings.top_k, out.logits.shape[-1])
    top = head.to_target(out.logits.topk(k, dim=-1).indices)
    chain = [head.to_target(out.logits.argmax(-1))]
    for level in range(1, settings.n_drafted):
        # Requests that share the text's slots as their prefix.
        out = head.step(_chain_rows(chain[-1], starts, level, n_pairs), out.hidden, pool)
        chain.append(head.to_target(out.logits.argmax(-1)))
    return torch.stack(chain, dim=1), top


def _chain_rows(tokens: Tensor, starts: Tensor, level: int, n_pairs: int) -> Rows:
    n, device = starts.shape[0], starts.device
    text = torch.arange(1, n_pairs + 1, dtype=torch.int32, device=device)
    # Chain b owns one slot per level behind the text's.
    own = (
        n_pairs
        + 1
        + torch.arange(n, device=device)[:, None]
        + n * torch.arange(level, device=device)
    )
    columns = [
        torch.cat((text[: start + 1], own[b].int())) for b, start in enumerate(starts.tolist())
    ]
    slots, kv_indptr = ragged(columns)
    qo_indptr = torch.arange(n + 1, dtype=torch.int32, device=device)
    return causal_rows(tokens, qo_indptr, kv_indptr, slots, Bounds(1, n_pairs + level))


def _walk(guesses: Tensor, truth: Tensor) -> list[int]:
    """Tokens of each round of a run that drafts, verifies and goes on behind what was accepted."""
    n_drafted = guesses.shape[1]
    windows = truth.unfold(0, n_drafted, 1)  # [positions with a whole chain, drafted]
    matches = (guesses[: windows.shape[0]] == windows).long().cumprod(-1).sum(-1).tolist()
    rounds, position = [], 0
    while position < len(matches):
        rounds.append(matches[position] + 1)
        position += rounds[-1]
    return rounds


def _share(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).double().mean())

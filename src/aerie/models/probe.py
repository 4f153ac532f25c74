"""The probe at load: does the head agree with its target, or would another reading do better?

A head read by the wrong convention runs without an error and drafts nothing. The probe measures
the head's top-1 agreement with the target's own next token, as configured and for the readings
next to it: captured states one boundary lower or higher, the other residual.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from aerie.errors import ProbeError, UnknownNameError
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.values import both_notations
from aerie.models.probe_text import Encode, ProbeTexts, read_built_in, whole_texts, write_freely

ProbeMode = Literal["refuse", "warn", "off"]
MODES = ("refuse", "warn", "off")

MIN_AGREEMENT = 0.3  # public heads reach 0.6 to 0.8 on ordinary text; a misread one nearly 0
MIN_LEAD = 0.05
MIN_ERRORS = 2.0  # the lead in its own standard errors


class ProbeWarning(UserWarning):
    """The probe found a problem and was told to go on."""


@dataclass(frozen=True)
class Reading:
    """One way to read a head: the two choices no tensor's shape can tell."""

    boundaries: tuple[int, ...]
    is_residual_normed: bool

    def __str__(self) -> str:
        residual = "norm(x)" if self.is_residual_normed else "x"
        return f"{both_notations(self.boundaries)}, residual {residual}"

    def advice(self, configured: Reading) -> str:
        """How to have a head read this way that is configured another way."""
        steps = []
        if self.boundaries != configured.boundaries:
            steps.append(f"Load it with taps={self.boundaries}")
        if self.is_residual_normed != configured.is_residual_normed:
            value = "true" if self.is_residual_normed else "false"
            steps.append(f"Set norm_before_residual to {value} in the head's config.json")
        return ". ".join(steps)


@dataclass(frozen=True)
class ProbeRow:
    """What one reading scored; the lead over the configured one is measured pair by pair."""

    reading: Reading
    agreement: float
    lead: float
    lead_error: float  # standard error of the lead

    @property
    def is_clearly_better(self) -> bool:
        """Better than the configured reading beyond chance and by an amount that matters."""
        return self.lead > MIN_LEAD and self.lead > MIN_ERRORS * self.lead_error


@dataclass(frozen=True)
class ProbeReport:
    """All readings, the configured one first."""

    rows: tuple[ProbeRow, ...]
    n_pairs: int

    @property
    def agreement(self) -> float:
        """Top-1 agreement as configured."""
        return self.rows[0].agreement

    @property
    def better(self) -> ProbeRow | None:
        """The best reading that is clearly better than the configured one."""
        clear = [row for row in self.rows[1:] if row.is_clearly_better]
        return max(clear, key=lambda row: row.agreement, default=None)

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to do about it; None for a head that is read rightly."""
        configured = self.rows[0]
        if self.better is not None:
            reading = self.better.reading
            return (
                f"the head agrees with its target on {configured.agreement:.2f} of {self.n_pairs} "
                f"tokens as configured ({configured.reading}), but on {self.better.agreement:.2f} "
                f"when read as {reading}. {reading.advice(configured.reading)}"
            )
        if configured.agreement < MIN_AGREEMENT:
            return (
                f"the head agrees with its target on only {configured.agreement:.2f} of "
                f"{self.n_pairs} tokens ({configured.reading}); below {MIN_AGREEMENT} it cannot "
                "pay for itself. Check that it was trained for this very target"
            )
        return None

    def table(self) -> str:
        """The readings as aligned text, the configured one marked."""
        lines = ["agreement     lead  error  reading"]
        for place, row in enumerate(self.rows):
            mark = "  (configured)" if place == 0 else ""
            numbers = f"{row.agreement:9.3f} {row.lead:+8.3f} {row.lead_error:6.3f}"
            lines.append(f"{numbers}  {row.reading}{mark}")
        return "\n".join(lines)


def probe_at_load(
    target: Decoder, head: Eagle3Head, mode: ProbeMode, encode: Encode | None = None
) -> ProbeReport | None:
    """Probe a head on the built-in text, or on the target's own when there is no tokenizer.

    "refuse" raises ProbeError on a problem, "warn" warns, "off" measures nothing.
    """
    if mode not in MODES:
        raise UnknownNameError("probe mode", mode, MODES)
    if mode == "off":
        return None
    texts = write_freely(target) if encode is None else read_built_in(encode, target)
    report = probe_head(target, head, texts)
    if report.problem is not None:
        message = f"{report.problem}.\n{report.table()}"
        if mode == "refuse":
            raise ProbeError(f"{message}\nTo go on anyway, set the probe to warn or off.")
        warnings.warn(message, ProbeWarning, stacklevel=2)
    return report


def probe_head(target: Decoder, head: Eagle3Head, texts: ProbeTexts) -> ProbeReport:
    """Run the target once, teacher-forced, and the head once for each reading."""
    readings = neighbours(head, target.geometry.n_layers)
    needed = tuple(sorted({b for reading in readings for b in reading.boundaries}))
    rows = whole_texts(texts.texts)
    every = torch.arange(rows.n_rows, device=rows.tokens.device)
    out = target.forward(rows, target.allocate_pool(rows.n_rows + 1), every, needed)
    follows = out.logits.argmax(-1)  # [rows], what the target says after each position
    hits = []
    for reading in readings:
        taps = out.taps[:, [needed.index(b) for b in reading.boundaries]]
        hits.append(_hits(_read_as(head, reading), texts, taps, follows))
    return ProbeReport(
        tuple(_row(reading, own, hits[0]) for reading, own in zip(readings, hits, strict=True)),
        n_pairs=hits[0].shape[0],
    )


def neighbours(head: Eagle3Head, n_target_layers: int) -> list[Reading]:
    """The configured reading first, then those next to it that exist in the target."""
    convention = head.summary.convention
    configured = Reading(convention.boundaries, convention.is_residual_normed)
    shifts = (0, -1, 1) if convention.uses_captures else (0,)
    out = [configured]
    for shift in shifts:
        moved = tuple(b + shift for b in configured.boundaries)
        if min(moved) < 0 or max(moved) > n_target_layers:
            continue
        for is_normed in (configured.is_residual_normed, not configured.is_residual_normed):
            reading = Reading(moved, is_normed)
            if reading != configured:
                out.append(reading)
    return out


def _read_as(head: Eagle3Head, reading: Reading) -> Eagle3Head:
    """The same weights read another way; nothing is copied."""
    is_normed = reading.is_residual_normed
    convention = replace(
        head.summary.convention, boundaries=reading.boundaries, is_residual_normed=is_normed
    )
    return replace(
        head,
        summary=replace(head.summary, convention=convention),
        first=replace(head.first, is_residual_normed=is_normed),
    )


def _hits(head: Eagle3Head, texts: ProbeTexts, taps: Tensor, follows: Tensor) -> Tensor:
    """[pairs] bool: the head's first choice is the target's, for pairs past the skipped ids.

    Position i's pair is (state of i, token i + 1); it guesses what the target says after i + 1.
    """
    lengths = [text.shape[0] for text in texts.texts]
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    pairs = [torch.arange(s, s + n - 1) for s, n in zip(starts, lengths, strict=False)]
    keep = torch.cat(pairs).to(follows.device)
    rows = whole_texts(tuple(text[1:] for text in texts.texts))
    out = head.extend(rows, taps[keep], head.allocate_pool(rows.n_rows + 1))
    guesses = head.to_target(out.logits.argmax(-1))
    counted = torch.cat([torch.arange(n - 1) >= texts.n_skipped for n in lengths])
    return (guesses == follows[keep + 1])[counted.to(follows.device)].cpu()


def _row(reading: Reading, hits: Tensor, configured: Tensor) -> ProbeRow:
    gain = hits.double() - configured.double()
    n = max(1, gain.shape[0])
    return ProbeRow(
        reading=reading,
        agreement=float(hits.double().mean()),
        lead=float(gain.mean()),
        lead_error=math.sqrt(float(gain.var(correction=0)) / n),
    )

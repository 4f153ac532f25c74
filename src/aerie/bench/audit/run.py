"""Runs the cells of an audit: every text, whole, against the plain text of its prompt and seed."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aerie.bench.audit.cells import OFF, SAMPLINGS, Cell, Plan
from aerie.bench.audit.engines import Engines
from aerie.bench.audit.rows import Row, Rows, TextKey, digest
from aerie.bench.audit.scenes import SCENES, Job, Played
from aerie.bench.comparison import policy_of, where_texts_part
from aerie.by_context import ByContext
from aerie.errors import UsageError
from aerie.requests.params import SamplingParams
from aerie.text.heldout import read_documents

LONGER = (1, 2, 4)  # documents are measured by the built-in pair's tokens, others may be larger


@dataclass(eq=False)
class Audit:
    """A plan on engines; rows tell what is done."""

    plan: Plan
    engines: Engines
    rows: Rows
    _prompts: dict[int, list[list[int]]] = field(default_factory=dict)  # by context

    @property
    def left(self) -> list[Cell]:
        """Cells of the plan that no row tells of."""
        return self.rows.left(self.plan)

    def run(self, tell: Callable[[Row], None], seconds: float = 0.0) -> None:
        """All cells that are left; none begins after so many seconds, where a limit is given."""
        begun = time.monotonic()
        for cell in self.left:
            if seconds and time.monotonic() - begun > seconds:
                return
            row = self.run_cell(cell)
            self.rows.add(row)
            tell(row)

    def run_cell(self, cell: Cell) -> dict[str, Any]:
        """One cell's row."""
        jobs = self._jobs(cell)
        self._require_plain(cell)
        core, start = self.engines.core(cell), time.perf_counter()
        played = SCENES[cell.scene].play(core, jobs, cell.batch)
        seconds = time.perf_counter() - start
        known = {n: self.rows.plain.get(TextKey.of(cell, n)) for n in played.texts}
        # The first plain text of a prompt is what all others of it are held against.
        first = {n: played.texts[n] for n, tokens in known.items() if tokens is None}
        parted = [job for job in jobs if known[job.number] not in (None, played.texts[job.number])]
        drafts = sum(own.num_drafts for own in played.statistics)
        accepted = sum(own.num_accepted_tokens for own in played.statistics)
        counted, met = SCENES[cell.scene].counted, played.met()
        return {
            "cell": asdict(cell),
            "seeds": [jobs[0].params.seed, jobs[-1].params.seed],
            "policy": policy_of(self.engines.policies[cell.policy]),
            "texts": len(jobs),
            "compared": len(jobs) - len(first),
            "differing": len(parted),
            "first_difference": self._difference(parted, known, played) if parted else None,
            "texts_sha256": digest(played.texts),
            "prompts_sha256": digest({job.number: job.prompt for job in jobs}),
            "met": met,
            "is_void": counted is not None and not met[counted],
            "acceptance_length": round(1 + accepted / drafts, 4) if drafts else None,
            "acceptance_by_context": ByContext.total(
                own.by_context for own in played.statistics
            ).lengths(),
            "seconds": round(seconds, 3),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "plain": first,
        }

    def _jobs(self, cell: Cell) -> list[Job]:
        return [
            Job(
                number,
                prompt,
                SamplingParams(
                    cell.new_tokens,
                    seed=self.plan.seed + number,
                    ignore_eos=True,
                    **SAMPLINGS[cell.sampling],
                ),
            )
            for number, prompt in enumerate(self._read(cell.context)[: cell.texts])
        ]

    def _read(self, context: int) -> list[list[int]]:
        """Prompts of held-out documents, enough for every cell."""
        if context not in self._prompts:
            n = max(cell.texts for cell in self.plan.cells())
            self._prompts[context] = read_exactly(self.engines.models.tokenizer.encode, context, n)
        return self._prompts[context]

    def _require_plain(self, cell: Cell) -> None:
        missing = [n for n in range(cell.texts) if TextKey.of(cell, n) not in self.rows.plain]
        if missing and cell.policy != OFF:
            raise UsageError(
                f"{cell.name}: nothing to compare {len(missing)} of {cell.texts} texts with: run"
                f" policy {OFF} with as many texts before it, into the same --record"
            )

    def _difference(
        self, parted: Sequence[Job], known: Mapping[int, Any], played: Played
    ) -> dict[str, Any]:
        """The earliest place at which texts of a cell part, by prompt."""
        job = parted[0]
        found = where_texts_part(
            self.engines.models.target,
            job.prompt,
            job.params,
            known[job.number],
            played.texts[job.number],
        )
        assert found is not None, "only texts that differ are asked about"
        decode = self.engines.models.tokenizer.decode
        words = {
            name: decode([token]) if token >= 0 else None
            for name, token in (("plain", found.plain), ("other", found.speculative))
        }
        return {
            "prompt": job.number,
            "seed": job.params.seed,
            "index": found.index,
            "plain": found.plain,
            "other": found.speculative,
            "words": words,
            "logit_gap": found.logit_gap,
        }


def read_exactly(
    encode: Callable[[str], Sequence[int]], context: int, n_prompts: int
) -> list[list[int]]:
    """So many held-out prompts of exactly so many tokens, by any tokenizer; always the same."""
    for factor in LONGER:
        documents = read_documents(factor * context, n_prompts)
        found = [list(encode(document.text)[:context]) for document in documents]
        if all(len(tokens) == context for tokens in found):
            return found
    raise UsageError(f"the held-out documents are too short for {n_prompts} prompts of {context}")

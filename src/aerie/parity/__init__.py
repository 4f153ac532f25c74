"""Parity: the same inputs through two backends, compared by each kernel's card."""

from aerie.parity.run import CaseResult, ParityReport, run_parity

__all__ = ["CaseResult", "ParityReport", "run_parity"]

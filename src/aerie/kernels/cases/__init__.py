"""Parity cases: realistic and adversarial inputs of every kernel, as named NumPy arrays."""

from aerie.kernels.cases.case import Case
from aerie.kernels.cases.suite import all_cases, cases_for

__all__ = ["Case", "all_cases", "cases_for"]

"""Drafting and verifying: trees, proposers, verdicts."""

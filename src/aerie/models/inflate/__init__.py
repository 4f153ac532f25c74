"""Inflation: a small pair embedded exactly into a production geometry."""

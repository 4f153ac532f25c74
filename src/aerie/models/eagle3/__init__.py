"""EAGLE-3 heads: read in every public dialect, converted, resolved and run."""

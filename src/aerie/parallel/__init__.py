"""Tensor parallelism: one target in several processes, one of which leads the others."""

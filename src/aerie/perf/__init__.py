"""Bytes, cycles and memory: what a design moves, from the cards, for any size and device."""

"""Simulation of the RTL: hosts that load memory, start a card and read it back."""

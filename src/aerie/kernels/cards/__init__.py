"""The cards: K1 to K13 by family, R1 onwards by part of the round."""

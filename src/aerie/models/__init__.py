"""Models: one decoder with a table of architectures, strict loading, hub ids."""

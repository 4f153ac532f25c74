"""Assembly: what `auto` stands for, and the parts of an engine wired in one place."""

"""What HTTP costs: the same completions over a server and straight from an engine."""

"""HTTP: the engine behind an OpenAI-compatible server."""

"""KV memory: pages, the index of known texts, the slots of every request."""

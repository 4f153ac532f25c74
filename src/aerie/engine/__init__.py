"""The engine: requests, memory, scheduling and the step."""

"""What a request asks for, what it is allowed, and what became of it."""

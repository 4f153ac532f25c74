"""The tests; a regular package, so that no other distribution's `tests` can stand in for it."""

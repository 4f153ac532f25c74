"""Tree attention over a paged KV pool: one contract, interchangeable implementations."""

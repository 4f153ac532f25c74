"""What rounds cost: tables of measured seconds, and those that are shipped."""

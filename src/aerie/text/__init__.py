"""Text: tokenizer, chat template, incremental detokenising, stop strings."""

"""Training of the built-in pair: corpus, tokenizer, target and EAGLE-3 head."""

"""`aerie bench gpu`: one contract, policies in turns on one engine, raw rows."""

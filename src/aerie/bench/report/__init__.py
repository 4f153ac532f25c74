"""`aerie report`: scorecard, manifest and every table of the documents, from raw data."""

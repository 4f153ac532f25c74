"""`aerie profile`: where time, bytes and joules go, and what each lever is worth."""

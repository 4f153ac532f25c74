"""`aerie gates`: floors, and the recorded data they are checked on."""

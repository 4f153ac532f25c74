"""`aerie bench round`: a captured round against its bytes, and that it loses nothing."""

"""Other harnesses: our records in lighteval's format, and its metric beside ours (imports lighteval)."""

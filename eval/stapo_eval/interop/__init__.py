"""Other harnesses: our records in lighteval's format; its metric and its tasks, which import lighteval."""

"""Are two forms the same answer? True, False, or None where that cannot be told."""

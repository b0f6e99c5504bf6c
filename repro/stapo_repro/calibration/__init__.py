"""Our scores of a public checkpoint beside its published ones, and what a gap between two scores is made of."""

"""The mask ablation: evidence, judged claims, tables."""

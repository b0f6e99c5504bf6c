"""Evaluation wing: generation, rule grading, judging, records."""

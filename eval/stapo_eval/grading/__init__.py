"""Grading by rule: the rules, presets, and a pool of processes that are killed at their limits."""

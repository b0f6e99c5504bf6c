"""Benchmarks of the training wing, side by side with what they are compared with."""

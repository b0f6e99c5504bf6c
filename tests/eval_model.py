"""The random model and the small benchmarks of the evaluation's tests: those of its bench."""

from stapo_eval.bench.tiny import BOXES, TEMPLATE, benchmarks, build

__all__ = ["BOXES", "TEMPLATE", "benchmarks", "build"]

"""Measurements of the evaluation's parts, each against the way things are usually done (`stapo-eval bench`)."""

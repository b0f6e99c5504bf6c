"""Scoring responses that exist already: the token log of a training, without a training (`stapo-train probe`)."""

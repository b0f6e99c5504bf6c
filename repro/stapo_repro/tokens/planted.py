"""The names that other rooms import today; they are in `masks`. To go when those imports have changed."""

from stapo_repro.tokens.masks import FULL, HIGH, METHODS, NAMES, RANDOM, S2T, Measured, Tokens, tokens_of, weights

__all__ = ["FULL", "HIGH", "METHODS", "NAMES", "RANDOM", "S2T", "Measured", "Tokens", "tokens_of", "weights"]

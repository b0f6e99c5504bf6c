"""The names that other rooms import today; they are in `masks`. To go when those imports have changed."""

from stapo_repro.tokens.masks import Interval, Share

__all__ = ["Interval", "Share"]

"""The names that other rooms import today; they are in `readers`. To go when those imports have changed."""

from stapo_repro.tokens.readers import FILE, LabelRecord

__all__ = ["FILE", "LabelRecord"]

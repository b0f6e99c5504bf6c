"""The names that other rooms import today; they are in `log`. To go when those imports have changed."""

from stapo_repro.tokens.log import LoggedRun, Vocabulary, batch_keys, load, marked

__all__ = ["LoggedRun", "Vocabulary", "batch_keys", "load", "marked"]

"""The paper's statements about single tokens, written out as functions and checked by number (docs/theory.md)."""

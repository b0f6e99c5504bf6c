"""Commands of `stapo-repro` with many options; `cli` names them all."""

"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences.

log       the log with the run's record and metrics beside it, and its ids as text
numbers   quadrants of the paper's taxonomy, silenced tokens and thresholds by step, words, single cases
masks     what a mask silences, against the words that the miniature's base model was taught; shares with intervals
mismatch  are these tokens those on which sampler and trainer disagree?
readers   what two readers said of a sample of rare tokens
tables    results/tables/tokens.md
"""

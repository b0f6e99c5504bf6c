"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences.

logged_run  the log with the run's record and metrics beside it, and its ids as text
numbers     quadrants of the paper's taxonomy, silenced tokens and thresholds by step, words, single cases
figures     all figures of a log; words: the clouds
mismatch    are these tokens those on which sampler and trainer disagree? (_page)
shares      shares of tokens with intervals over prompts or mini-batches
page        one HTML page, with the figures and all numbers as files
example     one silenced token in its sentence, for the README
planted     what a mask silences, against the words that the miniature's base model was taught (_page, _figure)
"""

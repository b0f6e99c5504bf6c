"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences.

logged_run  the log with the run's record and metrics beside it, of one range of steps
vocabulary  ids as text that people may read and that a font can draw
quadrants   tokens of correct responses by probability and entropy: the paper's taxonomy with this run's numbers
silencing   silenced tokens by step, held against the run's own metrics; the entropy thresholds
cases       single tokens in their context, with what the model would rather have said
words       which tokens are silenced and kept, and how often: clouds and bars
figures     quadrants, silenced share, threshold; density: probability and entropy
page        one HTML page
analysis    all of it, as files
example     one silenced token in its sentence, for the README
planted     what a mask silences, against the words that the miniature's base model was taught (_runs, _render)
"""

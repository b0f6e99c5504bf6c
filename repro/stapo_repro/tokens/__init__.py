"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences.

material   reading: the log, the run's record and metrics beside it, one range of steps
texts      ids as text: what people may read, and what a font can draw
quadrants  tokens of correct responses by probability and entropy: counts, gradient norms, entropy change
silencing  silenced tokens by step, held against the run's own metrics; the entropy thresholds
ranking    which tokens are silenced and kept, and how often
labelling  a sample for manual labels, and the labels read back
taxonomy   the paper's table with this run's numbers
cases      single tokens with their context
figures    quadrants, silenced share, threshold; density: probability and entropy; clouds: the words
tables     Markdown, CSV and LaTeX
page       one HTML page
build      all of it, as files
planted    what a mask silences, against the words that the miniature's base model was taught
"""

"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences.

planted    what a mask silences, against the words that the miniature's base model was taught
"""

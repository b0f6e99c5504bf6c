"""`stapo-repro tokens`: what a token log says of the tokens that S2T silences."""

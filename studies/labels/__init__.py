"""Are the rare tokens that S2T silences in natural text harmful?"""

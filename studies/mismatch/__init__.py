"""Are S2T's tokens those on which sampler and trainer disagree?"""

"""Is S2T more accurate than a random mask and than no mask, where the reward is partly luck?"""

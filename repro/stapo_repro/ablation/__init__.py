"""The mask ablation.

by_seed  what the records say, by training seed and problem
claims   the paper's qualitative claims, and the rule that judges them
build    the ablation as one value; render writes it
"""

"""Figures from records alone. `paper` has the list of all of them, and of the paper's own.

style    the look, and saving       groups   records by group, and the quantities that several figures show
curves   from metrics.jsonl         compare  from evaluations
tokens   from token logs
"""

"""The judge: a verifier model that is asked about answers which the rule may have got wrong.

`prompt` is what it sees and how its reply is read, `asking` the asking itself, on record as replies come, and what its
word does to a score; `rejudge` judges a run folder afterwards.
"""

"""The judge: a verifier model that is asked about answers which the rule may have got wrong.

`published` finds the published prompt, `prompt` fills it in and reads the reply, `asking` is the asking itself, on
record as replies come, and what the judge's word does to a score.
"""

"""Does the suite's grader give the scores that others published, from their own responses?"""

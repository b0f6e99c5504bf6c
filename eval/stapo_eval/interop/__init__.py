"""Other harnesses: our records in lighteval's format, and its metric beside ours.

finished        a finished run, read back from its folder with the problems that it was asked
lighteval_log   lighteval's results JSON and details parquet
lighteval_grade lighteval's metric on a file of responses (imports lighteval; an environment of its own)
"""

"""Other harnesses: our records in their formats, and the benchmarks as lighteval tasks.

finished        a finished run, read back from its folder with the problems that it was asked
lighteval_log   lighteval's results JSON and details parquet
lighteval_tasks the custom-tasks module (imports lighteval; an environment of its own)
lighteval_main  lighteval's command line with these tasks alone, which works offline
lighteval_grade lighteval's metric on a file of responses

Only the last three import another harness.
"""

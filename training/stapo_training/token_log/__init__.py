"""The token log's rows and its writer; its schema and reader are in stapo_results.token_log."""

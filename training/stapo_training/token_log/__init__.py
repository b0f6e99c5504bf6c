"""The token log's rows and its writer; its schema and reader stand in stapo_results.token_log."""

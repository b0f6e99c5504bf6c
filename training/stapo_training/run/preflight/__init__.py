"""What can be known before a run starts anything expensive: `checks` collects every refusal, `dry_run` prints it."""

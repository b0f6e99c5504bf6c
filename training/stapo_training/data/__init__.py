"""Training data: a published prompt set as veRL's Parquet files, and a report of what it shares with benchmarks."""

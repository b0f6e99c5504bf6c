"""Studies read what the product records, and make claims. Nobody imports them. Run them from the clone."""

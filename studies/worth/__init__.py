"""What a token is worth: the share of right answers after it, minus the share before it."""

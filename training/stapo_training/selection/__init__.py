"""Which tokens train: statistics, selectors and objectives (pure); a user's selector is loaded here."""

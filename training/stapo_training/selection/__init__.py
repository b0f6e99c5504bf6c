"""Which tokens train: statistics, selectors, objectives (pure), and how a guessed mask is redone."""

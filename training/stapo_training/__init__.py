"""Training wing: selectors, methods and the launch of veRL."""

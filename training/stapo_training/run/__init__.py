"""One training from command line to last checkpoint: configuration, preflight, launch, watch."""

"""From the command line to a training that runs: configuration, preflight, launch."""

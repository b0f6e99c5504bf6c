"""From a request to a finished run: stages that are commands of the wings, in order, resumable."""

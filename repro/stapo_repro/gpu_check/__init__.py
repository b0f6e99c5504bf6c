"""`stapo-repro gpu-check`: the suite's own commands on this machine's GPU, small, and a record of what came of them."""

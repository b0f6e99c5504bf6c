"""The testbed: worlds in which the worth of every rare token is known, and the paper's claims judged in them."""

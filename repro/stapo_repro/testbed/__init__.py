"""The testbed: worlds in which the worth of every rare token is known, and the paper's claims judged in them.

plan      worlds, arms and seeds: what is trained
counts    the tokens that each mask silences, by class, of one training: a record small enough to commit
evidence  everything that was read, by world, arm and seed; and the quantities that are formed of it
claims    the claims as data, the rule that judges them, what they could have found
build     the testbed as one value; render writes it
standing  where a method of one's own stands beside the committed arms
"""

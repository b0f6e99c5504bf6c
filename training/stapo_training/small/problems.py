"""Problems in English sentences: sums, word problems of two steps, conversions of units. All wordings are our own.

    sum     What is 17 plus 25?
    words   Mira has 8 pears. Mira gets 5 more and gives 3 away. How many pears does Mira have now?
    units   How many minutes are in 3 hours?

Training and benchmarks share neither numbers nor wordings: `is_held_out` splits the numbers by a hash, without regard to
their order, and the wordings of the two are listed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stapo_results.seeds import derive_seed

HELD_OUT = 6  # of so many number tuples, one is for the benchmarks

SUMS = {
    False: ("What is {} plus {}?", "Add {} and {}.", "Find the sum of {} and {}.", "How much is {} and {} together?"),
    True: ("Calculate {} + {}.", "What do you get when you add {} to {}?"),
}
"""Wordings of a sum, of the training (False) and of the benchmarks (True)."""


@dataclass(frozen=True)
class Story:
    """A word problem. Its fields are {a}, {b}, {c}, and {name} and {things} that say nothing of the answer."""

    text: str
    answer: Callable[[int, int, int], int]


STORIES = {
    False: (
        Story(
            "{name} has {a} {things}. {name} gets {b} more and gives {c} away. How many {things} does {name} have now?",
            lambda a, b, c: a + b - c,
        ),
        Story(
            "On a shelf there are {a} {things}. {name} takes {b} of them and puts {c} back. "
            "How many {things} are on the shelf now?",
            lambda a, b, c: a - b + c,
        ),
        Story(
            "{name} finds {a} {things} on Monday, {b} on Tuesday and {c} on Wednesday. "
            "How many {things} did {name} find in all?",
            lambda a, b, c: a + b + c,
        ),
        Story(
            "{name} fills {a} bags with {b} {things} each and has {c} {things} left over. "
            "How many {things} are there in all?",
            lambda a, b, c: a * b + c,
        ),
    ),
    True: (
        Story(
            "A basket holds {a} {things}. {name} adds {b} {things} and later sells {c}. "
            "How many {things} are left in the basket?",
            lambda a, b, c: a + b - c,
        ),
        Story(
            "{name} had {a} {things}, lost {b} and then bought {c}. How many {things} does {name} own?",
            lambda a, b, c: a - b + c,
        ),
        Story(
            "There are {a} rows of {b} {things} and {c} single {things}. How many {things} are there?",
            lambda a, b, c: a * b + c,
        ),
    ),
}
NAMES = {False: ("Mira", "Oskar", "Tilda", "Jonas", "Selma", "Ravi"), True: ("Nela", "Bruno", "Ines")}
THINGS = {False: ("pears", "marbles", "stamps", "buttons", "shells", "pencils"), True: ("plums", "beads", "cards")}

UNITS = {
    ("hours", "minutes"): 60,
    ("minutes", "seconds"): 60,
    ("days", "hours"): 24,
    ("weeks", "days"): 7,
    ("years", "months"): 12,
    ("metres", "centimetres"): 100,
    ("centimetres", "millimetres"): 10,
    ("kilometres", "metres"): 1000,
    ("kilograms", "grams"): 1000,
    ("feet", "inches"): 12,
    ("yards", "feet"): 3,
}
"""(large unit, small unit): how many small ones are one large one."""
CONVERSIONS = {
    False: ("How many {small} are in {n} {large}?", "Convert {n} {large} to {small}.", "{n} {large} are how many {small}?"),
    True: ("Write {n} {large} in {small}.", "Express {n} {large} as a number of {small}."),
}

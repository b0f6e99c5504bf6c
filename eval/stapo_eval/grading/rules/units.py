"""Units that stand behind a number: which quantity, and how large. Unknown words are units of their own ("apples")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from stapo_eval.grading.rules.unit_table import SIZES, known

# words that change what the number says; behind a number they are no unit
QUALIFIERS = {
    "or", "more", "less", "least", "most", "not", "mod", "modulo", "than", "if", "when", "except", "only", "no", "none",
    "never", "fewer", "greater", "smaller", "plus", "minus", "times", "and", "false", "wrong", "cannot", "half",
    "negative", "positive", "squared", "cubed", "doubled", "tripled", "halved", "double", "triple", "twice",
    "factorial", "impossible", "undefined", "invalid", "infinite", "infinity", "incorrect", "nor", "neither", "but",
    "without", "excluding", "above", "below", "over", "under", "inclusive", "exclusive", "reciprocal", "inverse",
    "repeating", "recurring", "root", "power", "ones", "twos", "threes", "fours", "fives", "sixes", "sevens", "eights",
    "nines", "tens", "hundreds", "thousands", "millions", "billions", "trillions", "dozens", "zillion",
}  # fmt: skip
# parts of one: "5 tenths" is a fraction
PARTS = {
    "halve", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
    "thirteenth", "fourteenth", "fifteenth", "sixteenth", "twentieth", "thirtieth", "fiftieth", "hundredth",
    "thousandth", "millionth", "billionth",
}  # fmt: skip
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_FILLERS = {"of", "the", "a", "an", "approximately", "about", "exactly", "total", "in"}
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_SQUARED = re.compile(r"(?<![A-Za-z])([A-Za-z]{1,20}) (squared|cubed)(?![A-Za-z])")
_PART = re.compile(r"([^\W\d_]+|\$)(?:\^\{?([+-]?\d)\}?)?|/")


@dataclass(frozen=True)
class Unit:
    """size in the base units of `dimensions`, which are (quantity, power) pairs.

    words: those that the table of units does not have, in their order.
    """

    size: Fraction
    dimensions: frozenset[tuple[str, int]]
    words: tuple[str, ...] = ()

    @property
    def generic(self) -> bool:
        """ "units" says only that there is one."""
        return {name for name, _ in self.dimensions} <= {"unit"}

    def agrees(self, other: Unit) -> bool:
        """Whether both measure the same, in the same words where the words are no units."""
        return self.dimensions == other.dimensions and self.words == other.words


def _singular(word: str) -> str:
    if name := known(word):
        return name
    if len(word) <= 3 and not word.islower():
        return word  # a symbol: A is not a
    lower = word.lower()
    for ending, to in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", "")):
        if lower.endswith(ending) and len(lower) > len(ending) + 1 and not lower.endswith("ss"):
            lower = lower[: -len(ending)] + to
            break
    return known(lower) or lower


def _says_more(word: str) -> bool:
    lower = word.lower()
    return lower in QUALIFIERS or lower in PARTS or lower.removesuffix("s") in PARTS


def _squared(m: re.Match[str]) -> str:
    """ "seconds squared" as a power; "5 squared" stays as it is."""
    return f"{m[1]}^{2 if m[2] == 'squared' else 3}" if _singular(m[1]) in SIZES else m[0]


def parse_unit(text: str) -> Unit | None:
    """The unit that words and powers spell: "cm^2", "square inches", "km/h", "miles per hour", "apples".

    None where the words say more than a unit ("or more", "mod 7").
    """
    words = _HYPHEN.sub(" ", text).replace("*", " ").strip()
    words = _SQUARED.sub(_squared, words)
    if any(map(_says_more, re.findall(r"[^\W\d_]+", words))):
        return None
    sign, power_of_next = 1, 1
    size, dimensions, unknown = Fraction(1), {}, []
    for m in _PART.finditer(words):
        word = m[1]
        if word is None or word.lower() == "per":
            sign = -1
            continue
        if word.lower() in ("square", "sq", "cubic", "cu"):
            power_of_next = 2 if word.lower() in ("square", "sq") else 3
            continue
        if word.lower() in _FILLERS and word not in ("in", "A"):
            continue
        power = sign * int(m[2] or power_of_next)
        power_of_next = 1
        for i, name in enumerate(_singular(word).split("/")):
            p = power if i == 0 else -power
            own, quantities = SIZES.get(name, (Fraction(1), {name: 1}))
            if name not in SIZES:
                unknown.append(name)
            size *= own**p
            for quantity, times in quantities.items():
                dimensions[quantity] = dimensions.get(quantity, 0) + p * times
    if not dimensions:
        return None
    return Unit(size, frozenset((q, p) for q, p in dimensions.items() if p), tuple(unknown))

"""Units that stand behind a number: which quantity, and how large. Unknown words are units of their own ("apples")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# quantity -> unit -> size in that quantity's first unit
_TABLE: dict[str, dict[str, str]] = {
    "length": {"m": "1", "cm": "1/100", "mm": "1/1000", "km": "1000", "nm": "1/1000000000", "inch": "127/5000",
               "foot": "381/1250", "yard": "1143/1250", "mile": "201168/125"},
    "time": {"s": "1", "ms": "1/1000", "minute": "60", "hour": "3600", "day": "86400", "week": "604800"},
    "mass": {"g": "1", "mg": "1/1000", "kg": "1000", "pound": "45359237/100000", "ounce": "45359237/1600000"},
    "volume": {"liter": "1", "ml": "1/1000"},
    "money": {"dollar": "1", "cent": "1/100"},
    "energy": {"J": "1", "kJ": "1000"},
    "frequency": {"Hz": "1", "kHz": "1000", "MHz": "1000000", "GHz": "1000000000"},
    "angle": {"degree": "1"},
}  # fmt: skip
_NAMES = {
    "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "millimeter": "mm", "millimetre": "mm",
    "kilometer": "km", "kilometre": "km", "nanometer": "nm", "in": "inch", "inches": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "sec": "s", "second": "s", "min": "minute", "mins": "minute",
    "hr": "hour", "hrs": "hour", "h": "hour", "gram": "g", "kilogram": "kg", "milligram": "mg", "lb": "pound",
    "lbs": "pound", "oz": "ounce", "litre": "liter", "L": "liter", "mL": "ml", "milliliter": "ml", "usd": "dollar",
    "USD": "dollar", "buck": "dollar", "deg": "degree", "joule": "J", "hertz": "Hz", "yr": "year", "yrs": "year",
    "u": "unit", "ms": "ms", "mph": "mile/hour", "kmh": "km/hour", "kph": "km/hour", "secs": "s", "people": "person",
}  # fmt: skip
_SIZES = {name: (quantity, Fraction(size)) for quantity, units in _TABLE.items() for name, size in units.items()}
# words that change what the number says; behind a number they are no unit
QUALIFIERS = {
    "or", "more", "less", "least", "most", "not", "mod", "modulo", "than", "if", "when", "except", "only", "no", "none",
    "never", "fewer", "greater", "smaller", "plus", "minus", "times", "and", "false", "wrong", "cannot", "half",
}  # fmt: skip
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_FILLERS = {
    "of",
    "the",
    "a",
    "an",
    "approximately",
    "about",
    "exactly",
    "total",
    "square",
    "sq",
    "cubic",
    "cu",
    "per",
    "in",
}
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_PART = re.compile(r"([^\W\d_]+|\$)(?:\^\{?([+-]?\d)\}?)?|/")


@dataclass(frozen=True)
class Unit:
    """size in the base units of `dimensions`, which are (quantity, power) pairs."""

    size: Fraction
    dimensions: frozenset[tuple[str, int]]

    @property
    def generic(self) -> bool:
        """ "units" says only that there is one."""
        return {name for name, _ in self.dimensions} <= {"unit"}


def _singular(word: str) -> str:
    if word in _NAMES or word in _SIZES:
        return _NAMES.get(word, word)
    lower = word.lower()
    for ending, to in (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", "")):
        if lower.endswith(ending) and len(lower) > len(ending) + 1 and not lower.endswith("ss"):
            lower = lower[: -len(ending)] + to
            break
    return _NAMES.get(lower, lower)


def parse_unit(text: str) -> Unit | None:
    """The unit that words and powers spell: "cm^2", "square inches", "km/h", "miles per hour", "apples".

    None where the words say more than a unit ("or more", "mod 7").
    """
    words = _HYPHEN.sub(" ", text).replace("*", " ").strip()
    if any(w.lower() in QUALIFIERS for w in re.findall(r"[^\W\d_]+", words)):
        return None
    sign, power_of_next = 1, 1
    size, dimensions = Fraction(1), {}
    for m in _PART.finditer(words):
        word = m[1]
        if word is None or word.lower() == "per":
            sign = -1
            continue
        if word.lower() in ("square", "sq", "cubic", "cu"):
            power_of_next = 2 if word.lower() in ("square", "sq") else 3
            continue
        if word.lower() in _FILLERS and word != "in":
            continue
        power = sign * int(m[2] or power_of_next)
        power_of_next = 1
        for i, name in enumerate(_singular(word).split("/")):
            p = power if i == 0 else -power
            quantity, own = _SIZES.get(name, (name, Fraction(1)))
            size *= own**p
            dimensions[quantity] = dimensions.get(quantity, 0) + p
    return Unit(size, frozenset((q, p) for q, p in dimensions.items() if p)) if dimensions else None

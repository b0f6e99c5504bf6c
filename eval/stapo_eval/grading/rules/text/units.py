"""Units that stand behind a number: which quantity, and how large.

The table holds the units that convert into each other; symbols are read with their case, 1 mW is not 1 MW. Words that
it does not hold are units of their own ("apples").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from stapo_eval.grading.rules.text.vocabulary import pairs, words

Dimensions = dict[str, int]
Size = tuple[Fraction, Dimensions]

# a prefix goes with each of these: symbol, full name, size and dimensions in metre, gram, second, ampere, kelvin, mole
_SI: tuple[tuple[str, tuple[str, ...], str, Dimensions], ...] = (
    ("m", ("meter", "metre"), "1", {"length": 1}),
    ("g", ("gram", "gramme"), "1", {"mass": 1}),
    ("s", ("second",), "1", {"time": 1}),
    ("A", ("ampere", "amp"), "1", {"current": 1}),
    ("K", ("kelvin",), "1", {"temperature": 1}),
    ("mol", ("mole",), "1", {"amount": 1}),
    ("Hz", ("hertz",), "1", {"time": -1}),
    ("N", ("newton",), "1000", {"mass": 1, "length": 1, "time": -2}),
    ("J", ("joule",), "1000", {"mass": 1, "length": 2, "time": -2}),
    ("eV", ("electronvolt",), "1602176634/10000000000000000000000000", {"mass": 1, "length": 2, "time": -2}),
    ("W", ("watt",), "1000", {"mass": 1, "length": 2, "time": -3}),
    ("Pa", ("pascal",), "1000", {"mass": 1, "length": -1, "time": -2}),
    ("C", ("coulomb",), "1", {"current": 1, "time": 1}),
    ("V", ("volt",), "1000", {"mass": 1, "length": 2, "time": -3, "current": -1}),
    ("Omega", ("ohm",), "1000", {"mass": 1, "length": 2, "time": -3, "current": -2}),
    ("F", ("farad",), "1/1000", {"mass": -1, "length": -2, "time": 4, "current": 2}),
    ("T", ("tesla",), "1000", {"mass": 1, "time": -2, "current": -1}),
    ("Wb", ("weber",), "1000", {"mass": 1, "length": 2, "time": -2, "current": -1}),
    ("H", ("henry",), "1000", {"mass": 1, "length": 2, "time": -2, "current": -2}),
    ("L", ("liter", "litre"), "1/1000", {"length": 3}),
    ("l", (), "1/1000", {"length": 3}),
)
_PREFIXES = (
    ("", "", 0), ("f", "femto", -15), ("p", "pico", -12), ("n", "nano", -9), ("\u03bc", "micro", -6),
    ("m", "milli", -3), ("c", "centi", -2), ("d", "deci", -1), ("k", "kilo", 3), ("M", "mega", 6), ("G", "giga", 9),
    ("T", "tera", 12), ("P", "peta", 15),
)  # fmt: skip
_OTHERS = {
    "length": {"inch": "127/5000", "foot": "381/1250", "yard": "1143/1250", "mile": "201168/125"},
    "time": {"minute": "60", "hour": "3600", "day": "86400", "week": "604800"},
    "mass": {"pound": "45359237/100000", "ounce": "45359237/1600000"},
    "money": {"dollar": "1", "cent": "1/100"},
    "angle": {"degree": "1"},
}
NAMES = pairs("""
    in:inch inches:inch ft:foot feet:foot yd:yard mi:mile sec:s secs:s min:minute mins:minute hr:hour hrs:hour h:hour
    yr:year yrs:year lb:pound lbs:pound oz:ounce usd:dollar USD:dollar buck:dollar deg:degree u:unit mph:mile/hour
    kmh:km/hour kph:km/hour people:person Kg:kg AM:am PM:pm Pm:pm pm am
""")
# words that change what the number says; behind a number they are no unit
QUALIFIERS = words("""
    or more less least most not mod modulo than if when except only no none never fewer greater smaller plus minus times
    and false wrong cannot half negative positive squared cubed doubled tripled halved double triple twice factorial
    impossible undefined invalid infinite infinity incorrect nor neither but without excluding above below over under
    inclusive exclusive reciprocal inverse repeating recurring root power ones twos threes fours fives sixes sevens
    eights nines tens hundreds thousands millions billions trillions dozens zillion
""")
# parts of one: "5 tenths" is a fraction
PARTS = words("""
    halve third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
    twentieth thirtieth fiftieth hundredth thousandth millionth billionth
""")
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_FILLERS = words("of the a an approximately about exactly total in")


def _sizes() -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for prefix, long_prefix, exponent in _PREFIXES:
        for symbol, names, size, dimensions in _SI:
            value = (Fraction(size) * Fraction(10) ** exponent, dimensions)
            sizes |= dict.fromkeys([prefix + symbol, *(long_prefix + name for name in names)], value)
    for quantity, units in _OTHERS.items():
        sizes |= {name: (Fraction(size), {quantity: 1}) for name, size in units.items()}
    return {name: size for name, size in sizes.items() if name not in NAMES}  # 5 pm is a time of day


SIZES = _sizes()
_BY_LOWER: dict[str, set[str]] = {}
for _name in [*SIZES, *NAMES]:
    _BY_LOWER.setdefault(_name.lower(), set()).add(_name)


def known(word: str) -> str | None:
    """The name in the table of a word as it is written, or in another case where that is no other unit (KM, Kg)."""
    if word in NAMES or word in SIZES:
        return NAMES.get(word, word)
    if len(word) < 2 or any(word[:i] in SIZES and word[i:] in SIZES for i in range(1, min(len(word), 8))):
        return None  # Nm is no nm
    others = [name for name in _BY_LOWER.get(word.lower(), set()) if name != word]
    return NAMES.get(others[0], others[0]) if len(others) == 1 and others[0].islower() else None


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

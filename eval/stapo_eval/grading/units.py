"""Units behind a number: which quantity, and how large.

The table holds the units that convert into each other; symbols are read with their case, 1 mW is not 1 MW. Words that
it does not hold are units of their own ("apples"). pint has more, and takes counted things for some (cats, circles).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

Dimensions = dict[str, int]

# a prefix goes with each of these: symbol and names, size, dimensions in metre, gram, second, ampere, kelvin, mole
_SI: tuple[tuple[str, str, Dimensions], ...] = (
    ("m meter metre", "1", {"length": 1}),
    ("g gram gramme", "1", {"mass": 1}),
    ("s second", "1", {"time": 1}),
    ("A ampere amp", "1", {"current": 1}),
    ("K kelvin", "1", {"temperature": 1}),
    ("mol mole", "1", {"amount": 1}),
    ("Hz hertz", "1", {"time": -1}),
    ("N newton", "1000", {"mass": 1, "length": 1, "time": -2}),
    ("J joule", "1000", {"mass": 1, "length": 2, "time": -2}),
    ("eV electronvolt", "1602176634e-25", {"mass": 1, "length": 2, "time": -2}),
    ("W watt", "1000", {"mass": 1, "length": 2, "time": -3}),
    ("Pa pascal", "1000", {"mass": 1, "length": -1, "time": -2}),
    ("C coulomb", "1", {"current": 1, "time": 1}),
    ("V volt", "1000", {"mass": 1, "length": 2, "time": -3, "current": -1}),
    ("Omega ohm", "1000", {"mass": 1, "length": 2, "time": -3, "current": -2}),
    ("F farad", "1/1000", {"mass": -1, "length": -2, "time": 4, "current": 2}),
    ("T tesla", "1000", {"mass": 1, "time": -2, "current": -1}),
    ("H henry", "1000", {"mass": 1, "length": 2, "time": -2, "current": -2}),
    ("L liter litre l", "1/1000", {"length": 3}),
)
_PREFIXES = {
    "": "", "f": "femto", "p": "pico", "n": "nano", "\u03bc": "micro", "m": "milli", "c": "centi", "d": "deci",
    "k": "kilo", "M": "mega", "G": "giga", "T": "tera",
}  # fmt: skip
_EXPONENTS = (0, -15, -12, -9, -6, -3, -2, -1, 3, 6, 9, 12)
_OTHERS = {
    "length": {"\u00c5": "1e-10", "inch": "127/5000", "foot": "381/1250", "yard": "1143/1250", "mile": "201168/125"},
    "time": {"minute": "60", "hour": "3600", "day": "86400", "week": "604800"},
    "mass": {"pound": "45359237/100000", "ounce": "45359237/1600000"},
    "money": {"dollar": "1", "cent": "1/100"},
    "angle": {"degree": "1"},
}
_ALSO = """
    in:inch inches:inch ft:foot feet:foot yd:yard mi:mile sec:s secs:s min:minute mins:minute hr:hour hrs:hour h:hour
    yr:year yrs:year lb:pound lbs:pound oz:ounce usd:dollar USD:dollar buck:dollar deg:degree u:unit mph:mile/hour
    kmh:km/hour kph:km/hour people:person Kg:kg AM:am PM:pm Pm:pm pm am angstrom:\u00c5
"""
_NAMES = {name: to or name for name, _, to in (pair.partition(":") for pair in _ALSO.split())}
SCALES = {
    "dozen": 12,
    "k": 1000,
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_SAYING_MORE = """
    or more less least most not mod modulo than if when except only no none never fewer greater smaller plus minus times
    for where whenever unless otherwise provided
    hundred thousand million billion trillion dozen quadrillion quintillion lakh crore ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    fails untrue violated
    and false wrong cannot half negative positive squared cubed doubled tripled halved double triple twice factorial
    impossible undefined invalid infinite infinity incorrect nor neither but without excluding above below over under
    inclusive exclusive reciprocal inverse repeating recurring root power ones twos threes fours fives sixes sevens
    eights nines tens hundreds thousands millions billions trillions dozens zillion halve third fourth fifth sixth
    seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth twentieth thirtieth fiftieth
    hundredth thousandth millionth billionth halves thirds fourths fifths sixths sevenths eighths ninths tenths
    twentieths hundredths thousandths millionths billionths
"""
QUALIFIERS = frozenset(_SAYING_MORE.split())
"""Words that change what the number says; behind a number they are no unit."""
_FILLERS = frozenset(("of", "the", "a", "an", "approximately", "about", "exactly", "total", "in"))


def _sizes() -> dict[str, tuple[Fraction, Dimensions]]:
    sizes = {n: (Fraction(size), {quantity: 1}) for quantity, units in _OTHERS.items() for n, size in units.items()}
    for (symbol, word), exponent in zip(_PREFIXES.items(), _EXPONENTS, strict=True):
        for names, size, dimensions in _SI:
            value = (Fraction(size) * Fraction(10) ** exponent, dimensions)
            first, *others = names.split()
            sizes |= dict.fromkeys([symbol + first, *((word if len(n) > 1 else symbol) + n for n in others)], value)
    return {name: size for name, size in sizes.items() if name not in _NAMES}  # 5 pm is a time of day


_SIZES = _sizes()
_BY_LOWER: dict[str, set[str]] = {}
for _name in [*_SIZES, *_NAMES]:
    _BY_LOWER.setdefault(_name.lower(), set()).add(_name)
_PART = re.compile(r"([^\W\d_]+|\$)(?:\^([+-]?\d)|\s(squared|cubed)(?![a-z]))?|/")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", ""))


@dataclass(frozen=True)
class Unit:
    """size in the base units of `dimensions`, which are (quantity, power) pairs.

    words: those that the table of units does not have, in their order.
    """

    size: Fraction
    dimensions: frozenset[tuple[str, int]]
    words: tuple[str, ...] = ()

    def agrees(self, other: Unit) -> bool:
        """Whether both measure the same, in the same words where the words are no units; "units" is any unit."""
        return self.is_any or other.is_any or (self.dimensions == other.dimensions and self.words == other.words)

    @property
    def is_any(self) -> bool:
        """Whether it is the word "units", which is any unit, of size 1."""
        return {name for name, _ in self.dimensions} == {"unit"}


def _known(word: str) -> str | None:
    """The name in the table of a word as it is written, or in another case where that is no other unit (KM, Kg)."""
    if word in _NAMES or word in _SIZES:
        return _NAMES.get(word, word)
    if len(word) < 2 or any(word[:i] in _SIZES and word[i:] in _SIZES for i in range(1, min(len(word), 8))):
        return None  # Nm is no nm
    others = [name for name in _BY_LOWER.get(word.lower(), set()) if name != word]
    return _NAMES.get(others[0], others[0]) if len(others) == 1 and others[0].islower() else None


def _singular(word: str) -> str:
    if (name := _known(word)) or (len(word) <= 3 and not word.islower()):
        return name or word  # a symbol: A is not a
    lower = word.lower()
    for ending, to in _ENDINGS:
        if lower.endswith(ending) and len(lower) > len(ending) + 1 and not lower.endswith("ss"):
            lower = lower[: -len(ending)] + to
            break
    return _known(lower) or lower


def parse_unit(text: str) -> Unit | None:
    """The unit that words and powers spell: "cm^2", "square inches", "km/h", "miles per hour", "apples".

    None where the words say more than a unit ("or more", "mod 7").
    """
    sign, power_of_next = 1, 1
    size, dimensions, unknown = Fraction(1), {}, []
    for m in _PART.finditer(re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", text)):
        word = m[1]
        if word is None or word.lower() == "per":
            sign = -1
        elif word.lower() in ("square", "sq", "cubic", "cu"):
            power_of_next = _POWERS[word.lower()]
        elif word.lower() in QUALIFIERS or (m[3] and _singular(word) not in _SIZES):
            return None
        elif word.lower() not in _FILLERS or word in ("in", "A"):
            power = sign * int(m[2] or _POWERS.get(m[3], power_of_next))
            power_of_next = 1
            for i, name in enumerate(_singular(word).split("/")):
                unit_size, quantities = _SIZES.get(name, (Fraction(1), {name: 1}))
                unknown += [name] if name not in _SIZES else []
                size *= unit_size ** (power if i == 0 else -power)
                for quantity, times in quantities.items():
                    dimensions[quantity] = dimensions.get(quantity, 0) + (power if i == 0 else -power) * times
    used = frozenset((q, p) for q, p in dimensions.items() if p)
    return Unit(size, used, tuple(unknown)) if dimensions else None

"""The units that convert into each other. Symbols are read with their case: 1 mW is not 1 MW."""

from __future__ import annotations

from fractions import Fraction

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
NAMES = {
    "in": "inch", "inches": "inch", "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "sec": "s", "secs": "s",
    "min": "minute", "mins": "minute", "hr": "hour", "hrs": "hour", "h": "hour", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "usd": "dollar", "USD": "dollar", "buck": "dollar", "deg": "degree", "yr": "year", "yrs": "year",
    "u": "unit", "mph": "mile/hour", "kmh": "km/hour", "kph": "km/hour", "people": "person", "AM": "am", "PM": "pm",
    "Kg": "kg", "Pm": "pm", "pm": "pm", "am": "am",
}  # fmt: skip


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

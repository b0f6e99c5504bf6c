"""Is one value another? A number or formula with what is behind it: per cent, degrees, a unit, words."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from stapo_eval.grading import library
from stapo_eval.grading.text import AND, key, marked, number
from stapo_eval.grading.units import SCALES, Unit, parse_unit


@dataclass(frozen=True)
class Terms:
    """How values are compared: the unit of a gold ("%" for per cent), an absolute tolerance, lists in their order."""

    unit: str = ""
    tolerance: Fraction | None = None
    ordered: bool = False


_POWER = r"\s*(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d))?\s*"
_TAIL = re.compile(rf'"[^"]*"{_POWER}(?:(?:[/*]|\\cdot|\\times)?\s*(?:"[^"]*"|[A-Za-z](?![A-Za-z])){_POWER})*$')
_BASE = re.compile(r"\(?(\d[0-9A-F.]*)\)?\s*_\s*\{?\s*(\w+)\s*\}?")


_ANOTHER = re.compile(  # the 12th grade is not 12, 25 base eight not 25
    r"(?:st|nd|rd|th)\b|(?i:in (?:binary|ternary|octal|hexadecimal)\b"
    r"|(?:in )?(?:base|point) (?:zero|one|two|three|four|five|six|seven|eight|nine|twelve|sixteen)\b)"
)


@dataclass(frozen=True)
class Value:
    """A value with what is behind it. words: those that are no unit."""

    text: str
    unit: Unit | None
    percent: bool
    words: str


def measured(text: str) -> Value:
    r"""The parts of a single value: 62.5 \%, 30\deg, 4 \times 10^{33} "erg s"^{-1}."""
    text, tail, words = re.sub(r"(?<=\d)[,\ue000](?=\d{3}(?!\d))", "", text.strip()), "", ""
    if (m := _TAIL.search(text)) and text[: m.start()].strip(" {}"):
        text, tail = text[: m.start()], re.sub(r'\\cdot|\\times|[{}]|"\s*(?=\^)', "", m[0]).replace('"', " ").strip()
        first, _, rest = tail.partition(" ")
        letter = first == "K" or (first == "k" and number(key(text)) is None)  # kelvin, a unit vector
        if not letter and (scale := SCALES.get(first.lower())):
            text, tail = rf"{text}\cdot {scale}", rest
        elif first.lower() in ("percent", "percentage", "pct"):
            text, tail = text + "%", rest
    unit = parse_unit(tail) if tail else None
    if tail and (not unit or _ANOTHER.match(tail)):
        words = tail
    text = text.strip()
    percent = text.endswith("%")
    text = re.sub(r"^\{([^{}]*)\}$", r"\1", re.sub(r"\\?\s*%$", "", text).strip())
    if text.endswith(r"\deg") and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text, unit = text.removesuffix(r"\deg").strip(), unit or parse_unit("degree")
    return Value(text, unit, percent, words)


_UNSPOKEN = re.compile(
    r'\b(?:[Aa]n|a|[Tt]he)(?=[\s"]+[^\W\d_]{2})|(?:\^\s*\{?(?=\s*"))|(?<=")\s*\}'
)  # articles, ^{"th"}
_SPOKEN = re.compile(rf'[^\W\d_]{{2,}}|\.?\d+(?:\.\d+)*|\\?[{{}}]|[^\s",;.{AND}\\]')


def _said(text: str) -> list[str]:
    """The words and signs of an answer in words, without articles; single letters keep their case."""
    spoken = _SPOKEN.findall(_UNSPOKEN.sub("", re.sub(r"([\^_])\s*\{\s*(\w)\s*\}", r"\1\2", text)))
    return [x.lower() if len(x) > 1 else x for x in spoken]


_LETTERS = re.compile(r"(.*[\d}])\s*([A-Za-z]\s*(?:/\s*[A-Za-z]\s*(?:\^\s*\{?\s*\d\s*\}?)?)?)")
_DEGREES, *_SPEEDS = map(parse_unit, ("degree", "m/s", "m/s^2"))


def _lettered(value: Value, other: Unit | None, gold: str = "") -> Value:
    """A number with letters behind it, beside a unit of the same dimensions: 5 h beside 5 hours.

    gold: where it is a bare number, m/s and m/s^2 behind another one are a unit, too.
    """
    m = _LETTERS.fullmatch(value.text)
    unit = parse_unit(re.sub(r"[{}\s]", "", m[2])) if m and not value.unit and not value.percent else None
    if not m or not unit:
        return value
    if other:
        known = unit.dimensions == other.dimensions
    else:
        known = unit in _SPEEDS and all(number(key(x)) is not None for x in (gold, m[1]))
    return replace(value, text=m[1], unit=unit) if known else value


def same_value(gold: str, answer: str, terms: Terms) -> bool:
    """Whether a single value is the gold, by size, unit and words; both are texts as `marked` makes them."""
    based = [m and m.groups() for m in (_BASE.fullmatch(gold), _BASE.fullmatch(answer))]
    if any(based):
        return based[0] == based[1]
    g, a = measured(gold), measured(answer)
    percent = g.percent or "%" in terms.unit or "percent" in terms.unit
    unit = g.unit
    if not unit and terms.unit and not percent:
        unit = parse_unit(re.sub(r'\\deg|["{}]', "", marked(terms.unit)))
    g, a = _lettered(g, a.unit), _lettered(a, unit, g.text)
    unit = unit or g.unit
    texts = [re.sub(r'"([A-Za-z])"', r"\1", x.text) for x in (g, a)]
    if g.words or a.words or '"' in "".join(texts):
        return _said(gold) == _said(answer)
    if not re.search(r"\\pi|sin|cos|tan|cot|sec|csc", "".join(texts)):
        texts = [x.replace(r"\deg", "") for x in texts]
    for i, (x, y) in enumerate(((g, a), (a, g))):  # degrees beside a multiple of pi
        if x.unit == _DEGREES and not y.unit and r"\pi" in y.text:
            texts[i] = rf"({texts[i]})\cdot \frac{{\pi }}{{180}}"
    if (a.unit and percent) or (g.unit and a.percent) or (unit and a.unit and not unit.agrees(a.unit)):
        return False
    sizes = unit and a.unit and not unit.is_any and not a.unit.is_any
    scales = [a.unit.size / unit.size if sizes else Fraction(1)]  # type: ignore[union-attr]
    if a.percent and not percent:
        share = number(key(texts[0]))  # a bare 0.15 is a share: 0.15 % is another one
        scales = [Fraction(1, 100)] if share is not None and 0 < abs(share) < 1 else [Fraction(1), Fraction(1, 100)]
    elif percent and not a.percent:
        scales = [Fraction(1), Fraction(100)]
    return any(_equal(texts[0], texts[1], s, terms.tolerance) for s in scales)


def _rounding(text: str) -> Fraction | None:
    """Half a unit of the last place of a decimal with six significant places or more; a whole one of a float's own."""
    m = re.fullmatch(r"[+-]?0*(\d*)\.(\d+)", text)
    if not m or len((m[1] + m[2]).lstrip("0")) < 6:
        return None
    return Fraction(1, (1 if len(m[2]) > 14 else 2) * 10 ** len(m[2]))


def _equal(gold: str, answer: str, scale: Fraction, within: Fraction | None) -> bool:
    """Whether gold = scale x answer."""
    keys = key(gold), key(answer)
    if not all(keys):
        return False
    if keys[0] == keys[1] and scale == 1:
        return True
    choices = [re.fullmatch(r"\(?([A-J])\)?", k) for k in keys]
    if all(choices):
        return choices[0][1] == choices[1][1]  # type: ignore[index]
    roundings = [r * s for r, s in zip(map(_rounding, keys), (1, scale), strict=True) if r]
    if len(roundings) == 1 and not all(re.fullmatch(r"[+-]?[\d.]+", k) for k in keys):
        within = max(within or Fraction(0), *roundings)
    x, y = map(number, keys)
    if x is not None and y is not None:
        return x == scale * y or (within is not None and abs(x - scale * y) <= within)
    if scale != 1:
        answer = rf"\frac{{{scale.numerator}}}{{{scale.denominator}}}\cdot ({answer})"
    return library.equal(gold, answer, within)

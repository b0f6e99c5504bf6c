r"""The verdict on an answer: `quick` where no algebra is needed, else `full`. See the package for the order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from importlib import metadata
from typing import Literal, get_args

from stapo_eval.grading.rules.compare.forms import members, same
from stapo_eval.grading.rules.compare.scalars import Terms, assigned, both
from stapo_eval.grading.rules.forms.reading import read
from stapo_eval.grading.rules.forms.relations import MINUS_INFINITY
from stapo_eval.grading.rules.forms.types import INFINITY, Collection, Form, Relation, Scalar, Sequence, Words
from stapo_eval.grading.rules.text.cleaning import clean, is_whole, joined, key, number, same_whole
from stapo_eval.grading.rules.text.tokens import LONGEST, Meaningless, Unreadable
from stapo_eval.grading.rules.text.units import QUALIFIERS, parse_unit
from stapo_results.errors import BadInput

Gold = str | tuple[str, ...]
Preset = Literal["ours", "math-verify", "justrl", "strict"]


def in_one(gold: Gold) -> str:
    """A gold answer as one text; several are joined by commas."""
    return gold if isinstance(gold, str) else ", ".join(gold)


def check_preset(preset: str) -> None:
    """Raises BadInput for a preset that does not exist."""
    if preset not in (known := get_args(Preset)):
        raise BadInput("this grader preset does not exist", found=preset, expected=" | ".join(known))


@dataclass(frozen=True)
class Options:
    """What a benchmark says about comparing.

    unordered: a gold in one text may be a list even where its commas could set thousands apart.
    tolerance: absolute. unit: of the gold, which an answer may repeat or leave out.
    ordered: the items of a list count in their order (by default in any).

    Raises:
        BadInput: the preset does not exist, or a list is to be both ordered and unordered.
    """

    unordered: bool = False
    tolerance: float | None = None
    unit: str = ""
    ordered: bool = False
    preset: str = "ours"

    def __post_init__(self) -> None:
        check_preset(self.preset)
        if self.unordered and self.ordered:
            raise BadInput("a list cannot be both ordered and unordered", next_step="leave one of them out")


def _items(text: str) -> list[str] | None:
    """The items of a plain list, or None where the text holds brackets or words that need reading."""
    if any(c in text for c in "()[]{}\\=<>|;") or "and" in text or "or" in text:
        return None
    return text.split(",") if "," in text else None


def _quick_one(gold: str, answer: str, options: Options) -> bool | None:
    if gold == answer:
        return True
    if not answer:
        return False
    if is_whole(gold) and is_whole(answer):
        if same_whole(gold, answer):
            return True
        if options.tolerance is None:
            return False
    x, y = number(gold), number(answer)
    if x is None or y is None:
        return None
    if x == y or (options.tolerance is not None and abs(x - y) <= Fraction(str(options.tolerance))):
        return True
    # a decimal may be the rounded value of a fraction: that is for `full` to say
    return False if "frac" not in gold + answer and "/" not in gold + answer else None


def quick(gold: Gold, answer: str, options: Options) -> bool | None:
    """The verdict where no algebra is needed, else None. Fast and bounded on any input."""
    whole = gold if isinstance(gold, str) else ",".join(gold)
    if len(answer) > max(LONGEST, 4 * len(whole)):
        g, a = key(whole), answer.strip() if is_whole(answer.strip()) else key(answer)
        return g == a or (is_whole(g) and is_whole(a) and same_whole(g, a))
    if isinstance(gold, str):
        g, a = key(gold), key(answer)
        if options.unordered and "," in gold and "," in answer and g != a:
            return None  # they may be lists and no numbers with commas
        return _quick_one(g, a, options)
    golds, answers = [key(g) for g in gold], _items(key(answer))
    if answers is None or len(answers) != len(golds):
        return None

    pair = partial(_quick_one, options=options)
    return both(list(map(pair, golds, answers))) if options.ordered else assigned(golds, answers, pair)


_TEXT = r"(?:\\text\w*\s*\{\s*)?"
_LABEL = re.compile(
    rf"{_TEXT}\(?([A-Ja-j])\s*[).:]\s*\}}?\s*(?!{_TEXT}(?:and|or)\b)(?=[^\s+\-*/^=<>])(.*)",
    re.S,
)
# behind a choice: another one, or that it is wrong
_OTHER_CHOICE = re.compile(
    r"(?<![A-Za-z\\])(?:[A-J]|\([a-j]\)|^[a-j]$|(?i:not|no|never|wrong|false|incorrect|untrue|excluded|rejected"
    r"|eliminated|except|neither|nor))(?![A-Za-z])"
)
_WORD = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{4,}|not)")
_LETTER = re.compile(r"\(?[A-J]\)?")
_DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+)")


def _readings(text: str) -> tuple[tuple[Form, ...], bool]:
    """The forms that a text can be read as, most likely first, and whether it says nothing in one of them."""
    cleaned = clean(text)
    forms: list[Form] = []
    meaningless = False
    for t in dict.fromkeys((joined(cleaned), cleaned)):
        for merge in (True, False) if "," in t else (True,):
            for tight in (False, True) if "/" in t else (False,):
                try:
                    form = read(t, merge=merge, tight=tight)
                except Meaningless:
                    meaningless = True
                    continue
                except Unreadable:
                    continue
                if form not in forms:
                    forms.append(form)
    return tuple(forms), meaningless


@lru_cache(maxsize=256)  # many answers of one problem come one after the other
def _gold_readings(gold: Gold, options: Options) -> tuple[Form, ...]:
    if isinstance(gold, str):
        forms = _readings(gold)[0]
        if options.unordered or len(forms) < 2 or joined(clean(gold)) == clean(gold):
            return forms
        # "58,500" is a number; that it might be two of them is for the benchmark to say
        return tuple(f for f in forms if not isinstance(f, Collection))
    parts = [_readings(g)[0] for g in gold]
    if not all(parts):
        return ()
    depth = max(map(len, parts))
    return tuple(Collection(tuple(p[min(i, len(p) - 1)] for p in parts)) for i in range(depth))


def listed(text: Gold) -> int:
    """How many answers a text lists, a plus-minus sign as two; 1 for a point, an interval, a union, a number."""
    lists = (f for f in _gold_readings(text, Options()) if isinstance(f, Collection) and not f.union)
    return max((len(members(f)) for f in lists), default=1 if isinstance(text, str) else len(text))


def are_parts(boxes: list[str], gold: Gold) -> bool:
    """Whether boxes are equations of values, x = 2 and y = 3, or bounds, x > 1 and x < 2, of which each is a part of
    a gold of several: a point, an interval with two bounds, a union."""
    golds = [f for f in _gold_readings(gold, Options()) if isinstance(f, Sequence | Collection)]
    if not any(len(f.items) > 1 and not {INFINITY, MINUS_INFINITY} & set(f.items) for f in golds):
        return False
    forms = [next(iter(_readings(box)[0]), None) for box in boxes]
    equations = (
        isinstance(f, Relation) and set(f.operators) == {"="} and isinstance(f.sides[-1], Scalar) for f in forms
    )
    return all(equations) or all(isinstance(f, Sequence) and f.source is not None for f in forms)


def _terms(options: Options) -> Terms:
    unit = options.unit.strip().strip("$").strip()
    percent = "%" in unit or "percent" in unit
    named = None
    if unit and not percent:
        try:
            form = read(clean(f"1 {unit}" if "\\" in unit or "^" in unit else f"1\\text{{ {unit}}}"))
            named = form.unit if isinstance(form, Scalar) else None
        except Unreadable:
            named = parse_unit(unit)
    tolerance = None if options.tolerance is None else Fraction(str(options.tolerance))
    return Terms(named, percent, tolerance, options.ordered)


def _compared(gold: Gold, answer: str, options: Options) -> bool | None:
    terms = _terms(options)
    golds = _gold_readings(gold, options)
    answers, meaningless = _readings(answer)
    results: list[bool | None] = []
    for g in golds:
        for a in answers:
            try:
                result = same(g, a, terms)
            except Meaningless:
                result = False
            except (Unreadable, RecursionError):
                result = None
            if result:
                return True
            results.append(result)
    if not results:
        return False if meaningless and golds else None
    return None if None in results else False


def _written_otherwise(gold: str, answer: str, options: Options) -> bool:
    """Whether the answer is the gold with a decimal comma, or stands behind the letter of a choice: "(C) 12"."""
    g = key(gold)
    if (comma := _DECIMAL_COMMA.fullmatch(key(answer))) and "." in g:
        x = number(g)
        return x is not None and x == number(f"{comma[1]}.{comma[2]}")
    if m := _LABEL.fullmatch(clean(answer)):
        if _LETTER.fullmatch(g):  # an equation or a list behind it says more than the choice
            forms = _readings(m[2])[0]
            said = all(isinstance(f, Scalar | Words) for f in forms) and not _OTHER_CHOICE.search(clean(m[2]))
            return m[1].upper() == g.strip("()") and bool(forms) and said
        return bool(_compared(gold, m[2], options))
    return False


def _changes_meaning(gold: str, answer: str) -> bool:
    """Whether the answer holds words that were not understood and are not the gold's, in its order.

    math-verify would pass over them; a rule's negative is looked at by the judge, its positive by nobody.
    """
    g, a = clean(gold), clean(answer)
    words, golds = ([w.lower() for w in _WORD.findall(text)] for text in (a, g))
    if not a or (words and words != golds) or ("mod" in a and "mod" not in g) or ("..." in a) != ("..." in g):
        return True
    changing = [w for w in golds if w in QUALIFIERS]
    return bool(changing) and words != golds  # "5 or more" is not 5


def full(gold: Gold, answer: str, options: Options) -> bool:
    """The verdict. May take any time and memory: call it in a process that may be killed.

    Raises:
        Exception: whatever math-verify or sympy raise on an answer that they cannot take.
    """
    decided = quick(gold, answer, options)
    if decided is not None:
        return decided
    decided = _compared(gold, answer, options)
    if not decided and isinstance(gold, str) and _written_otherwise(gold, answer, options):
        return True
    if decided is not None:
        return decided
    whole = in_one(gold)
    if _changes_meaning(whole, answer):
        return False
    from stapo_eval.grading.rules import library

    return library.verify(whole, answer, options.unit)


_RULES = 3  # one more with every change of the rules or of the boxes that are read, since a verdict may change


def grader_version() -> str:
    """The versions that a verdict depends on."""
    packages = ("math-verify", "latex2sympy2_extended", "mpmath")
    return ", ".join([f"rules {_RULES}", *(f"{p} {metadata.version(p)}" for p in packages)])

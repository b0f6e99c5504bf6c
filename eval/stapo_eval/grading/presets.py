r"""The presets of docs/evaluation.md: how the answer is found in a response and compared with the gold.

`justrl` is JustRL's rule (the one of PRM800K and DeepScaleR), written anew from what it is known to do. It has two
normal forms of text. The first has to agree literally; failing that, the second is split at commas and its parts are
compared in their order: two fractions literally, an integer only with an integer, the rest by algebra where there are
at most two letters and no nested or long exponents. Their algebra is sympy's parser, which evaluates Python code; ours
is `library`.
"""

from __future__ import annotations

import re

from stapo_eval.grading import library
from stapo_eval.grading.rules import Gold, Options, are_parts, full, in_one, listed, quick, quick_one
from stapo_eval.grading.text import key, marked
from stapo_eval.grading.values import measured
from stapo_results.answers import answer_line, final_boxes, last_boxed


def extract(response: str, gold: Gold, preset: str = "ours", *, use_answer_line: bool = False) -> str | None:
    """The answer that a preset grades; None where there is none.

    For `math-verify` it is the whole response, in which that library looks for itself.

    Args:
        use_answer_line: without a box, take what follows "Answer:" or "The answer is".
    """
    if preset == "math-verify":
        return response
    answer = last_boxed(response)
    if answer is None:
        return answer_line(response) if use_answer_line else None
    boxes = final_boxes(response) if preset == "ours" else []
    if len(boxes) > 1 and (listed(gold) > listed(answer) or are_parts(boxes, gold)):
        return ", ".join(boxes)
    return answer


def decide_quickly(gold: Gold, answer: str, options: Options) -> bool | None:
    """The verdict where it takes no algebra, else None: bounded on any input."""
    if options.preset == "ours":
        return quick(gold, answer, options)
    if options.preset == "strict":
        return bool(quick_one(key(in_one(gold)), key(answer), Options()))
    return _justrl_quickly(in_one(gold), answer) if options.preset == "justrl" else None


def decide(gold: Gold, answer: str, options: Options) -> tuple[bool | None, str | None]:
    """(verdict, answer that was found): in a process that may be killed. (None, None) where no answer was found."""
    if options.preset == "math-verify":
        return library.grade(in_one(gold), answer)
    verdict = decide_quickly(gold, answer, options)
    if verdict is None:
        verdict = full(gold, answer, options) if options.preset == "ours" else _justrl(in_one(gold), answer)
    return verdict, answer


Rows = tuple[tuple[re.Pattern[str], str], ...]


def _rows(*rows: tuple[str, str]) -> Rows:
    return tuple((re.compile(pattern, re.S), to) for pattern, to in rows)


_UNITS = "degree|cm|centimeter|meter|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard"
# the normal form of Hendrycks' MATH, by which many published scores were made
_HENDRYCKS = _rows(
    (r"\n|\\!|\\left|\\right|\^\s*\{?\\circ\}?|\\\$|\\?%", ""),
    (r"\\\\", r"\\"),
    (r"\\[td]frac", r"\\frac"),
    (r"\\text\{ .*", ""),  # a unit on the right
    (r"(^|[ {])\.(?=\d)", r"\g<1>0."),
    (r"^\s*[^=]{1,2}=(?!.*=)", ""),  # "k ="
    (r"\\sqrt([^{\s])", r"\\sqrt{\1}"),
    (r"\s", ""),
    (r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac(\d)\{", r"\\frac{\1}{"),
    (r"^0\.5$", r"\\frac{1}{2}"),
    (r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}"),
)
_LITERAL = (
    *_rows((r"^\s*\\text\{(.+?)\}\s*$", r"\1")),
    *_HENDRYCKS,
    *_rows((r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}")),
)
_LOOSE = _rows(
    (r"^\\text\{(.+?)\}$", r"\1"),
    (r"\\?[%$]", ""),
    (r" (?:or|and) ", " , "),
    (r"million", "*10^6"),
    (r"billion", "*10^9"),
    (r"trillion", "*10^12"),
    (rf"(?:{_UNITS})(?:es)?s? *(?:\^\d+)?", ""),
    (r"\^ *\\circ", ""),
    (r"^\{(.*)\}$", r"\1"),
    (r",\\! *", ""),
    (r"\\[td]frac", r"\\frac"),
    (r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2"),
    (r"\\frac(\d)(\d)", r" \1/\2"),
    (r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)"),
    (r"\\(?:text|mathrm|mathbf|mbox)\{([^{}]*)\}", r"\1"),
    (r"\\(?:left|right|[,;:! ])", ""),
    (r"\\(?:cdot|times)", "*"),
    (r"\\infty|∞", "inf"),
    (r"\\cup|∪", "U"),
    (r"\\pi|π", "pi"),
    (r"\\([A-Za-z]+)", r"\1"),
    (r"- ", "-"),
    (r"(\d) +(\d)", r"\1+\2"),  # a mixed number
    (r"[\s{}]", ""),
    (r"(?<=\d),(?=\d{3}(?:\D|$))(?![^(\[]*[)\]])", ""),
)
_FRACTION = re.compile(r"-?\d+\.?/0*[1-9]\d*\.?")
_TOO_HARD = re.compile(r"\^\{|\^\(|\^\d+\^|\^\d\d+")
_NAMES = re.compile(r"sqrt|frac")


def _apply(rows: Rows, text: str) -> str:
    for pattern, to in rows:
        text = pattern.sub(to, text)
    return text


def same_text(gold: str, answer: str) -> bool:
    """Hendrycks' rule for MATH: equal normal forms of text."""
    return _apply(_HENDRYCKS, gold.strip()) == _apply(_HENDRYCKS, answer.strip())


def _integer(text: str) -> int | None:
    bare = text.replace(",", "")
    try:
        x = float(bare) if len(bare) < 40 else None
    except ValueError:
        return None
    return int(x) if x is not None and abs(x) < 1e15 and abs(x - round(x)) <= 1e-7 else None


def _parts(text: str) -> list[str]:
    if len(text) > 2 and text[0] in "([" and text[-1] in ")]" and not any(c in text[1:-1] for c in "()[]"):
        return [x.strip() for x in text[1:-1].split(",")]
    return [text]


def _by_algebra(gold: str, answer: str) -> bool:
    letters = set(re.findall(r"[a-z]", _NAMES.sub("", gold + answer)))
    if len(letters) > 2 or _TOO_HARD.search(gold + answer) or "√" in gold + answer:
        return False
    g, a = (measured(marked(x)).text for x in (gold, answer))
    return library.equal(g, a, tight=False)


def _justrl_quickly(gold: str, answer: str) -> bool | None:
    """The verdict of the literal form; None where the second form has to decide."""
    if "\\boxed" in gold:
        gold = last_boxed(gold) or gold
    if len(answer) > 10_000:
        return False
    return True if _apply(_LITERAL, gold.strip()) == _apply(_LITERAL, answer.strip()) else None


def _justrl(gold: str, answer: str) -> bool:
    """The second form's verdict. Call it in a process that may be killed."""
    if "\\boxed" in gold:
        gold = last_boxed(gold) or gold
    g, a = (_apply(_LOOSE, x.strip()).lower() for x in (gold, answer))
    if g == a:
        return True
    if not a:
        return False
    golds, answers = _parts(g), _parts(a)
    if (len(golds) > 1 and (g[0] != a[0] or g[-1] != a[-1])) or len(golds) != len(answers):
        return False
    for x, y in zip(golds, answers, strict=True):
        if _FRACTION.fullmatch(x) and _FRACTION.fullmatch(y):
            same = x == y
        elif _integer(x) is not None or _integer(y) is not None:
            same = _integer(x) == _integer(y)
        else:
            same = _by_algebra(x, y)
        if not same:
            return False
    return True

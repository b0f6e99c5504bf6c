r"""math-verify 0.9.0: its parser and its algebra for single values, and its own reading of a whole response.

Runs in killable processes only. What the parser takes for something else is refused or rewritten before: `\gamma^2` is
a pole of the gamma function to it, `2 3` a sum, `\sin a \cdot b` the sine of a product, a capital its small letter. So
names come to it as single letters, decimals as fractions, arguments in brackets.
"""

from __future__ import annotations

import re
import string
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any

from stapo_eval.grading.text import FUNCTIONS, GREEK

LETTER = rf"(?:\\(?:{'|'.join(sorted(GREEK, key=len, reverse=True))})(?![A-Za-z])|[A-Za-z])"
_NAME = rf"(?:\\(?:dot|ddot|hat|bar|tilde|vec|overline)\s*\{{?\s*{LETTER}\s*\}}?|{LETTER})"
_INDEX = (  # x_1, x1 and x1^2, but n2^n is a product
    r"(?:\s*_\s*(?:\{[^{}]*\}|\\[A-Za-z]+|\w)|\d+(?!\d|\.\d|\^(?:[{(][^{}()\\]*)?[A-Za-z]))"
)
_ONE = rf"(?:\d|[A-Za-z]|\\(?:pi|{'|'.join(GREEK)})(?![A-Za-z]))"  # what TeX takes without braces
_TOKEN = re.compile(
    rf"\\frac\s*\{{\s*d\s*(?P<of>{_NAME})\s*\}}\s*\{{\s*d\s*(?P<by>{_NAME})\s*\}}"
    r"|(?P<number>\d+(?:\.\d*)?|\.\d+)(?:\\(?:overline|bar|dot)\s*\{(?P<repeated>\d+)\})?(?P<degrees>\s*\\deg)?"
    rf"|(?P<name>{_NAME}{_INDEX}?'*(?:\(\d\))?'*)"
    r"|\\(?P<command>[A-Za-z]+)|(?P<sign>[-+*/^(){}\[\]|!_,])|\s+|(?P<other>.)",
    re.S,
)
_REWRITES = [
    (re.compile(pattern), to)
    for pattern, to in (
        (rf"\\(frac|binom)\s*({_ONE})\s*({_ONE})", r"\\\1{\2}{\3}"),
        (rf"\\(frac|binom)\s*({_ONE})\s*\{{", r"\\\1{\2}{"),
        (rf"(\\(?:frac|binom)\s*\{{[^{{}}]*\}})\s*({_ONE})", r"\1{\2}"),
        (rf"\\sqrt\s*(\d+|{_ONE})", r"\\sqrt{\1}"),
        (r"(\^|\\sqrt)\s*(\\(?:frac\s*\{[^{}]*\}|sqrt)\s*\{[^{}]*\})", r"\1{\2}"),
        (r"(\.\d*)\\(overline|bar|dot)\s*(\d)", r"\1\\\2{\3}"),
        (r"((?<![\d.])\d+|(?<![A-Za-z])(?:[A-Za-z]|\([^()]*\)))!(?=\s*\^)", r"(\1!)"),
        (rf"(?<![A-Za-z\\])d({_NAME})\s*/\s*d({_NAME})(?!\w|\s*\^)", r"\\frac{d\1}{d\2}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(\\[A-Za-z]+|[A-Za-z])\s*\^\s*(\{[^{}]*\}|\w)\s*_\s*(\{[^{}]*\}|\w)", r"\1_\3^\2"),  # u^2_0
        (r"(?<![\d.])(\d+)\s+(\d+)/(\d+)", r"\1\\frac{\2}{\3}"),  # a mixed number
        (r"(?<=\d)[eE]([+-]?\d+)", r"\\cdot 10^{\1}"),
        ("\ue000", ""),
        (r"\\sqrt\s*\[([^\[\]]*)\]", "\\\\sqrt \ue004\\1\ue005"),
        (r"\[", "("),
        (r"\]", ")"),
        ("\ue004", "["),
        ("\ue005", "]"),
    )
]
_BEGINNING = {f"\\{name} " for name in (*FUNCTIONS, "frac", "sqrt", "binom", "pi", "lfloor", "lceil")}
_COMMANDS = _BEGINNING | {f"\\{name} " for name in ("cdot", "times", "div", "infty", "rfloor", "rceil")}
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BARE_ARGUMENT = re.compile(  # up to the next function or operator
    rf"(\\(?:{'|'.join(FUNCTIONS)}) \s*(?:[\^_](?:{_GROUP}|\w)\s*)*)"
    rf"(-?(?:(?:\\(?:frac|sqrt) \s*(?:{_GROUP}){{1,2}}|{_GROUP}|\d+|[a-z]|\\pi )\s*(?:\^{_GROUP}|\^\w)?)+)"
)
_TOWER = re.compile(r"(?:\^[\s{(]*\w+[\s})]*){3}")  # 9^{9^{9^9}}: no memory holds it
_DEEPEST = 4  # functions in arguments without brackets
_BY_LIBRARY = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|det|max|min|gcd|lcm|begin|sup|inf)(?![A-Za-z])")
_PLACES = [c for c in string.ascii_lowercase if c not in "dei"]
_DIGITS = 50


class _Unreadable(Exception):
    """A text that is no value in known signs."""


@lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple[tuple[str, str], ...]:
    """(kind, text) of each token; raises _Unreadable for a sign or command that values do not have."""
    tokens: list[tuple[str, str]] = []
    if _TOWER.search(text):
        raise _Unreadable(text)
    for pattern, to in _REWRITES:
        text = pattern.sub(to, text)
    for m in _TOKEN.finditer(text):
        if m["of"]:
            tokens.append(("name", f"d{_canonical(m['of'])}/d{_canonical(m['by'])}"))
        elif m["number"]:
            if tokens[-1:] and tokens[-1][0] == "number" and tokens[-2:-1] not in ([("sign", "_")], [("sign", "^")]):
                raise _Unreadable(text)  # two numbers side by side
            tokens.append(("number", _exactly(m)))
        elif m["name"]:
            tokens.append(("sign" if m["name"] in ("e", "i") else "name", _canonical(m["name"])))
        elif m["sign"] or f"\\{m['command']} " in _COMMANDS:
            tokens.append(("sign", m["sign"] or f"\\{m['command']} "))
        elif m["command"] or m["other"]:
            raise _Unreadable(m[0])
    return tuple(tokens)


def _exactly(m: re.Match[str]) -> str:
    """A number as a fraction of integers, degrees in radians."""
    value = Fraction(m["number"].rstrip("."))
    if m["repeated"]:
        value += Fraction(int(m["repeated"]), (10 ** len(m["repeated"]) - 1) * 10 ** len(m["number"].partition(".")[2]))
    if m["degrees"]:
        return rf"(\frac{{{value.numerator}\pi }}{{{180 * value.denominator}}})"
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _canonical(name: str) -> str:
    """A name without spaces and braces, x1 as x_1; a dot is the derivative by time."""
    name = re.sub(r"\s|[{}]", "", name.replace("\\var", "\\"))
    name = re.sub(r"^(\\?[A-Za-z]+)(?=\d)", r"\1_", name)
    return f"d{m[1]}/dt{m[2]}" if (m := re.fullmatch(r"\\dot(\\?[A-Za-z]+)(.*)", name)) else name


def _names(text: str) -> frozenset[str]:
    return frozenset(t for kind, t in _tokens(text) if kind == "name")


def has_letters(text: str) -> bool:
    """Whether a value is no number that can be read; e, i and pi are numbers."""
    try:
        return bool(_names(text))
    except _Unreadable:
        return True


def _rendered(text: str, places: dict[str, str], tight: bool) -> str:
    """A value as the parser takes it. tight: 1/2x is 1/(2x), else x/2."""
    out: list[str] = []
    before, slash = "", -9  # the kind of the token before; where the last slash is
    opened: list[int] = []  # where the groups begin that are open
    closed: dict[int, int] = {}  # where the others end: where they begin
    tokens = _tokens(text)
    for at, (kind, token) in enumerate(tokens):
        begins = kind != "sign" or token in ("(", "e", "i") or token in _BEGINNING
        behind = at == slash + 2 and before in ("name", "number") and not tight and begins
        shown = places[token] if kind == "name" else token
        # only 2 and 1/3 are a mixed number: 2.5 and 1/3 are factors, and so are (2) and 1/3
        decimal = before == "number" and tokens[at - 1][1].startswith(r"\frac")
        if behind or (before and token == "(") or ((before == ")" or decimal) and token == r"\frac "):
            out.append(r"\cdot ")
        script = bool(out) and out[-1] in ("^", "_") and kind != "sign"
        out.append(f"{{{shown}}}" if script else shown)
        before = ")" * (token == ")") if kind == "sign" else kind
        if script and tokens[at - 2][1] in _BEGINNING:  # \sin^2 (x)
            before = ""
        opened += [at] * (token == "{")
        if token == "}" and opened:
            closed[at] = opened.pop()
            numerator = closed.get(closed[at] - 1, 0)
            before = ")" * (tokens[numerator - 1][1] == r"\frac ")
        slash = at if token == "/" else slash
    latex = re.sub(r"\^(-(?:\d+|[a-z])|[ei]|\\pi )", r"^{\1}", "".join(out))
    for _ in range(_DEEPEST):
        latex = _BARE_ARGUMENT.sub(r"\1(\2)", latex)
    return latex


@lru_cache(maxsize=4096)
def _parsed(latex: str) -> Any:
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I, Symbol, nan, zoo

    i = Symbol("i")
    layout = NormalizationConfig(malformed_operators=True, boxed="none")
    try:
        value: Any = latex2sympy(
            latex, normalization_config=layout, conversion_config=ConversionConfig(lowercase_symbols=False)
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as e:
        raise _Unreadable(latex) from e
    if not hasattr(value, "free_symbols") or value.has(zoo, nan):
        raise _Unreadable(latex)
    return value.doit().subs(i, I) if i in value.free_symbols else value


def _pairs(gold: str, answer: str, tight: bool = True) -> list[tuple[Any, Any]]:
    """The readings of two values; none where one has a letter that the other lacks and that cannot cancel."""
    tokens = [t for text in (gold, answer) for _, t in _tokens(text)]
    names = _names(gold) | _names(answer)
    if len(names) > len(_PLACES) or any(tokens.count(n) == 1 for n in _names(gold) ^ _names(answer)):
        return []
    places = dict(zip(sorted(names), _PLACES, strict=False))
    golds, answers = (
        {_rendered(text, places, t): None for t in ((False, True) if tight and "/" in text else (False,))}
        for text in (gold, answer)
    )
    pairs = [(_parsed(g), _parsed(a)) for g in golds for a in answers]
    known = set(places.values())
    return [pair for pair in pairs if all({str(s) for s in x.free_symbols} <= known for x in pair)]


def _close(x: Any, y: Any, within: Fraction | None = None) -> bool:
    """Whether two numbers are equal: exactly, else to 40 digits; or no further apart than `within`."""
    from sympy import Float, Rational

    if x.is_Rational and y.is_Rational:
        return x == y or (within is not None and abs(x - y) <= Rational(within.numerator, within.denominator))
    if not x.is_number or not y.is_number:
        return False
    difference, x, y = x - y, x.evalf(_DIGITS), y.evalf(_DIGITS)
    apart, size = abs(x - y), max(abs(x), abs(y))
    if not apart.is_Float and not apart.is_Integer:
        from sympy import oo

        return x == y and x in (oo, -oo)  # a pole is no value
    if size > Float("1e35"):  # the digits do not reach to the units
        return difference.simplify() == 0
    most = Float(within.numerator, _DIGITS) / within.denominator if within else 0
    return bool(apart <= max(size * Float("1e-40"), Float("1e-90"), most))


def _far_apart(x: Any, y: Any) -> bool:
    """Whether two numbers, of which one is a power of millions of digits, differ in their first thirty.

    To write such a power out takes seconds. Sums are left out, since forty digits may cancel.
    """
    from sympy import Float

    if not any(map(_is_long, (x, y))) or not all(v.is_Rational or _is_long(v) for v in (x, y)):
        return False
    left, right = x.evalf(_DIGITS), y.evalf(_DIGITS)
    return bool(abs(left - right) > Float("1e-30") * max(abs(left), abs(right)))


def _is_long(x: Any) -> bool:
    """Whether a number is a whole one's power of more than a million digits, perhaps with a factor."""
    from sympy import Float, Integer, log

    power = x.as_coeff_Mul()[1]
    if not (power.is_Pow and power.base.is_Integer and abs(power.base) > 1 and power.exp.is_number):
        return False
    digits = (power.exp * log(abs(power.base), Integer(10))).evalf(15)
    return bool(digits.is_Float and Float("1e6") < digits < Float("1e15"))  # beyond, its logarithm has too many digits


def _point(symbols: list[Any], k: int, signs: int = 0) -> dict[Any, Any]:
    """Numbers without a pattern for letters; positive but for the letters of the bits in `signs`."""
    from sympy import Rational

    return {
        s: Rational(101 + 37 * ((i + 3) * (k + 2) ** 2 % 89), 73 + 29 * ((i + 5) * (k + 1) % 41))
        * (-1) ** (signs >> i & 1)
        for i, s in enumerate(symbols)
    }


def equal(gold: str, answer: str, within: Fraction | None = None, *, tight: bool = True) -> bool:
    """Whether two values are equal at points without a pattern; no where one of them is no value in known signs.

    Letters are positive, but where a bar is taken; a logarithm without a base is the natural one or that to base ten.

    Args:
        within: how far apart two numbers may be.
        tight: 1/2x is x/2 or 1/(2x), else the first alone.

    Raises:
        Exception: whatever sympy raises.
    """
    if _applied(gold) != _applied(answer):
        return False
    with suppress(_Unreadable):
        if _BY_LIBRARY.search(gold + answer):
            return _verified(gold, answer)
        for base in (r"\\ln ", r"\\log_{10}"):
            g, a = (re.sub(r"\\log(?!\s*_)(?![A-Za-z])", base, _LG.sub(r"\\log_{10}", x)) for x in (gold, answer))
            a = _in_case_of(g, a)
            alike = _names(g) == _names(a)
            if any(
                _equal(x, y, within) and (alike or (x.doit() - y.doit()).simplify() == 0)
                for x, y in _pairs(g, a, tight)
            ):
                return True
            if r"\log" not in gold + answer:
                break
    return False


_LG = re.compile(r"\\lg(?![A-Za-z])")
_FUNCTION = re.compile(r"(?<![A-Za-z\\])([fghu]|\\(?:delta|Gamma|phi|psi))\s*\(([^()]*)\)")


def _applied(text: str) -> set[tuple[str, str]]:
    """Functions without a definition and what they are applied to: f(2x) is not 2 f(x)."""
    return {(m[1], re.sub(r"\s", "", m[2])) for m in _FUNCTION.finditer(text)}


def _equal(g: Any, a: Any, within: Fraction | None) -> bool:
    from sympy import Abs, Expr, Pow, ceiling, floor

    if not all(isinstance(x, Expr) for x in (g, a)):
        return False
    symbols = sorted(g.free_symbols | a.free_symbols, key=str)
    signed = any(x.has(Abs) or any(_is_root_of_square(p) for p in x.atoms(Pow)) for x in (g, a))
    points = [_point(symbols, k, k if signed else 0) for k in range((8 if signed else 3) if symbols else 1)]
    if signed:  # bars may change their side far from small numbers
        points.append({s: 10_000 * x for s, x in _point(symbols, 0).items()})
    steps = g.atoms(floor, ceiling) | a.atoms(floor, ceiling)
    if steps and symbols:
        by_steps = g.has(floor, ceiling) and a.has(floor, ceiling) and not any(f.args[0].is_Symbol for f in steps)
        points = [*([] if by_steps else points), *_beside_steps(symbols, g, a, by_steps)]

    if symbols:  # of an unevaluated cos(2t - (-pi/4)) `subs` loses a sign
        g, a = g.doit(), a.doit()

    def close(x: Any, y: Any) -> bool:
        most = None if symbols else within
        return not (most is None and _far_apart(x, y)) and _close(x.doit(), y.doit(), most)

    return all(close(g.subs(p), a.subs(p)) for p in points)


def _beside_steps(symbols: list[Any], g: Any, a: Any, whole: bool) -> list[dict[Any, Any]]:
    """Numbers at which floors and ceilings jump: small ones, those of both values and beside them; and larger ones.

    whole: integers alone, else also 1/1000 above and below them.
    """
    from sympy import Integer, Pow, Rational, binomial, factorial

    drawn, both = Random(0), (g, a)
    grows = any(p.exp.free_symbols for x in both for p in x.atoms(Pow)) or any(x.has(factorial, binomial) for x in both)
    most = 40 if grows else 10**6
    given = {int(n) + d for x in both for n in x.atoms(Integer) for d in (-1, 0, 1) if 2 <= n + d <= most}
    small = sorted(given | set(range(2, 9)))
    points = [{s: Integer(drawn.choice(small)) for s in symbols} for _ in range(160)]
    points += [{s: Integer(drawn.randint(2, min(10 ** (1 + k % 6), most))) for s in symbols} for k in range(32)]
    shifts = (0,) if whole else (0, Rational(1, 1000), -Rational(1, 1000))
    return [{s: x + shifts[k % len(shifts)] for s, x in p.items()} for k, p in enumerate(points)]


def _is_root_of_square(power: Any) -> bool:
    from sympy import PolynomialError, sqf_list

    if not (power.exp.is_Rational and power.exp.q % 2 == 0):
        return False
    if power.base.is_Add and power.base.free_symbols:
        with suppress(PolynomialError):
            return all(times % 2 == 0 for _, times in sqf_list(power.base)[1])
    return bool(power.base.is_Pow and power.base.exp.is_even)


_BESIDE_CURVE = re.compile(r"[cC]\s*\)?\s*(?:e\s*\^|[a-z]\s*\^\s*\{?\s*-)")


def _in_case_of(gold: str, answer: str) -> str:
    """The answer with its constants of integration, c or C_1, in the gold's case.

    They are constants beside one variable where they are numbered, or a factor of an exponential or a negative power.
    """
    of_gold, of_answer = _names(gold), _names(answer)
    constants = {n for n in of_gold | of_answer if n[0] in "cC"}
    swapped = {n.swapcase() if n in constants else n for n in of_answer}
    if of_gold == of_answer or of_gold != swapped or len(of_gold - constants) != 1:
        return answer
    if not all("_" in n for n in constants) and not _BESIDE_CURVE.search(gold):
        return answer
    return re.sub(r"\\[A-Za-z]+|([cC])", lambda m: m[1].swapcase() if m[1] else m[0], answer)


def proportional(gold: str, answer: str) -> bool:
    """Whether two differences are multiples: of an equation both say the same.

    The factor is a number. Beside derivatives it may be a monomial of the letters that are not derived and by which no
    one derives. Raises as `equal`.
    """
    with suppress(_Unreadable):
        derived = {x for n in _names(gold) if "/d" in n for x in (n, *re.findall(r"d(\\?[A-Za-z]+)", n))}
        if primed := {x for n in _names(gold) if n.endswith("'") for x in (n, n.rstrip("'"))}:
            derived |= primed | set("rstuvwxyz")  # nothing says by which letter
        places = dict(zip(sorted(_names(gold)), _PLACES, strict=False))
        fixed = {places[n] for n in places.keys() - derived} if derived else set()
        return ("|" in gold) == ("|" in answer) and any(_multiples(g, a, fixed) for g, a in _pairs(gold, answer))
    return False


def _multiples(g: Any, a: Any, given: set[str]) -> bool:
    """Whether g/a is a number, or a monomial of the given letters."""
    symbols = sorted(g.free_symbols | a.free_symbols, key=str)
    known = [s for s in symbols if str(s) in given]
    g, a = g.doit(), a.doit()

    def ratio(point: dict[Any, Any]) -> Any:
        return g.subs(point).doit() / a.subs(point).doit()

    first = _point(symbols, 0)
    factor = ratio(first)
    others = [_point(symbols, k) | {s: first[s] for s in known} for k in (1, 2)]
    if factor.is_zero or not factor.is_finite or not all(_close(factor, ratio(p)) for p in others):
        return False
    # of monomials f(p q) f(1) = f(p) f(q), and only these are nowhere zero, where no given letter is
    p, q = _point(known, 4), _point(known, 5)
    f = [ratio(first | x) for x in ({s: p[s] * q[s] for s in known}, dict.fromkeys(known, 1), p, q)]
    return _close(f[0] * f[1], f[2] * f[3])


def _verified(gold: str, answer: str) -> bool:
    """math-verify's verdict on two values, of which one is a sum, an integral, a limit or a matrix."""
    from math_verify import verify

    letters = [set(re.findall(r"(?<![\\A-Za-z])[A-Za-z]", text)) for text in (gold, answer)]
    bound = set("".join(map("".join, re.findall(r"_\{?\s*([a-z])\s*=|\bd\s*([a-z])", gold + answer)))) | {"d"}
    if (letters[0] ^ letters[1]) - bound:
        return False
    return bool(verify(_parsed(gold), _parsed(answer), timeout_seconds=0, raise_on_error=True))


@lru_cache(maxsize=1024)
def _gold(gold: str) -> list:
    from math_verify import parse

    return parse(gold if "$" in gold or "\\boxed" in gold else f"${gold}$", parsing_timeout=0)


def grade(gold: str, response: str) -> tuple[bool | None, str | None]:
    """math-verify's own reading of a whole response, with its defaults: (verdict, what it extracted).

    (None, None) where it found no answer.
    """
    from math_verify import parse, verify

    parsed = parse(response, parsing_timeout=0)
    if not parsed:
        return None, None
    return bool(verify(_gold(gold), parsed, timeout_seconds=0)), str(parsed[-1])

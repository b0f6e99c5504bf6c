r"""Normal forms of answer texts, where what only sets the type goes; and the exact values of plain numbers.

Each transformation is a row of a table with its reason. Every pattern is linear: no nested or overlapping repetition,
so that a hostile text of a million characters costs milliseconds, not hours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

from stapo_results.answers import strip_boxes

# (characters, replacement): Unicode that NFKC would lose or leave alone
_CHARACTERS: tuple[tuple[str, str], ...] = (
    ("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-"),  # minus signs and dashes
    ("\u00d7\u2715\u2a09", r" \times "),
    ("\u00b7\u22c5\u2219\u2022", r" \cdot "),
    ("\u00f7", r" \div "),
    ("\u2044\u2215\uff0f", "/"),
    ("\u2264\u2a7d\u2266", r" \le "),
    ("\u2265\u2a7e\u2267", r" \ge "),
    ("\u2260", r" \ne "),
    ("\u2248\u2245\u2243", r" \approx "),
    ("\u221e", r" \infty "),
    ("\u03c0\U0001d70b", r" \pi "),
    ("\u221a", r" \sqrt "),
    ("\u222a", r" \cup "),
    ("\u2229", r" \cap "),
    ("\u2208", r" \in "),
    ("\u2205", r" \emptyset "),
    ("\u211d", r" \mathbb{R} "),
    ("\u00b1", r" \pm "),
    ("\u2213", r" \mp "),
    ("\u00b0\u02da\u00ba", r"^\circ "),
    ("\u2032\u2018\u2019\u02b9", "'"),
    ("\u3001\uff0c\u060c", ","),
    ("\uff1b", ";"),
    ("\uff1a\u2236", ":"),
    ("\u3002", "."),
    ("\u3010\u301a\uff3b", "["),
    ("\u3011\u301b\uff3d", "]"),
    ("\u27e8\u2329\u3008", r"\langle "),
    ("\u27e9\u232a\u3009", r"\rangle "),
    ("\u230a", r"\lfloor "),
    ("\u230b", r" \rfloor "),
    ("\u2308", r"\lceil "),
    ("\u2309", r" \rceil "),
    ("\u20ac", r"\euro "),
    ("\u00a3", r"\pounds "),
    ("\u00a5\uffe5", r"\yen "),
    ("\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\ufeff\u00ad", ""),  # invisible
)
_SUPERSCRIPTS, _SUBSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "₀₁₂₃₄₅₆₇₈₉"
_SCRIPT = re.compile(f"([{_SUPERSCRIPTS}]+)|[{_SUBSCRIPTS}]+")
_ON_THE_LINE = str.maketrans(_SUPERSCRIPTS + _SUBSCRIPTS, "0123456789-+n0123456789")
_GREEK = "αβγδεζηθκλμνξρστφχψωΓΔΘΛΣΦΨΩ"
_GREEK_NAMES = """
    alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega
    Gamma Delta Theta Lambda Sigma Phi Psi Omega
"""
_TABLE = {ord(c): to for chars, to in _CHARACTERS for c in chars} | {
    ord(c): rf" \{name} " for c, name in zip(_GREEK, _GREEK_NAMES.split(), strict=True)
}
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")

_SPACES = r"(?<!\\)\\[,;:> ]|~|\\(?:q?quad|enspace|thinspace)(?![A-Za-z])|\\(?:hspace\*?|h?phantom)\{[^{}]{0,40}\}"
_TIME_OF_DAY = r"(\d|\\(?:text|textrm|mathrm|mbox)\s?\{)\s*([aApP])\.?\s?[mM](?![A-Za-z])\.?"
_RESIDUE = r"\(?\s?\\?(?<![A-Za-z])[pb]?mod(?![A-Za-z])\s?\{?\s?(\d{1,9}|[A-Za-z])\s?\}?\s?\)?"
_REWRITES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<!\\)\\[()\[\]]", " "),  # math delimiters
    (r"\\(?:boxed|fbox)(?=\s*\{)", ""),  # a box in a sentence
    (r"\\(?:left|right|middle|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr)(?![A-Za-z])\.?", ""),
    (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|nonumber|hfill|strut|rm|bf|it)(?![A-Za-z])", " "),
    (r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|underline|ensuremath)(?![A-Za-z])", " "),
    (r"\\(?:(?:text)?color|tag\*?|label)\s*\{[^{}]{0,40}\}", " "),
    (r"\\(?:square|blacksquare|Box|qed|checkmark)(?![A-Za-z])\s*$", ""),
    (r"\\surd(?![A-Za-z])", r"\\sqrt "),
    (r"(?<=\d)'(?=\d{3}(?!\d))", "\ue000"),  # 1'000
    (r",\\!\s?|\{\s?,\s?\}", "\ue000"),  # a comma that sets thousands apart: its own character
    (r"\{\s?:\s?\}", ":"),
    (r"\\!", ""),  # negative space
    (r"(?<![\^*])\*\*(?![\^*])", "^"),  # a power in Python
    (_SPACES, " "),
    (r"\\(?:[dtcsx]|nice)frac(?![A-Za-z])", r"\\frac"),
    (r"\\(?:d|t)binom(?![A-Za-z])", r"\\binom"),
    (
        r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))|\\degree(?![A-Za-z])|\\textdegree(?![A-Za-z])",
        r"\\deg ",
    ),
    (r"\\(?:leqslant|leqq|leq)(?![A-Za-z])", r"\\le "),
    (r"\\(?:geqslant|geqq|geq)(?![A-Za-z])", r"\\ge "),
    (r"\\neqq?(?![A-Za-z])", r"\\ne "),
    (r"\\overrightarrow(?![A-Za-z])", r"\\vec"),
    (r"\bper cent\b", "percent"),
    (r"\\[lcd]?dots[a-z]?(?![A-Za-z])|\.(?:\s?\.)+", "..."),  # digits or items that go on
    (_TIME_OF_DAY, lambda m: f"{m[1]} {m[2].lower()}m"),
    (_RESIDUE, r" \\mod \1"),
    (r"\s+", " "),
)
_LATEX = [(re.compile(pattern), to) for pattern, to in _REWRITES]  # in this order
_QUAD = re.compile(r"\\q?quad(?![A-Za-z])")
_MARKDOWN = re.compile(r"""(\*\*|[`'"\u201c])([^*`'"\u201c\u201d]+)(?:\1|\u201d)|<answer>([^<>]*)</answer>""")
_MONEY = re.compile(r"\$(?=\s*[\d.])")
# a backslash that was escaped twice; beside a \begin of one backslash two are a line break
_DOUBLED = re.compile(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[{}()\[\]%,;:!]|\\\\)(\\\\)?")
_ENVIRONMENT = re.compile(r"(?<!\\)\\begin(?![A-Za-z])")


def unify(text: str) -> str:
    """Unicode as plain LaTeX: minus signs, full-width forms, Greek letters, superscripts, vulgar fractions."""
    if text.isascii():
        return text
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[0]), text)
    text = text.translate(_TABLE)
    text = _SCRIPT.sub(lambda m: f"{'^' if m[1] else '_'}{{{m[0].translate(_ON_THE_LINE)}}}", text)
    return unicodedata.normalize("NFKC", text).translate(_TABLE)


def _dollars(text: str) -> str:
    r"""Dollar signs that are money as `\usd`, those around formulas as spaces: they come in pairs, money does not."""
    text = text.replace(r"\$", r"\usd ")
    if text.count("$") % 2:
        text = _MONEY.sub(r"\\usd ", text, count=1)
    return text.replace("$", " ")


def _row_of_equations(text: str) -> str:
    """Equations that only wide spaces set apart, with commas instead."""
    parts = [p.strip(" ,;") for p in _QUAD.split(text)]
    return ", ".join(parts) if len(parts) > 1 and all(p.count("=") == 1 for p in parts) else text


def clean(text: str) -> str:
    r"""The text without boxes, delimiters, sizes and spacing commands.

    `\deg` is degrees, `\usd` for dollars, U+E000 for a comma that can only set thousands apart.
    """
    text = unify(text).strip()
    if not _ENVIRONMENT.search(text):
        text = _DOUBLED.sub(lambda m: m[1] or "\\", text)
    text = strip_boxes(text)
    if m := _MARKDOWN.fullmatch(text):
        text = m[2] or m[3]
    text = _row_of_equations(_dollars(text))
    for pattern, to in _LATEX:
        text = pattern.sub(to, text)
    text = text.strip().rstrip("\\").rstrip()  # a line break
    return _without_end(text)


def _without_end(text: str) -> str:
    """Without the signs that end a sentence; "..." and an escaped full stop stay. Linear, as no pattern would be."""
    while True:
        kept = text.rstrip(" \t\r\n,;:")
        if kept.endswith(".") and not kept.endswith(("..", "\\.")):
            kept = kept[:-1]
        if kept == text:
            return text
        text = kept


_FONTS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname)\s*\{([^{}]*)\}"
)
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:\s*[,\ue000]\s*\d{3}|\s\d{3})+(?:\.\d*)?")


def joined(cleaned: str) -> str:
    """A cleaned text that is one number with separated thousands, without the separators; else as it is."""
    if _SPACED_THOUSANDS.fullmatch(cleaned):
        return re.sub(r"[\s,\ue000]", "", cleaned)
    return cleaned


_TRIGONOMETRIC = re.compile("sin|cos|tan|cot|sec|csc")
_SPACE = re.compile(r"(?<!\d)\s|\s(?!\d)")  # not between digits: "7 3/4" is no "73/4"


def key(text: str) -> str:
    """Normal form for comparing as text: equal keys mean the same answer, typeset differently."""
    text = _FONTS.sub(r"\1", joined(clean(text)))
    if not _TRIGONOMETRIC.search(text):  # the sine of 30 is not that of 30 degrees
        text = text.replace(r"\deg", "")
    text = text.replace(r"\usd", "").replace(r"\%", "%")
    text = _SPACE.sub("", text)
    return text if text.endswith("..") else text.rstrip(".")  # of "10..." more digits follow


_DECIMAL = r"[+-]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})"
_POWER = r"(?:(?:[eE]|(?:\\times|\\cdot|\*)10\^)\{?([+-]?\d{1,3})\}?)"
_NUMBER = re.compile(rf"({_DECIMAL}){_POWER}?")
_POWER_OF_TEN = re.compile(r"([+-]?)10\^\{?([+-]?\d{1,3})\}?")
_RATIO = re.compile(rf"([+-]?)(?:\\frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}|\\frac(\d)(\d)|({_DECIMAL})/({_DECIMAL}))")
_MIXED = re.compile(r"([+-]?)(\d{1,50})\\frac\{(\d{1,50})\}\{(\d{1,50})\}")
_PYTHON = re.compile(r"([+-]?\d{1,50}\.)/(\d{1,50}\.?)")
_LONGEST_NUMBER = 240  # characters


def number(text: str) -> Fraction | None:
    """The exact value of a plain number in normal form (see `key`); else None.

    A whole number before a proper fraction is a mixed number.
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    if m := _NUMBER.fullmatch(text):
        return Fraction(m[1]) * Fraction(10) ** int(m[2] or 0)
    if m := _POWER_OF_TEN.fullmatch(text):
        return Fraction(10) ** int(m[2]) * (-1 if m[1] == "-" else 1)
    if m := _MIXED.fullmatch(text):
        if 0 < int(m[3]) < int(m[4]):
            return (int(m[2]) + Fraction(int(m[3]), int(m[4]))) * (-1 if m[1] == "-" else 1)
        return None
    if m := _PYTHON.fullmatch(text):
        return Fraction(m[1]) / Fraction(m[2]) if Fraction(m[2]) else None
    if m := _RATIO.fullmatch(text):
        over, under = next((a, b) for a, b in ((m[2], m[3]), (m[4], m[5]), (m[6], m[7])) if a)
        if Fraction(under):
            return Fraction(over) / Fraction(under) * (-1 if m[1] == "-" else 1)
    return None


def is_whole(text: str) -> bool:
    """Whether the normal form is an integer of any length."""
    return text.lstrip("+-").isdecimal() and len(text) - len(text.lstrip("+-")) <= 1 and text.isascii()


def same_whole(a: str, b: str) -> bool:
    """Whether two integers in normal form are equal: digit by digit, since a million digits have no quick `int`."""
    x, y = a.lstrip("+-").lstrip("0"), b.lstrip("+-").lstrip("0")
    return x == y and (not x or (a[0] == "-") == (b[0] == "-"))


_TEXT = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mbox|hbox|mathrm|mathsf|operatorname|emph)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau
    upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell
"""
_FUNCTIONS = (
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arsinh arcosh artanh ln log exp lg"
)
# letters side by side that are a word and no product; of four letters or more all are
_SHORT_WORDS = """
    cm mm km ft kg mg lb lbs mi hr hrs min mins sec secs ms rad mph kmh mL ml Hz eV keV MeV GeV nm pm am kPa Pa kJ kW AU
    pc kpc Mpc yr yrs oz yd usd USD no yes odd pct day the red not all is sq for any per one two six ten th st nd rd
    The So so of to our are get set mol
"""
GREEK, FUNCTIONS = frozenset(_GREEK.split()), tuple(_FUNCTIONS.split())
_COMMANDS, _SHORT = {*GREEK, *FUNCTIONS, "pi"}, frozenset(_SHORT_WORDS.split())
AND, OR = "\ue001", "\ue002"
_RUNS = re.compile(rf"{_TEXT}|\\([A-Za-z]+)|([^\W\d_]+)")
_LETTERS = re.compile(r"(?<!\\)(?<![^\W\d_])[^\W\d_]+")
_QUOTED = r'("[^"]*"(?:\^\{?-?\d\}?)?)'
_QUANTIFIER = (
    r',?\s*"for (?:all|every|any)(?: (?:real|complex|rational|positive|non.?negative|natural|integers?|numbers?))*"'
    rf"\s*[a-z]?\s*(?:\\?in\s*(?:\\mathbb\s*\{{\s*[A-Z]\s*\}}(?:[\^_]\S)?|[A-Z])\s*)?(?=[,;{AND}{OR}]|$)"
)
_LEADING = r"""
    the answers? is are final finally equals equal\ to approximately about values? so thus hence therefore then it
    this we there our here follows that gives yields get have obtain find conclude must be need(?:ed)? condition
    solutions? set range domain interval inequality required desired requested correct maximum minimum smallest
    largest greatest possible results? total number of ways area volume perimeter length width height radius
    distance time speed cost price age sum product probability point equation exactly satisf(?:y|ies) holds consequently
    conclusion conclude one\ gets which means implies parameter [^\W\d_](?=\ \w)
"""
_LED = "|".join(_LEADING.replace("\\ ", "\ue006").split()).replace("\ue006", " ")
# "the value of" x, where x = 5 or a relation follows
_LED_OF = r'(?<=of" )(?:\\?[A-Za-z]+\s*=\s*(?=.*[<>=]|.*\\(?:le|ge|ne|in)(?![A-Za-z]))|(?=\\?[A-Za-z]+\s*=))'
_LEAD = rf'^(?:(?:(?:It|We|In|Our)\s+(?="))?"(?:(?:{_LED})\b\s*)+"\s*,?\s*)+(?:(?<!of")(?<!of" )|{_LED_OF}):?(?=.)'
_BRACED = r"(?:[^{}=<>,]|\{[^{}]*\}){1,80}"
_BEFORE_WORDS = [
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\\(?:mathbf|boldsymbol|bm|mathit|mathcal|mathscr|mathfrak|pmb)\s*\{([^{}]*)\}|\b(?:np|math)\.", r"\1"),
        (r"\\begin\s*\{array\}\s*\{[lcr| ]*\}", r"\\begin{matrix}"),
        (r"\\(begin|end)\s*\{(?:([pbBvV])?(?:small)?matrix|array)\}", r"\\\1{\2" + "\ue003}"),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),
        (r"\{?([^{}]{1,80})\\choose(?![A-Za-z])([^{}]{1,80})\}?", r"\\binom{\1}{\2}"),
        (r"(?<=[])])\s*U\s*(?=[(\[])", r"\\cup "),
        (rf"\{{({_BRACED})\\over(?![A-Za-z])({_BRACED})\}}", r"\\frac{\1}{\2}"),
        (rf"(^|=)({_BRACED})\\over(?![A-Za-z])({_BRACED})$", r"\1\\frac{\2}{\3}"),
        (r"(^|\\cup|\\in)\s*\](?=[^\[\]]*,)", r"\1 ("),  # ]0, 1[
        (r"\[(?=\s*(?:$|\\cup))", ")"),
        (r"(?<=[\d)}\]])\s*(and|or)(?=[A-Za-z](?:\([A-Za-z]\))?\s*=)", r" \1 "),  # x = 2orx = 3
        (r"\\(?:wedge|land)(?![A-Za-z])", AND),
        (r"\\(?:vee|lor)(?![A-Za-z])", OR),
        (r"\\AA(?![A-Za-z])|\\mathring\s*\{\s*A\s*\}", "\u00c5"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset "),
    )
]
_AFTER_WORDS = [
    (re.compile(pattern, re.S | re.I), to)
    for pattern, to in (
        (r'_\s*(?:\{\s*)?"([^"]*)"\s*\}?', r"_{\1}"),
        (r'(?<=\d)\s*(?:\^\s*)?(?:\{\s*)?"(?:st|nd|rd|th)"\s*\}?$', ""),
        (r"^[a-z]\s*(?=\([^()\[\]]*\]$|\[[^()\[\]]*\)$)", ""),  # t(0,4]
        (r"^(?-i:[APQM])\s*(?=\([^()\[\],]*,[^()\[\],]*\)$)", ""),  # the point P(3, 4)
        (rf"\\frac\s*\{{\s*{_QUOTED}\s*\}}\s*\{{\s*{_QUOTED}\s*\}}", r"\1/\2"),
        (r'(?<=[\d}])(\s*)(?:\\mu\s*"|"?' + "\u03bc)", '\\1"\u03bc'),
        (r'(?<=[\d} ])"?([kM]?)"?\s*(?-i:\\Omega)\s*$', r'"\1Omega"'),
        (r'\\usd\s*([\d.,\ue000]+)\s*"?k"?(?![A-Za-z])', r'\1 "thousand dollars"'),
        (r"\\usd\s*([\d.,\ue000]+)", r'\1 "dollars"'),
        (_QUANTIFIER, ""),  # f(x) = 2x for all real x; but not "for all even x"
        (r'(?<=[A-Za-z\d)}])\s*"(?:is|are|equals|is equal to)"', "="),
        (_LEAD, ""),
        (r'^"(?:option|choice)[\s"]*(?-i:(\(?)"?([A-J]))"?(\)?)"?$', r"\1\2\3"),
        (r'(?<=\d)\s*(?-i:([gmsJNCVWKL]))\s*/\s*"(?=(?-i:[cdkm]?m|m?[Ll]|k?mol|k?g|min|hr)")', r' "\1"/"'),  # 5 g/cm^3
        (r"^([+-]?[\d.]+\s*\\deg)\s*(?-i:([CF]))$", r'\1 "\2"'),
        (r'(?<=[\dA-F])\s*\(?"(?:in )?base"\s*(\d+)\)?$', r"_{\1}"),
        (r'^"(?:negative|minus)"\s*(?=[\d.])', "-"),
        (r'^"(?:no (?:real )?solutions?|none|empty set)"$', r"\\emptyset "),
        (r'^(?:"all real(?: numbers?)?s?"\s*[a-z]?|"real numbers?"|\\mathbb\s*\{R\})$', r"(-\\infty ,\\infty )"),
    )
]


def _word(word: str, always: bool) -> str:
    if word in ("and", "or"):
        return AND if word == "and" else OR
    if word in ("infinity", "Infinity", "inf"):
        return r"\infty "
    if word in _COMMANDS or word in ("sqrt", "frac"):
        return f"\\{word} "
    return f'"{word}"' if always or len(word) > 3 or word in _SHORT or not word.isascii() else word


def _run(m: re.Match[str]) -> str:
    """Letters as words in quotes; a command that letters stick to, as \\piG, apart from them."""
    if name := m[2]:
        known = next((n for n in range(len(name), 1, -1) if name[:n] in _COMMANDS), 0)
        return f"\\{name[:known]} {name[known:]}" if known else m[0]
    return _word(m[3], False) if m[3] else _LETTERS.sub(lambda w: _word(w[0], True), m[1])


def marked(text: str) -> str:
    r"""A cleaned text whose words are in double quotes, 5 "square cm", and whose "and" and "or" are one sign."""
    text = clean(text).replace('"', "")
    text = text if r"\pm" in text else text.replace(r"\mp", r"\pm")  # beside \pm it is the other sign
    for pattern, to in _BEFORE_WORDS:
        text = pattern.sub(to, text)
    text = re.sub(r'(?<=[^\W\d_])"[\s-]*"(?=[^\W\d_])', " ", _RUNS.sub(_run, text))
    for pattern, to in _AFTER_WORDS:
        text = pattern.sub(to, text)
    return text

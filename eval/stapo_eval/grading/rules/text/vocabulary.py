r"""Tables: what the signs, commands and words of an answer mean.

`SIGNS` gives each sign, escaped sign and command the kind and the value of its token (see `tokens.Token`).
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


def pairs(text: str) -> dict[str, str]:
    """ "a:b c" as {"a": "b", "c": "c"}."""
    return {name: value or name for name, _, value in (pair.partition(":") for pair in text.split())}


def _signs(kind: str, text: str) -> dict[str, tuple[str, str]]:
    return {name: (kind, value) for name, value in pairs(text).items()}


FUNCTIONS = pairs("""
    sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arsinh arcosh artanh ln log exp lg gcd lcm
    max min
""")
ALIASES = pairs("""
    asin:arcsin acos:arccos atan:arctan arcsinh:arsinh arccosh:arcosh arctanh:artanh tg:tan ctg:cot cosec:csc abs floor
    ceil factorial binomial cbrt
""")
GREEK = pairs("""
    alpha beta gamma delta epsilon varepsilon:epsilon zeta eta theta vartheta:theta iota kappa lambda mu nu xi rho
    varrho:rho sigma tau upsilon phi varphi:phi chi psi omega
    Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega
    hbar ell odot oplus angle triangle star ast nabla partial aleph bullet prime
""")
ACCENTS = words("dot ddot hat bar tilde vec overline underline widehat overrightarrow")
SIGNS: dict[str, tuple[str, str]] = {
    **_signs("sym", "pi imath:i jmath:j"),
    **{name: ("sym", letter) for name, letter in GREEK.items()},
    **{name: ("fn", function) for name, function in (FUNCTIONS | ALIASES).items()},
    **_signs("op", "+ - * / ^ _ ! times:* cdot:* ast:* div:/ \\_:_"),
    **_signs("rel", "= < > le:<= ge:>= lt:< gt:> ne:!= equiv:= in approx sim:~ cong:~ perp:~ parallel:~"),
    **_signs("rel", "to rightarrow:to Rightarrow:to implies:to mapsto:to mod pmod:mod bmod:mod"),
    **_signs("open", "( [ \\{:set lbrace:set lbrack:[ lparen:( langle:< lfloor:floor lceil:ceil"),
    **_signs("close", "):( ]:[ \\}:set rbrace:set rbrack:[ rparen:( rangle:< rfloor:floor rceil:ceil"),
    **_signs("bar", "| \\|:| Vert:| vert:| mid:| lvert:| rvert:| lVert:| rVert:|"),
    **_signs("sep", ", ;:, \ue000:, wedge:and land:and vee:or lor:or"),
    **_signs("cur", "usd:dollar euro pounds:pound pound yen"),
    **_signs("macro", "frac binom sqrt begin end choose over"),
    **{name: ("macro", "accent:" + name) for name in ACCENTS},
    **_signs("pm", "pm mp"),
    **_signs("pct", "% \\%:%"),
    **_signs("amp", "& \\&:&"),
    **_signs("prime", "' prime:'"),
    ":": ("colon", ":"),
    "\\\\": ("row", ""),
    "deg": ("deg", ""),
    "infty": ("inf", ""),
    **dict.fromkeys(("cup", "bigcup"), ("cup", "")),
    **dict.fromkeys(("setminus", "backslash"), ("minus_set", "")),
    **dict.fromkeys(("ldots", "dots", "cdots"), ("dots", "")),
}
TEXT_FONTS = words("""
    text textbf textit textrm textsf texttt textnormal textup mbox hbox mathrm mathsf operatorname emph
""")
MATH_FONTS = words("boxed fbox mathbf boldsymbol bm mathit mathcal mathscr mathfrak pmb")
VECTORS = (r"\vec", r"\hat", r"\mathbf", r"\boldsymbol", r"\bm", r"\pmb", r"\overrightarrow", r"\widehat")
# commands that math-verify reads and this grader does not
LIBRARY = words("""
    sum prod int iint iiint oint lim limsup liminf sup inf det operatorname cap bigcap subset subseteq notin forall
    exists mathop overbrace underbrace Re Im arg tr rank deg dim ker hom Pr substack overset underset stackrel tag
""")
# words without a backslash; "skip" is left out
PLAIN = {
    "pi": ("sym", "pi"), "inf": ("inf", ""), "infinity": ("inf", ""), "sqrt": ("macro", "sqrt"),
    "and": ("sep", "and"), "or": ("sep", "or"), "percent": ("pct", "%"), "union": ("cup", ""),
    "np": ("skip", ""), "math": ("skip", ""),
}  # fmt: skip
# units that are plain letters of an answer; single letters and "in" are left to be variables
PLAIN_UNITS = words("""
    cm mm km ft kg mg lb lbs mi hr hrs min mins sec secs ms cents rad mph kmh mL ml Hz eV keV MeV GeV nm pm am kPa Pa kJ
    kW AU pc kpc Mpc yr yrs oz yd usd USD
""")
# words of two and three letters that answers consist of or end in
SHORT_WORDS = words("""
    no yes odd pct day the red not all is sq deg for any one two six ten forty fifth sixth first most
""")
ORDINALS = words("st nd rd th")

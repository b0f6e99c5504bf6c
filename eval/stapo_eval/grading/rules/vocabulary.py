"""What commands and words of an answer mean."""

from __future__ import annotations

FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "arcsin", "arccos", "arctan", "ln",
    "log", "exp", "lg", "gcd", "lcm", "max", "min", "arsinh", "arcosh", "artanh", "arccot",
}  # fmt: skip
ALIASES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "arcsinh": "arsinh", "arccosh": "arcosh",
    "arctanh": "artanh", "tg": "tan", "ctg": "cot", "cosec": "csc", "abs": "abs", "floor": "floor", "ceil": "ceil",
    "factorial": "factorial", "binomial": "binomial", "cbrt": "cbrt",
}  # fmt: skip
GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "varrho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "hbar", "ell", "odot",
    "oplus", "angle", "triangle", "star", "ast", "nabla", "partial", "aleph", "bullet", "prime",
}  # fmt: skip
SAME_LETTER = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho"}
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "lt": "<", "gt": ">", "ne": "!=", "approx": "approx",
    "sim": "~", "equiv": "=", "in": "in", "to": "to", "rightarrow": "to", "Rightarrow": "to", "implies": "to",
    "mapsto": "to", "cong": "~", "perp": "~", "parallel": "~", "mod": "mod", "pmod": "mod", "bmod": "mod",
}  # fmt: skip
OPENING = {"(": "(", "[": "[", "{": "{", r"\{": "set", "langle": "<", "lfloor": "floor", "lceil": "ceil",
            "lbrace": "set", "lbrack": "[", "lparen": "(", "lvert": "|", "lVert": "||"}  # fmt: skip
CLOSING = {")": "(", "]": "[", "}": "{", r"\}": "set", "rangle": "<", "rfloor": "floor", "rceil": "ceil",
            "rbrace": "set", "rbrack": "[", "rparen": "(", "rvert": "|", "rVert": "||"}  # fmt: skip
OPERATORS = {"times": "*", "cdot": "*", "ast": "*", "div": "/", "+": "+", "-": "-", "*": "*", "/": "/",
              "^": "^", "_": "_", "!": "!"}  # fmt: skip
TEXT_FONTS = {"text", "textbf", "textit", "textrm", "textsf", "texttt", "mbox", "hbox", "mathrm", "operatorname",
               "mathsf", "textnormal", "emph", "textup"}  # fmt: skip
MATH_FONTS = {"boxed", "fbox", "mathbf", "boldsymbol", "bm", "mathit", "mathcal", "mathscr", "mathfrak", "pmb"}
CURRENCY = {"usd": "dollar", "euro": "euro", "pounds": "pound", "yen": "yen", "pound": "pound"}
ACCENTS = {"dot", "ddot", "hat", "bar", "tilde", "vec", "overline", "underline", "widehat", "overrightarrow"}
VECTORS = (r"\vec", r"\hat", r"\mathbf", r"\boldsymbol", r"\bm", r"\pmb", r"\overrightarrow", r"\widehat")
MACROS = {"frac", "binom", "sqrt", "begin", "end", "choose", "over"}
PLAIN = {"pi": ("sym", "pi"), "inf": ("inf", ""), "infinity": ("inf", ""), "sqrt": ("macro", "sqrt"),
          "and": ("sep", "and"), "or": ("sep", "or"), "percent": ("pct", "%"), "np": ("skip", ""),
          "math": ("skip", ""), "union": ("cup", "")}  # fmt: skip
# units that are plain letters of an answer; single letters and "in" are left to be variables
PLAIN_UNITS = {
    "cm", "mm", "km", "ft", "kg", "mg", "lb", "lbs", "mi", "hr", "hrs", "min", "mins", "sec", "secs", "ms", "cents",
    "rad", "mph", "kmh", "mL", "ml", "Hz", "eV", "keV", "MeV", "GeV", "nm", "pm", "am", "kPa", "Pa", "kJ", "kW", "AU",
    "pc", "kpc", "Mpc", "yr", "yrs", "oz", "yd", "usd", "USD",
}  # fmt: skip
# words of two and three letters that answers consist of or end in
SHORT_WORDS = {
    "no", "yes", "odd", "pct", "day", "the", "red", "not", "all", "is", "sq", "deg", "for", "any", "one", "two", "six",
    "ten", "forty", "fifth", "sixth", "first", "most",
}  # fmt: skip
ORDINALS = {"st", "nd", "rd", "th"}
# commands that math-verify reads and this grader does not
LIBRARY = {
    "sum", "prod", "int", "iint", "iiint", "oint", "lim", "limsup", "liminf", "sup", "inf", "det", "operatorname",
    "cap", "bigcap", "subset", "subseteq", "notin", "forall", "exists", "mathop", "overbrace", "underbrace", "Re", "Im",
    "arg", "tr", "rank", "deg", "dim", "ker", "hom", "Pr", "substack", "overset", "underset", "stackrel", "tag",
}  # fmt: skip

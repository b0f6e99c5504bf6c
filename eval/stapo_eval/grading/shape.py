r"""Is one answer another? The structure is compared here, what is left are single values, and `values` compares those.

Both sides are `text.marked` texts. They are cut at commas, unions, brackets and relation signs; the parts have to agree
in number, brackets, signs, names, units and words. What the gold lacks (a unit, a name) the answer may add; a word that
is no unit it may not. In doubt the answer is no: the judge looks at a no, and nobody looks at a yes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stapo_eval.grading import library
from stapo_eval.grading.text import AND, OR
from stapo_eval.grading.units import QUALIFIERS
from stapo_eval.grading.values import Terms, same_value

_COMMA, _UNION, _COLON = re.compile(f"[,;{AND}{OR}]"), re.compile(r"\\(?:big)?cup(?![A-Za-z])"), re.compile(":")
_ROW, _CELL = re.compile(r"\\\\"), re.compile("&")
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|lt|gt)(?![A-Za-z])|[<>]=?|!=|=")
_SIGNS = {r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "=", r"\equiv": "=", r"\lt": "<", r"\gt": ">"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ABOUT = re.compile(r"\\approx(?![A-Za-z])")
_MOST_ITEMS = 64


@dataclass(frozen=True)
class Items:
    """The members of a list. braces: a set; signs: what sets them apart."""

    members: tuple[str, ...]
    braces: bool
    signs: tuple[str, ...]


def split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The parts of a text between separators outside all brackets, and those separators."""
    parts, signs, depth, since, at = [], [], 0, 0, 0
    while at < len(text):
        if text.startswith((r"\{", r"\begin", r"\}", r"\end"), at):
            depth += 1 if text.startswith((r"\{", r"\begin"), at) else -1
            at += 2
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 and (m := separator.match(text, at)):
            parts.append(text[since:at])
            signs.append(m[0])
            since = at = m.end()
        else:
            at += 1
    return [*parts, text[since:]], signs


def enclosed(text: str) -> tuple[str, str, str]:
    """(bracket, inside, bracket) of a text in brackets; else three empty texts."""
    m = re.fullmatch(r"(\\\{|\(|\[|\{)(.*?)(\\\}|\)|\]|\})", text.strip(), re.S)
    depth = 0
    for c in m[2] if m else ")":
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            return "", "", ""
    return (m[1], m[2], m[3]) if m and depth == 0 else ("", "", "")


def assigned(golds: Sequence[Any], answers: Sequence[Any], same: Callable[[Any, Any], bool | None]) -> bool | None:
    """Whether a one-to-one assignment exists (augmenting paths). None: it depends on pairs that `same` left open."""
    if len(golds) != len(answers):
        return False
    table = [[same(g, a) for a in answers] for g in golds]

    def assigns(*allowed: bool | None) -> bool:
        owner: dict[int, int] = {}

        def place(row: int, seen: set[int]) -> bool:
            for column, result in enumerate(table[row]):
                if result in allowed and column not in seen:
                    seen.add(column)
                    if column not in owner or place(owner[column], seen):
                        owner[column] = row
                        return True
            return False

        return all(place(row, set()) for row in range(len(table)))

    return True if assigns(True) else None if assigns(True, None) else False


_GROUPS = re.compile(r"(?:^|[^\d.,])\d{1,3}(?:,\d{3})*$")


def items(text: str, *, merge: bool = True) -> Items:
    """The members of a list or set, a plus-minus sign as two; one for any other text.

    merge: digits in groups of three at commas are one number.
    """
    left, inside, _ = enclosed(text)
    while left == "{":
        text = inside
        left, inside, _ = enclosed(text)
    if m := re.fullmatch(r"[^=,;()]*(?:=|\\in)\s*(\\\{[^=]*\\\})", text, re.S):  # S = {1, 2}
        left, inside, _ = enclosed(m[1])
    if left == r"\{":
        inner = items(inside, merge=merge)
        return Items(inner.members, True, inner.signs)
    (first, *parts), signs = split(text, _COMMA)
    kept, between = [first], []
    for part, sign in zip(parts, signs, strict=True):
        if merge and sign == "," and _GROUPS.search(kept[-1]) and re.match(r"\d{3}(?!\d)", part):
            kept[-1] += sign + part
        else:
            kept.append(part)
            between.append(sign)
    members = [x for part in kept if part.strip() for x in _plus_and_minus(part.strip())]
    return Items(tuple(members), False, tuple(between))


def _plus_and_minus(text: str) -> list[str]:
    """The variants of an item with plus-minus signs."""
    pieces = re.split(r"\\pm(?![A-Za-z])", text)
    if len(pieces) > 4:
        return [text]
    return ["".join(map("".join, zip(pieces, (*c, ""), strict=True))) for c in product("+-", repeat=len(pieces) - 1)]


def same(gold: str, answer: str, terms: Terms) -> bool:
    """Whether the answer is the gold; both are texts as `marked` makes them."""
    merges = [[True, False] if "," in text else [True] for text in (gold, answer)]
    return any(_same(gold, answer, terms, *merge) for merge in product(*merges))


def same_lists(golds: Sequence[str], answer: str, terms: Terms) -> bool:
    """Whether the members of a list are those of a gold list."""
    merges = (True, False)
    members = [tuple(x for g in golds for x in items(g, merge=merge).members) for merge in merges]
    theirs = [items(answer, merge=merge) for merge in merges]
    pairs = product(dict.fromkeys(members), dict.fromkeys(theirs))
    return any(_lists("", answer, Items(m, False, ()), x, terms) for m, x in pairs)


def _bare(text: str) -> str:
    return re.sub(r'(?<!\d)\s|\s(?!\d)|"|\.$', "", text)  # 1 2 is not 12


def _same(gold: str, answer: str, terms: Terms, merge_gold: bool = True, merge_answer: bool = True) -> bool:
    gold, answer = (_built(_exact_part(x.strip())) for x in (gold, answer))
    if not answer or not gold:
        return False
    if _bare(gold) == _bare(answer):
        return True
    g, a = items(gold, merge=merge_gold), items(answer, merge=merge_answer)
    if not g.members or not a.members:
        return False
    if max(len(g.members), len(a.members)) > 1 or g.braces != a.braces:
        return _lists(gold, answer, g, a, terms)
    gold, answer = g.members[0], a.members[0]
    if _cut(gold)[1] or _cut(answer)[1]:
        return _relations(gold, answer, terms)
    unions = split(gold, _UNION)[0], split(answer, _UNION)[0]
    if max(map(len, unions)) > 1:
        return bool(assigned(*unions, lambda x, y: _same(x, y, terms)))
    if _rows(gold) or _rows(answer):
        return _matrices(_rows(gold), _rows(answer), gold, answer, terms)
    tuples = _parts(gold), _parts(answer)
    if max(map(len, tuples)) > 1 or any(e[0] == "[" and e[2] == "]" for e in (enclosed(gold), enclosed(answer))):
        # brackets say whether the ends of an interval belong to it; longer ones are vectors, however they are bracketed
        alike = _brackets(gold) == _brackets(answer) or min(map(len, tuples)) > 2
        return alike and _each(*tuples, terms)
    ratios = split(gold, _COLON)[0], split(answer, _COLON)[0]
    return _ratios(*ratios, terms) if max(map(len, ratios)) > 1 else same_value(gold, answer, terms)


def _exact_part(text: str) -> str:
    r"""The text without what is only about equal, 6.28 of 2\pi \approx 6.28, and without a sign before it, = 7."""
    exact, *about = _ABOUT.split(text, maxsplit=1)
    if about and exact.strip() and ("=" in exact or not _is_name(exact)):
        return exact
    return re.sub(r"^\s*(?:=|\\approx(?![A-Za-z]))\s*", "", text)


def _parts(text: str) -> list[str]:
    return split(enclosed(text)[1], _COMMA)[0]


def _brackets(text: str) -> str:
    left, _, right = enclosed(text)
    return left + right


def _each(golds: Sequence[str], answers: Sequence[str], terms: Terms) -> bool:
    return len(golds) == len(answers) and all(_same(g, a, terms) for g, a in zip(golds, answers, strict=True))


def _rows(text: str) -> list[list[str]]:
    m = re.fullmatch(r"\(?\\begin\{([pb]?)\ue003\}(.*)\\end\{\1\ue003\}\)?", text.strip(), re.S)
    return [split(row, _CELL)[0] for row in split(m[2], _ROW)[0] if row.strip()] if m else []


def _matrices(golds: list[list[str]], answers: list[list[str]], gold: str, answer: str, terms: Terms) -> bool:
    """Two matrices, or a matrix of one row or column and a vector."""
    cells = [[cell for row in rows for cell in row] for rows in (golds, answers)]
    if golds and answers:
        return list(map(len, golds)) == list(map(len, answers)) and _each(cells[0], cells[1], terms)
    rows = golds or answers
    if _brackets(answer if golds else gold) != "()" or 1 not in (len(rows), max(map(len, rows))):
        return False
    return _each(cells[0] or _parts(gold), cells[1] or _parts(answer), terms)


_OWNER = re.compile(r'^\s*"[A-Z][a-z]+"\s*:|^\s*([a-z])\s*:(?=\s*[-\d\\(])')  # Ann: 7, Paul: 14; x: 7, y: 14


def _lists(gold: str, answer: str, g: Items, a: Items, terms: Terms) -> bool:
    golds, answers = list(g.members), list(a.members)
    if max(len(golds), len(answers)) > _MOST_ITEMS:
        return False
    if len(golds) > 1:
        answers = [_OWNER.sub(lambda m: m[1] + "=" if m[1] else "", x) for x in answers]
    unions = _one_range(g, a), _one_range(a, g)
    if any(unions):
        return _same(unions[0] or gold, unions[1] or answer, terms)
    if g.braces != a.braces and r"\emptyset" in map(_bare, (*golds, *answers)):
        return False  # the set that holds the empty set is not empty
    if len(golds) == 1 and not a.braces:
        if _brackets(_unnamed(gold)) == "()":  # "2, 3" for the point (2, 3)
            return _coordinates(a) and _each(_parts(_unnamed(gold)), [_unnamed(x) for x in answers], terms)
        if _bare(answers[0]).lower() == "yes" and len(answers) == 2 and a.signs == (",",):  # "Yes, n = 4"
            return '"' not in gold and "%" not in answer and _same(gold, answers[1], terms)
        if set(a.signs) == {OR}:  # one answer in several ways
            return all(_same(gold, x, terms) for x in answers)
    if len(answers) == 1 and not g.braces and _brackets(_unnamed(answer)) == "()":
        parts = _parts(_unnamed(answer))  # but a point or an interval is no list of two
        alike = len(parts) > 2 or bool(_names(golds))
        return alike and _coordinates(g) and _each([_unnamed(x) for x in golds], parts, terms)
    if (OR in g.signs) != (OR in a.signs) and any(set(_cut(x)[1]) - {"="} for x in (*golds, *answers)):
        return False  # x < 2 or y > 3
    for named in (_names, _worded):
        names = named(golds), named(answers)
        if not all(names) and max(map(len, names)) > 1:  # bare values of different names count in their order
            return not g.braces and not a.braces and _each(golds, answers, terms)
    if g.braces or a.braces:
        golds, answers = (list({_bare(x): x for x in side}.values()) for side in (golds, answers))
    elif terms.ordered:
        return _each(golds, answers, terms)
    return bool(assigned(golds, answers, lambda x, y: _same(x, y, terms)))


def _names(members: Sequence[str]) -> set[str]:
    """The names of what equations say; x_1 and x_2 are the same name."""
    cuts = map(_cut, members)
    return {_bare(sides[0]).partition("_")[0] for sides, signs in cuts if signs == ["="]}


def _worded(members: Sequence[str]) -> set[str]:
    """The words of each: 7 "red", 5 "blue"."""
    return {"".join(re.findall(r'"([^"]*)"', x)) for x in members} - {""}


def _coordinates(listed: Items) -> bool:
    """Whether the members may be a point's: no "or", and names, if any, each once and in the order of the alphabet."""
    names = [_bare(_cut(x)[0][0]) for x in listed.members if _cut(x)[1]]
    return OR not in listed.signs and names == sorted(set(names))


def _cut(text: str) -> tuple[list[str], list[str]]:
    """The sides of a relation and its signs."""
    sides, signs = split(text, _RELATION)
    return [x.strip() for x in sides], [_SIGNS.get(s, s) for s in signs]


_VARIABLE = re.compile(rf"(?:(?:{library.LETTER}(?:_(?:\{{?\w+\}}?))?|\\angle[A-Z]{{1,3}}|[A-Z]{{2,3}})'*(?:\(\w\))?)?")


def _range(text: str) -> tuple[str, str] | None:
    r"""(variable, interval) of `1 < x \le 2` or `x > 5`, and of `x \in [1, 2)`; else None."""
    sides, signs = _cut(text)
    if signs == [r"\in"]:
        return _bare(sides[0]), sides[1]
    if signs and set(signs) <= {">", ">="}:
        sides, signs = sides[::-1], [_FLIPPED[s] for s in signs[::-1]]
    if len(signs) not in (1, 2) or not set(signs) <= {"<", "<="}:
        return None
    if len(signs) == 1 and _VARIABLE.fullmatch(_bare(sides[0])):
        sides, signs = [r"-\infty ", *sides], ["<", *signs]
    elif len(signs) == 1:
        sides, signs = [*sides, r"\infty "], [*signs, "<"]
    left, right = ("[" if signs[0] == "<=" else "("), ("]" if signs[1] == "<=" else ")")
    name = _bare(sides[1])
    return (name, f"{left}{sides[0]},{sides[2]}{right}") if _VARIABLE.fullmatch(name) else None


def _one_range(listed: Items, other: Items) -> str:
    """Ranges and values of one variable between which there is "or" as a union; else "".

    Beside a union "x < 1, x > 2" is one too; beside another single text two bounds are the range between them.
    """
    spans = [r for r in map(_range_or_value, listed.members) if r]
    texts, signs = [text for _, text in spans], set(listed.signs)
    if len(spans) < len(listed.members) or len({name for name, _ in spans}) > 1 or not any(map(_range, listed.members)):
        return ""
    if signs == {OR}:
        return r"\cup ".join(texts)
    if len(texts) != 2 or len(other.members) != 1 or OR in signs:
        return ""
    above, below = sorted(texts, key=lambda x: x.startswith(r"(-\infty"))
    if not above.endswith(r"\infty )") or not below.startswith(r"(-\infty"):
        return ""
    if _UNION.search(other.members[0]):
        return rf"{below}\cup {above}" if AND not in signs else ""
    return f"{above[0]}{_parts(above)[0]},{_parts(below)[1]}{below[-1]}"


def _range_or_value(text: str) -> tuple[str, str] | None:
    sides, signs = _cut(text)
    return (_bare(sides[0]), rf"\{{{sides[1]}\}}") if signs == ["="] else _range(text)


_BUILT = re.compile(
    rf"(?:[A-Z]\s*(?:\\c[au]p\s*[A-Z]\s*)?=)?\s*\\\{{\s*({library.LETTER})\s*(?:\\in\s*\\mathbb\s*\{{\s*R\s*\}}\s*)?"
    r"(?:[|:]|\\(?:mid|vert|colon)(?![A-Za-z]))(.*)\\\}",
    re.S,
)


def _built(text: str) -> str:
    r"""The range that is \{x | 1 < x < 2\}; the set of another condition with one sign for "such that"."""
    if not (m := _BUILT.fullmatch(text)):
        return text
    listed = items(m[2])
    spans = [r for r in map(_range, listed.members) if r and r[0] == m[1].strip()]
    alone = spans[0][1] if len(spans) == len(listed.members) == 1 else ""
    return alone or (_one_range(listed, Items(("",), False, ())) if spans else "") or rf"\{{{m[1]}|{m[2]}\}}"


# what does not count in a name: words, indices, the number that it is a function of, the sign of an inverse, a star
_INDEX = re.compile(
    r'"[^"]*"|_\s*(?:\{[^{}]*\}|\w)|\(\d+\)|(?<=[A-Za-z])\d|\^\{?-1\}?(?=\()|\^\s*\{?\s*(?:\*|\\ast|\\star)\s*\}?'
)
_NAMING = re.compile(
    rf"(?:{library.LETTER}|\\(?:#|(?:dot|ddot|hat|bar|vec|overline|angle|triangle|frac|min|max)(?![A-Za-z]))"
    r"|[-+*/:()\[\],{}'\s|.])*"
)
_POINT = re.compile(r"\((?:[xyzXYZ](?:_\{?\d\}?)?(?:,(?!\))|(?=\)))){2,}\)")
_COMPUTED = re.compile(r"\s*\\(?:(?:lim|sum|prod|i{0,2}int|oint|det)(?![A-Za-z])|begin\{v)")
_SIGNED = re.compile(r"-|\|(?:[a-z]|\\[a-z]+)\|$")  # -x, |x|: not x itself
_MARK = re.compile(r"(?<=[pqxyPQXY])\s*\^\s*\{?\s*[sdSD]\s*\}?")  # of supply and demand
_LABEL_WORDS = """
    area volume perimeter circumference length width height radius diameter distance time speed cost price age mass
    value sum product total probability answer result number ways of the
"""
_LABELS = frozenset(_LABEL_WORDS.split())


def _is_name(side: str) -> bool:
    """Whether the left side of an equation only says what the right side is: no number, function, modulus, minus x."""
    words = re.findall(r"[^\W\d_]+", " ".join(re.findall(r'"([^"]*)"', side)))
    name = _bare(side)
    if _COMPUTED.match(side):
        return True
    if _POINT.fullmatch(name):  # (y, x) = (-1, 6) is the point (6, -1)
        names = name[1:-1].split(",")
        return names == sorted(set(names), key=str.lower)
    named = name not in ("e", "i", "") and not _SIGNED.match(name) and _NAMING.fullmatch(_INDEX.sub(" ", side))
    return bool(named) and not any(w.lower() in QUALIFIERS for w in words)


def _unnamed(text: str) -> str:
    """The last side of x = ... = 5; other texts as they are."""
    sides, signs = _cut(text)
    if len(sides) == 2 and not library.has_letters(sides[0]) and _is_name(sides[1]):
        sides = sides[::-1]  # 12 = x
    name = _MARK.sub("", sides[0])
    if set(signs) != {"="} or (name != sides[0] and not re.search(library.LETTER, sides[-1])):
        return text  # a bare value behind x^s is what the power is
    return sides[-1] if _is_name(name) else text


_BEHIND = re.compile(r'\\?%\s*$|"[^"]*"\s*$')


def _relations(gold: str, answer: str, terms: Terms) -> bool:
    (golds, signs_g), (answers, signs_a) = _cut(gold), _cut(answer)
    g, a = _range(gold), _range(answer)
    if g or a:
        if g and a and g[0] != a[0] and g[0] and a[0]:
            return False
        return _same(g[1] if g else _unnamed(gold), a[1] if a else _unnamed(answer), terms)
    if set(signs_g) == {"="} and set(signs_a) == {"="}:
        return _equations(golds, answers, terms)
    if signs_g and signs_a:
        if signs_a != signs_g:
            answers, signs_a = answers[::-1], [_FLIPPED.get(s, s) for s in signs_a[::-1]]
        return signs_a == signs_g and _each(golds, answers, terms)
    if set(signs_a) == {"="} and not any(library.has_letters(_BEHIND.sub("", x)) for x in answers):
        return all(_same(gold, x, terms) for x in answers)  # a computed chain: 2^{10} = 1024
    bare = _unnamed(gold), _unnamed(answer)
    return bare != (gold, answer) and not any(_cut(x)[1] for x in bare) and _same(*bare, terms)


def _equations(golds: list[str], answers: list[str], terms: Terms) -> bool:
    if len(golds) > 2 and len(golds) != len(answers):
        return False  # x = y = 1 says more than x = 1
    ends = [(_bare(x[0]), _bare(x[-1])) for x in (golds, answers)]
    if ends[0][0] == ends[1][0] and _same(golds[-1], answers[-1], terms):
        return True
    f, h = (re.fullmatch(r"([A-Za-z])\(([A-Za-z])\)", name) for name, _ in ends)
    if f and h and f[1] == h[1] and f[2] != h[2]:  # f(n) = ..., f(x) = ...
        return _same(re.sub(rf"(?<![A-Za-z\\]){f[2]}(?![A-Za-z])", h[2], golds[-1]), answers[-1], terms)
    if '"' in "".join(golds + answers):
        return ends[0] == ends[1][::-1]
    return library.proportional(*(f"({x[0]})-({x[-1]})" for x in (golds, answers)))


def _ratios(golds: list[str], answers: list[str], terms: Terms) -> bool:
    """The parts of a ratio or a time of day in their order; a label before a value ("Area": 5)."""
    if len(golds) == len(answers):
        ends = {re.sub(r'"(?:am|pm)"$', "", side[-1].strip()).strip() for side in (golds, answers)}
        return (len(ends) == 1 or '"' not in "".join(golds + answers)) and _each(golds, answers, terms)
    *label, value = answers
    words = [w for w in re.findall(r"[^\W\d_]+", label[0]) if len(w) > 1 and not w.isupper()] if label else []
    named = len(golds) == len(label) == 1 and '"' in label[0] and {w.lower() for w in words} <= _LABELS
    return bool(named) and _same(golds[0], value, terms)


def has_parts(gold: str) -> bool:
    """Whether a gold is a point, an interval with two finite bounds, or a union."""
    bounded = any(len(_parts(x)) > 1 for x in (gold, *items(gold).members))
    return (bounded and r"\infty" not in gold) or len(split(gold, _UNION)[0]) > 1


def are_parts(boxes: Sequence[str]) -> bool:
    """Whether all are equations of a single value, or all are ranges."""
    cuts = [_cut(b) for b in boxes]
    return all(set(s) == {"="} and len(items(x[-1]).members) == 1 for x, s in cuts) or all(map(_range, boxes))

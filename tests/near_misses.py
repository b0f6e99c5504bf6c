r"""Pairs to grade: labelled cases, golds in their variants, and wrong answers with one thing changed in a gold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stapo_eval.grading.rules import Gold, Options
from stapo_results.benchmarks import load, read_jsonl

CASES = read_jsonl(Path(__file__).parent / "data" / "grader_cases.jsonl")
PAPER = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


def gold_of(case: dict) -> Gold:
    return tuple(case["gold"]) if isinstance(case["gold"], list) else case["gold"]


def options_of(case: dict) -> Options:
    return Options(**{k: case[k] for k in ("unordered", "tolerance", "unit", "ordered") if k in case})


def benchmark_golds(data_dir: str | Path) -> Iterator[tuple[str, Gold, Options]]:
    for name in PAPER:
        benchmark = load(name, data_dir)
        for p in benchmark.problems:
            yield p.id, p.answer, Options(benchmark.spec.unordered, benchmark.spec.tolerance, p.unit)


def variants(gold: Gold, unit: str) -> list[str]:
    """A gold as an answer: as it is, boxed, in dollars, with its unit, reordered."""
    whole = gold if isinstance(gold, str) else ", ".join(gold)
    out = [whole, f"\\boxed{{{whole}}}", f"${whole}$", f"\\left.{whole}\\right.", whole + "."]
    if not isinstance(gold, str):
        out += [", ".join(reversed(gold)), r" \text{ and } ".join(gold), "; ".join(gold)]
        out += [f"\\{{{', '.join(gold)}\\}}"] if len(set(gold)) == len(gold) else []
    if unit:
        bare = unit.strip("$")
        out += [whole + bare, f"{whole} {bare}", f"${whole}$ ${bare}$"]
        out += [f"{whole}\\text{{ {bare}}}", f"{whole}\\mathrm{{~{bare}}}"] if bare[0] not in "^%" else []
    return out


_DIGIT = re.compile(r"\d")
_SIGN = re.compile(r"(?<=[\w}) ])\s*([+-])\s*(?=[\w\\(])")
_EXPONENT = re.compile(r"\^(?:\{(\d+)\}|(\d)(?!\d))")
_PAIR = re.compile(r"^\\?(?:left)?\s*([(\[])(.+),(.+?)(?:\\right)?\s*([)\]])$")
_SWAPS = (
    (r"\sin", r"\cos"), (r"\cos", r"\sin"), (r"\cup", r"\cap"), (r"\lfloor", r"\lceil"), (r"\sqrt{", "{"),
    (r"\pi", ""), (r"\ln", r"\exp"), ("e^{-", "e^{"), (r"\binom", r"\frac"), ("<", ">"), (r"\infty", "7"),
    (r"\ge ", r"\le "), (r"\geqslant", r"\leqslant"), ("east", "west"), ("even", "odd"), ("Evelyn", "Carla"),
)  # fmt: skip
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?|-?\\d?frac\s*\{?\d+\}?\s*\{?\d+\}?")
# answers to which "+ 1" or a minus sign in front does not make another answer
_NO_SUM = ("=", ",", "text", "_", r"\in", "<", ">", r"\ge", r"\le", r"\cup", "begin", r"\approx")
_UNITS = {"cm": "m", "inches": "feet", "cents": "dollars", "minutes": "seconds", "hours": "minutes", "km": "m"}


def _digits(text: str) -> Iterator[str]:
    for m in _DIGIT.finditer(text):
        if m[0] != "0" or not (m.start() and text[m.start() - 1] in ".0") or text[m.end() :].strip("0.}"):
            yield f"{text[: m.start()]}{(int(m[0]) + 1) % 10 or 1}{text[m.end() :]}"


def _of_one(text: str) -> Iterator[str]:
    yield from _digits(text)
    for m in _SIGN.finditer(text):
        # "m + n = 17" says 17, as "m - n = 17" does
        named = "=" in text[m.end() :] and not _DIGIT.search(text.split("=")[0])
        if not named and r"\pm" not in text and "^{" + text[m.end() : m.end() + 1] not in text:
            yield f"{text[: m.start(1)]}{'-' if m[1] == '+' else '+'}{text[m.end(1) :]}"
    for m in _EXPONENT.finditer(text):
        yield f"{text[: m.start()]}^{{{int(m[1] or m[2]) + 1}}}{text[m.end() :]}"
    for old, new in _SWAPS:
        if old in (r"\sin", r"\cos") and ("45" in text or r"\pi}{4}" in text):
            continue  # equal there
        if old in text and new not in text.split(old)[0]:
            yield text.replace(old, new, 1)
    if m := _PAIR.match(text):
        left, a, b, right = m[1], m[2], m[3], m[4]
        other = {"(": "[", "[": "(", ")": "]", "]": ")"}
        if a.strip() != b.strip() and "," not in a:
            yield f"{left}{b},{a}{right}"
            if "\\infty" not in a:
                yield f"{other[left]}{a},{b}{right}"
            if "\\infty" not in b:
                yield f"{left}{a},{b}{other[right]}"
        yield f"{left}{a},{b},1{right}"
    if _PLAIN.fullmatch(text):
        bare = text.lstrip("-")
        if set(bare) - set("0."):
            yield bare if text.startswith("-") else "-" + bare
            yield text + " + 1"
            yield "2 \\cdot " + bare
            yield text + " \\cdot 10"
            yield text + "..."
            yield f"\\frac{{{text}}}{{3}}"
            yield text + r"\text{ or more}"
            yield f"{text}, {bare}1"
    elif not any(w in text for w in _NO_SUM):
        yield f"{text} + 1" if "%" not in text else f"1{text}"
        if r"\pm" not in text:
            yield f"-({text})" if not any(w in text for w in ("circ", "%", "mbox")) else f"2{text}"
    for unit, other_unit in _UNITS.items():
        if re.search(rf"(?:text|mbox)\s*\{{\s*{unit}\b", text):
            yield text.replace(unit, other_unit, 1)


def near_misses(gold: Gold) -> Iterator[str]:
    """Wrong answers to a gold; of a list also those with an item too few, too many, or changed."""
    if isinstance(gold, str):
        yield from _of_one(gold)
        return
    yield ", ".join(gold[:-1]) if len(set(gold)) > 1 or len(gold) > 2 else gold[0]
    yield ", ".join([*gold, "12345"])
    for i, item in enumerate(gold):
        for wrong in _of_one(item):
            changed = [*gold[:i], wrong, *gold[i + 1 :]]
            if sorted(x.replace(" ", "") for x in changed) != sorted(x.replace(" ", "") for x in gold):
                yield ", ".join(changed)

"""Rule grading on labelled cases (tests/data/grader_cases.jsonl), on near misses, and the presets."""

from __future__ import annotations

import os
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from near_misses import CASES, Gold, benchmark_golds, gold_of, near_misses, options_of, variants

from stapo_eval.grading import library
from stapo_eval.grading.pool import Item, Limits, Pool
from stapo_eval.grading.presets import decide, extract
from stapo_eval.grading.rules import Options, quick
from stapo_results.errors import BadInput

SAYING_MORE = ("units", "choices", "currency", "integers", "model", "further")
PRESETS = ("ours", "math-verify", "justrl", "strict")


def verdict(gold: Gold, answer: str, options: Options) -> bool | None:
    return decide(gold, answer, options)[0]


def test_labelled_cases() -> None:
    """A case with `limit` is right and not decided: the rule says no to it, and never yes to a wrong one."""
    found = [verdict(gold_of(c), c["answer"], options_of(c)) for c in CASES]
    expected = [c["correct"] and not c.get("limit", False) for c in CASES]
    assert [(c["gold"], c["answer"], c["why"]) for c, f, e in zip(CASES, found, expected, strict=True) if f != e] == []
    assert all(quick(gold_of(c), c["answer"], options_of(c)) in (None, c["correct"]) for c in CASES)


def test_powers_are_told_apart_without_their_digits() -> None:
    began = time.process_time()
    for gold, answer in (("2^{1000000000}", "2^{1000000001}"), ("2^{10^9}", "3^{10^9}"), ("5", "-2^{10^9}")):
        assert verdict(gold, answer, Options()) is False
    assert time.process_time() - began < 4.0  # of the digits of one of them, 4 s


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("3^{2100001}", r"3 \cdot 3^{2100000}", True),
        ("2^{4000000}", "2^{4000000}+1", False),
        ("0", r"3^{2100001}-3\cdot 3^{2100000}", True),  # forty digits cancel
        ("0", "2^{-4000000}", False),  # and tell nothing of what is small
        ("1", "1-2^{-4000000}", False),
        (r"\lfloor 2^{4000000}/3 \rfloor", "(2^{4000000}-1)/3", True),
    ],
)
def test_powers_of_a_million_digits_are_compared_exactly(gold: str, answer: str, right: bool) -> None:
    assert library.equal(gold, answer) is right


@pytest.mark.slow
def test_what_the_case_file_says_of_math_verify() -> None:
    items = [Item(gold_of(c), f"\\boxed{{{c['answer']}}}", Options(preset="math-verify")) for c in CASES]
    with Pool(Limits(seconds=20)) as pool:
        found = [o.rule for o in pool.grade(items)]
    assert found == [c["math_verify"] for c in CASES]


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_no_near_miss_is_accepted(share: int) -> None:
    """Every gold and every correct answer of the cases, each with one thing changed; quickly one in ten of them."""
    wrong: dict[tuple[Gold, str], None] = {}
    for case in CASES:
        if not case["correct"] or case["category"] == "options":
            continue
        # an answer that says more than the gold (a unit, a choice's letter) stays right when that is changed
        for source in [gold_of(case), case["answer"]] if case["category"] not in SAYING_MORE else [gold_of(case)]:
            wrong |= dict.fromkeys((gold_of(case), miss) for miss in near_misses(source))
    assert [pair for pair in list(wrong)[::share] if verdict(*pair, Options())] == []


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_equal_exactly_when_they_are(a: int, b: int) -> None:
    assert quick(str(a), str(b), Options()) is (a == b)
    assert quick(str(a), f"{a:,}", Options()) is True


@settings(deadline=None, max_examples=20)
@given(st.fractions(max_denominator=500), st.fractions(max_denominator=500))
def test_sums_are_compared_exactly(x: Fraction, y: Fraction) -> None:
    sum_of = f"\\frac{{{x.numerator}}}{{{x.denominator}}} + \\frac{{{y.numerator}}}{{{y.denominator}}}"
    for z, right in ((x + y, True), (x + y + Fraction(1, 10**9), False)):
        assert verdict(f"{z.numerator}/{z.denominator}", sum_of, Options()) is right


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=8), st.randoms())
def test_lists_are_equal_as_multisets(values: list[int], random) -> None:
    shuffled = values[:]
    random.shuffle(shuffled)
    gold = tuple(map(str, values))
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is True
    shuffled[0] += 100
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is False


@pytest.mark.parametrize(
    ("gold", "answer", "rules"),  # ours, math-verify, justrl, strict
    [
        ("12", "13", [False, False, False, False]),
        ("1,-2", "-2,1", [True, True, False, False]),  # JustRL keeps the order
        (r"\frac{1}{2}", r"\frac{2}{4}", [True, True, False, True]),  # JustRL wants fractions reduced
        ("100000", "10^5", [True, True, False, True]),  # and integers written out
        ("x+1", "1+x", [True, True, True, False]),
        ("0.00000001", "0.00000002", [False, True, True, False]),  # both take tiny numbers for zero
        (r"15\mbox{ cm}^2", r"15 \text{ m}^2", [False, True, False, False]),  # math-verify drops units
    ],
)
def test_presets_differ_as_documented(gold: str, answer: str, rules: list[bool]) -> None:
    boxed = f"\\boxed{{{answer}}}"
    found = [decide(gold, boxed if p == "math-verify" else answer, Options(preset=p))[0] for p in PRESETS]
    assert found == rules


def test_extraction_by_preset() -> None:
    # math-verify merges neighbouring boxes
    assert decide("3,5", r"\boxed{3} Wait. \boxed{5}", Options(preset="math-verify"))[0] is True
    assert extract(r"\boxed{3} Wait. \boxed{5}", "3,5") == "5"
    both = r"So \boxed{-2} and \boxed{1}."
    assert [extract(both, g) for g in ("1", ("1", "-2"))] == ["1", "-2, 1"]
    assert [extract(both, "1,-2", p) for p in ("justrl", "math-verify")] == ["1", both]
    assert [extract("The answer is 5.", "5", use_answer_line=x) for x in (False, True)] == [None, "5"]
    assert extract(r"The answer is 5. \boxed{6}", "5", use_answer_line=True) == "6"


@pytest.mark.parametrize(
    ("gold", "response"),
    [
        (r"10,\!080", r"\boxed{5} and \boxed{10,\!080}"),
        ("58,500", r"\boxed{58}, \boxed{58,500}"),
        ("(3,2)", r"\boxed{5} or \boxed{(3,2)}"),
        ("(0,9) \\cup (9,36)", r"\boxed{9}, \boxed{(0,9) \cup (9,36)}"),
        (r"1 \pm \sqrt{19}", r"\boxed{1} and \boxed{1 \pm \sqrt{19}}"),
        (("1", "-1", "7", "-7"), r"\boxed{\pm 1} and \boxed{\pm 7}"),
        ("(2,3)", r"\boxed{x=2} and \boxed{y=3}"),
        (r"(-\infty,1)\cup(2,\infty)", r"\boxed{(-\infty,1)} or \boxed{(-\infty,1)\cup(2,\infty)}"),
        ("(2,\\infty)", r"\boxed{x<5} and \boxed{x>2}"),
        (r"\{1\pm\sqrt{5},-2\}", r"\boxed{1+\sqrt5}, \boxed{1-\sqrt5} and \boxed{-2}"),
    ],
)
def test_boxes_are_parts_of_one_answer_only_where_the_gold_lists_more_than_the_last(gold: Gold, response: str) -> None:
    assert verdict(gold, extract(response, gold) or "", Options()) is True


def test_options_that_contradict_are_refused() -> None:
    for refused in (lambda: Options(preset="lenient"), lambda: Options(unordered=True, ordered=True)):
        with pytest.raises(BadInput):
            refused()


@given(st.text(max_size=200))
def test_the_cheap_path_takes_any_text(text: str) -> None:
    assert quick("7", text, Options()) in (True, False, None)
    assert quick(("7", "8"), text, Options(unordered=True)) in (True, False, None)


LONG = ("0" * 300_000 + "x", "(" * 300_000, "1 " * 99_999, "\\text{" * 50_000, "{" * 10_000 + "}" * 10_000,
        "^{\\circ" * 40_000, "^" + " " * 200_000, "^" + "\\," * 100_000, "\\boxed1" * 40_000,
        "," + "\\! " * 60_000 + "1", "\\hspace{" * 30_000, "1" * 200_000 + "/" + "2" * 200_000,
        "\\boxed{" * 40_000 + "7" + "}" * 40_000)  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_the_cheap_path_is_quick_on_long_texts(text: str) -> None:
    for gold in ("7", ("7", "8")):
        began = time.process_time()
        quick(gold, text, Options(unordered=True))
        assert time.process_time() - began < 2.0


needs_data = pytest.mark.skipif("STAPO_DATA_DIR" not in os.environ, reason="STAPO_DATA_DIR is not set")


@pytest.mark.data
@needs_data
def test_golds_of_the_six_benchmarks_in_their_variants_and_near_misses() -> None:
    golds = list(benchmark_golds(os.environ["STAPO_DATA_DIR"]))
    rows = [(i, Item(g, v, o), True) for i, g, o in golds for v in variants(g, o.unit)]
    rows += [(i, Item(g, v, o), False) for i, g, o in golds for v in near_misses(g)]
    with Pool() as pool:
        found = pool.grade([item for _, item, _ in rows])
    assert [(i, x.answer) for (i, x, right), o in zip(rows, found, strict=True) if o.rule != right] == []

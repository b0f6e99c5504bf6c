"""Rule grading on labelled cases (tests/data/grader_cases.jsonl), its parts, and its properties."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from near_misses import near_misses

from stapo_eval.grading.pool import Item, Limits, Pool
from stapo_eval.grading.presets import decide, extract
from stapo_eval.grading.rules import Gold, Options, check_preset, full, quick
from stapo_eval.grading.rules.forms.reading import read
from stapo_eval.grading.rules.forms.types import Collection, Scalar, Words
from stapo_eval.grading.rules.text.cleaning import clean
from stapo_eval.grading.rules.text.tokens import Unreadable
from stapo_results.benchmarks import load, read_jsonl
from stapo_results.errors import BadInput

CASES = read_jsonl(Path(__file__).parent / "data" / "grader_cases.jsonl")
OPTIONS = ("unordered", "tolerance", "unit", "ordered")
SAYING_MORE = ("units", "choices", "currency", "integers", "model", "further")
PRESETS = ("ours", "math-verify", "justrl", "strict")
PAPER = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


def gold_of(case: dict) -> Gold:
    return tuple(case["gold"]) if isinstance(case["gold"], list) else case["gold"]


def options_of(case: dict, preset: str = "ours") -> Options:
    return Options(**{k: case[k] for k in OPTIONS if k in case}, preset=preset)


@pytest.fixture(scope="module")
def verdicts() -> list[bool]:
    return [full(gold_of(c), c["answer"], options_of(c)) for c in CASES]


def test_labelled_cases(verdicts: list[bool]) -> None:
    wrong = [(c["gold"], c["answer"], c["why"]) for c, v in zip(CASES, verdicts, strict=True) if v is not c["correct"]]
    assert wrong == []
    for c in CASES:
        assert quick(gold_of(c), c["answer"], options_of(c)) in (None, c["correct"])


def test_cases_are_many_and_agree_at_least_as_often_as_math_verify_in_every_category(verdicts: list[bool]) -> None:
    assert len(CASES) >= 500
    assert len({(str(c["gold"]), c["answer"], str(options_of(c))) for c in CASES}) == len(CASES)
    library = Counter(c["category"] for c in CASES if c["math_verify"] == c["correct"])
    ours = Counter(c["category"] for c, v in zip(CASES, verdicts, strict=True) if v == c["correct"])
    assert {k for k in library if ours[k] < library[k]} == set()
    for c in CASES:  # the file says where math-verify is of another opinion, and why
        assert ("differs" in c) == (c["math_verify"] != c["correct"])


@pytest.mark.slow
def test_what_the_case_file_says_of_math_verify() -> None:
    golds, answers = [gold_of(c) for c in CASES], [f"\\boxed{{{c['answer']}}}" for c in CASES]
    with Pool(Limits(seconds=20)) as pool:
        found = pool.grade([Item(g, a, Options(preset="math-verify")) for g, a in zip(golds, answers, strict=True)])
    assert [(c["gold"], c["answer"], o.rule) for c, o in zip(CASES, found, strict=True)] == [
        (c["gold"], c["answer"], c["math_verify"]) for c in CASES
    ]


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_no_near_miss_is_accepted(share: int) -> None:
    """Every gold and every correct answer of the cases, each with one thing changed; quickly one in four of them."""
    wrong: dict[tuple[Gold, str], None] = {}
    for case in CASES:
        if not case["correct"] or case["category"] == "options":
            continue
        # an answer that says more than the gold (a unit, a choice's letter) stays right when that is changed
        for source in [gold_of(case), case["answer"]] if case["category"] not in SAYING_MORE else [gold_of(case)]:
            wrong |= dict.fromkeys((gold_of(case), miss) for miss in near_misses(source))
    assert len(wrong) >= 5000
    assert [pair for pair in list(wrong)[::share] if full(*pair, Options())] == []


@pytest.mark.parametrize(
    ("gold", "answer", "decided"),
    [("4", "4", True), ("4", "5", False), ("4", "04", True), ("1/2", "0.5", True), ("x", "y", None), ("4", "", False)],
)
def test_plain_numbers_need_no_algebra(gold: str, answer: str, decided: bool | None) -> None:
    assert quick(gold, answer, Options()) is decided


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_equal_exactly_when_they_are(a: int, b: int) -> None:
    assert quick(str(a), str(b), Options()) is (a == b)
    assert quick(str(a), f"{a:,}", Options()) is True


@settings(deadline=None)
@given(st.fractions(max_denominator=500), st.fractions(max_denominator=500))
def test_sums_are_compared_exactly(x: Fraction, y: Fraction) -> None:
    sum_of = f"\\frac{{{x.numerator}}}{{{x.denominator}}} + \\frac{{{y.numerator}}}{{{y.denominator}}}"
    z = x + y
    assert full(f"{z.numerator}/{z.denominator}", sum_of, Options()) is True
    z += Fraction(1, 10**9)
    assert full(f"{z.numerator}/{z.denominator}", sum_of, Options()) is False


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=8), st.randoms())
def test_lists_are_equal_as_multisets(values: list[int], random) -> None:
    shuffled = values[:]
    random.shuffle(shuffled)
    gold = tuple(map(str, values))
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is True
    shuffled[0] += 100
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is False


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=4), st.integers(-9, 9))
def test_polynomials_are_equal_when_their_roots_are(roots: list[int], root: int) -> None:
    factored = "".join(f"(x - {r})" if r >= 0 else f"(x + {-r})" for r in roots)
    coefficients = [1]
    for r in roots:
        coefficients = [a - r * b for a, b in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    expanded = " + ".join(f"({c}) x^{{{len(roots) - i}}}" for i, c in enumerate(coefficients))
    assert full(factored, expanded, Options()) is True
    assert full(factored, f"{expanded} + {root}", Options()) is (root == 0)


def test_forms() -> None:
    assert isinstance(read("(1,8), [2,7)"), Collection)
    assert isinstance(read(r"\{a, \{b, c\}\}"), Collection)
    assert isinstance(read("1,234"), Scalar)
    assert isinstance(read("1,234", merge=False), Collection)
    assert read(r"\text{the Cat}") == Words(("cat",))
    assert read(r"x \in [0, 1)") == read(r"0 \le x < 1") == read("[0,1)")
    assert len(read(r"\pm 1, 5").items) == 3  # type: ignore[union-attr]
    for broken in (r"\frac{1}{", "(1,2", "1 2", r"\unknown{3}", "x @ y", "((" * 500 + "))" * 500):
        with pytest.raises(Unreadable):
            read(broken)


@pytest.mark.parametrize(
    ("gold", "answer", "rules"),  # ours, math-verify, justrl, strict
    [
        ("12", "12", [True, True, True, True]),
        ("12", "13", [False, False, False, False]),
        ("1,-2", "-2,1", [True, True, False, False]),  # JustRL keeps the order
        (r"\frac{1}{2}", r"\frac{2}{4}", [True, True, False, True]),  # JustRL wants fractions reduced
        ("100000", "10^5", [True, True, False, True]),  # and integers written out
        ("x+1", "1+x", [True, True, True, False]),
        ("10", "10...", [False, False, False, False]),
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
    assert extract(both, "1") == "1"
    assert extract(both, ("1", "-2")) == "-2, 1"
    assert extract(both, "1,-2", "justrl") == "1"
    assert extract(both, "1,-2", "math-verify") == both
    assert extract(r"\boxed{3} Wait, that is wrong. \boxed{4}", ("3", "4")) == "4"
    assert extract("The answer is 5.", "5") is None
    assert extract("The answer is 5.", "5", use_answer_line=True) == "5"
    assert extract(r"The answer is 5. \boxed{6}", "5", use_answer_line=True) == "6"


@pytest.mark.parametrize(
    ("gold", "response"),
    [
        (r"10,\!080", r"\boxed{5} and \boxed{10,\!080}"),
        ("58,500", r"\boxed{58}, \boxed{58,500}"),
        ("(3,2)", r"\boxed{5} or \boxed{(3,2)}"),
        ("(0,9) \\cup (9,36)", r"\boxed{9}, \boxed{(0,9) \cup (9,36)}"),
        (r"\left[\frac{1}{2}, 8\right]", r"\boxed{0} and \boxed{[0.5, 8]}"),
        ("1,-2", r"\boxed{1} and \boxed{1,-2}"),
        (("1", "-2"), r"\boxed{1} and \boxed{\{-2,1\}}"),
        (r"1 \pm \sqrt{19}", r"\boxed{1} and \boxed{1 \pm \sqrt{19}}"),
        (("5",), r"\boxed{4}, \boxed{5}"),
        (("1", "-1", "7", "-7"), r"\boxed{\pm 1} and \boxed{\pm 7}"),
        (("(1,8)", "(2,7)"), r"\boxed{(1,8)} and \boxed{(2,7)}"),
        ("(2,3)", r"\boxed{x=2} and \boxed{y=3}"),
        (r"(-\infty,1)\cup(2,\infty)", r"\boxed{x<1} or \boxed{x>2}"),
        ("[1,2)", r"\boxed{x \ge 1} and \boxed{x<2}"),
        ("(2,3)", r"\boxed{n=1} and \boxed{(x,y)=(2,3)}"),
        ("(2,\\infty)", r"\boxed{x<5} and \boxed{x>2}"),
        (r"\{1\pm\sqrt{5},-2\}", r"\boxed{1+\sqrt5}, \boxed{1-\sqrt5} and \boxed{-2}"),
    ],
)
def test_boxes_are_parts_of_one_answer_only_where_the_gold_lists_more_than_the_last(gold: Gold, response: str) -> None:
    assert full(gold, extract(response, gold) or "", Options()) is True


@pytest.mark.parametrize(
    "refused",
    [
        lambda: check_preset("lenient"),
        lambda: Options(preset="lenient"),
        lambda: extract(r"\boxed{5}", "5", "lenient"),
        lambda: Options(unordered=True, ordered=True),
    ],
)
def test_options_that_cannot_be_meant_are_refused(refused: Callable[[], object]) -> None:
    with pytest.raises(BadInput) as e:
        refused()
    if e.value.found == "lenient":
        assert set(str(e.value.expected).split(" | ")) == set(PRESETS)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_the_cheap_path_takes_any_text(text: str) -> None:
    assert quick("7", text, Options()) in (True, False, None)
    assert quick(("7", "8"), text, Options(unordered=True)) in (True, False, None)


LATEX = [
    "\\frac", "{", "}", "(", ")", "[", "]", "\\{", "\\}", ",", "\\pm", "^", "_", "\\sqrt", "1", "23", "x", "\\pi", "=",
    "<", "\\text{", " ", "|", "!", "%", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "\\cup", "+", "-", "/", "e",
    "i", "\\log", "\\infty", ".5", "\\boxed{", "$", "\\left", "\\right", ":", "\\in", "\\binom", "and", "\\le", "'",
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(LATEX), max_size=40).map("".join))
def test_reading_ends_in_a_form_or_says_that_it_cannot(text: str) -> None:
    try:
        read(clean(text))
    except Unreadable:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "0" * 300_000 + "x",
        "(" * 300_000,
        "," * 100_000,
        "1 " * 99_999,
        "\\text{" * 50_000,
        "{" * 10_000 + "}" * 10_000,
        "^{\\circ" * 40_000,
        "," + "\\! " * 60_000 + "1",
        "\\hspace{" * 30_000,
        "-" * 200_000 + "1",
        "1" * 200_000 + "/" + "2" * 200_000,
        "\\boxed{" * 40_000 + "7" + "}" * 40_000,
    ],
)
def test_the_cheap_path_is_quick_on_long_texts(text: str) -> None:
    for gold in ("7", ("7", "8")):
        began = time.process_time()
        quick(gold, text, Options(unordered=True))
        assert time.process_time() - began < 2.0


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


def benchmark_golds(data_dir: str | Path) -> list[tuple[str, Gold, Options]]:
    found = []
    for name in PAPER:
        benchmark = load(name, data_dir)
        for p in benchmark.problems:
            found.append((p.id, p.answer, Options(benchmark.spec.unordered, benchmark.spec.tolerance, p.unit)))
    return found


needs_data = pytest.mark.skipif("STAPO_DATA_DIR" not in os.environ, reason="STAPO_DATA_DIR is not set")


@pytest.mark.data
@needs_data
def test_every_gold_of_the_six_benchmarks_is_correct_in_its_variants() -> None:
    graded = [(i, g, v, o) for i, g, o in benchmark_golds(os.environ["STAPO_DATA_DIR"]) for v in variants(g, o.unit)]
    assert len(graded) > 7000
    assert [(i, v) for i, g, v, o in graded if not full(g, v, o)] == []


@pytest.mark.data
@needs_data
def test_no_near_miss_of_a_benchmark_gold_is_accepted() -> None:
    count, accepted = 0, []
    for name, gold, options in benchmark_golds(os.environ["STAPO_DATA_DIR"]):
        for wrong in near_misses(gold):
            count += 1
            if full(gold, wrong, options):
                accepted.append((name, gold, wrong))
    assert count >= 5000
    assert accepted == []

"""Rule grading on labelled cases (tests/data/grader_cases.jsonl) and its properties."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_eval.rules import Options, check_preset, normalise, number, quick, split_items, symbolic
from stapo_results.errors import BadInput

CASES = [json.loads(x) for x in (Path(__file__).parent / "data" / "grader_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[c["why"] for c in CASES])
def test_labelled_cases(case: dict) -> None:
    gold = tuple(case["gold"]) if isinstance(case["gold"], list) else case["gold"]
    options = Options(bool(case.get("unordered")), case.get("tolerance"), case.get("unit", ""))
    decided = quick(gold, case["answer"], options)
    assert decided in (None, case["correct"])
    assert symbolic(gold, case["answer"], options) is case["correct"]


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


@given(st.fractions(max_denominator=10**6), st.integers(1, 50))
def test_a_fraction_equals_its_multiples(x: Fraction, k: int) -> None:
    gold, answer = f"{x.numerator}/{x.denominator}", f"\\frac{{{k * x.numerator}}}{{{k * x.denominator}}}"
    assert quick(gold, answer, Options()) is True


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=8), st.randoms())
def test_lists_are_equal_as_multisets(values: list[int], random) -> None:
    shuffled = values[:]
    random.shuffle(shuffled)
    gold = tuple(map(str, values))
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is True
    shuffled[0] += 100
    assert quick(gold, ", ".join(map(str, shuffled)), Options()) is False


def test_numbers() -> None:
    assert number("4.5e3") == 4500
    assert number(r"-2\times10^{-2}") == Fraction(-1, 50)
    assert number(r"\frac{3}{4}") == Fraction(3, 4)
    assert number("1/0") is None
    assert number("1e9999") is None
    assert number("9" * 101) is None


def test_normal_form() -> None:
    assert normalise(r"\left( 3,\; \dfrac{\pi}{2} \right)") == r"(3,\frac{\pi}{2})"
    assert normalise(r"$\text{Tuesday}$.") == "Tuesday"
    assert normalise(r"\leftarrow") == r"\leftarrow"


def test_items_of_a_list() -> None:
    assert split_items(r"$(1,8), [2,7)$") == ["(1,8)", "[2,7)"]
    assert split_items(r"\{a, \{b, c\}\}") == ["a", r"\{b, c\}"]
    assert split_items(r"x \text{ or } \pm y") == ["x", "+ y", "- y"]


@given(st.text(max_size=200))
def test_the_cheap_path_takes_any_text(text: str) -> None:
    assert quick("7", text, Options()) in (True, False, None)
    assert quick(("7", "8"), text, Options(unordered=True)) in (True, False, None)


@pytest.mark.parametrize(
    "text", ["0" * 300_000 + "x", " " * 300_000 + "x", "(" * 300_000, "," * 100_000, "1 " * 99_999]
)
def test_the_cheap_path_is_quick_on_long_texts(text: str) -> None:
    began = time.process_time()
    quick(("7", "8"), text, Options(unordered=True))
    assert time.process_time() - began < 2.0


def test_other_presets_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match="ours"):
        check_preset("justrl")

"""Answer extraction and the normal form of golds: literal cases and properties."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_results.answers import answer_line, last_boxed, normalise_gold, strip_boxes


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}.", "4"),
        (r"\boxed{3} Wait. \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed 5$ is it", "5"),
        (r"the answer is \boxed 5. Done", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{x = \boxed{5}}", r"x = \boxed{5}"),
        (r"\\boxed{6}", "6"),
        (r"{{{ \boxed{9}", "9"),
        (r"}} \boxed{9} }", "9"),
        (r"\boxed{3 and then \boxed{4}", "4"),
        (r"\boxed{}", ""),
        ("\\boxed{1,\n 2}", "1,\n 2"),
        (r"\boxed{4} so finally \boxed{12", None),
        (r"\boxed{12", None),
        (r"\boxed{8}. I mark it with \boxed as asked.", "8"),
        (r"\boxed{8} (in \boxed{}, as asked)", "8"),
        (r"\boxed{A} or rather \boxed B", "B"),
        (r"\boxedanswer{4}", None),
        ("the answer is 4", None),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5.", "5"),
        ("Final Answer: The final answer is $[1,4)$. I hope it is correct.", "$[1,4)$"),
        ("**Final Answer**: The answer is 12", "12"),
        ("The answer is **31**.", "31"),
        ("The answer is 0.6... of it", "0.6... of it"),
        ("The answer is 0.66...", "0.66..."),
        ("Answer: 19<|im_end|>", "19"),
        ("Answer: 19</s>", "19"),
        ("The answer is 64, which is the total.", "64"),
        ("The answer is 64, which is too large.", "64, which is too large"),
        ("So 8 of them.\n#### 64", "64"),
        ("The answer is 6.\n#### 3. Check", "6"),
        ("No line of it", None),
    ],
)
def test_answer_line(text: str, answer: str | None) -> None:
    assert answer_line(text) == answer


@given(st.text(alphabet="ab1{}\\ $,"))
def test_a_closed_box_at_the_end_is_found_after_any_text(before: str) -> None:
    # the space keeps a trailing backslash of the text from escaping the box's own
    assert last_boxed(before + " " + r"\boxed{42}") == "42"


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 100_000,
        "\\boxed{" * 100_000 + "1" + "}" * 100_000,
        "{" * 500_000,
        "\\" * 500_000,
        "\\boxed" + " " * 500_000,
        "\\boxed{1}" * 50_000,
        "\\boxed" * 600_000,
    ],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    began = time.process_time()
    last_boxed(text)
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize(
    ("gold", "normal"),
    [
        ("204", "204"),
        ("$-2,0,2$", "-2,0,2"),
        (["-2", "0", "2"], "-2,0,2"),
        (r"$(-\infty, 0) \cup\{1\}$.", r"(-\infty,0)\cup\{1\}"),
        (r"$\boxed{ 7 }$", "7"),
        (r"\boxed{a}+\boxed{b}", r"\boxed{a}+\boxed{b}"),
        ("\\frac{1}{2}\n", r"\frac{1}{2}"),
    ],
)
def test_normalise_gold(gold: str | list[str], normal: str) -> None:
    assert normalise_gold(gold) == normal


def test_strip_boxes_takes_off_whole_boxes_only() -> None:
    assert strip_boxes(r"\boxed{\fbox{3}}") == "3"
    assert strip_boxes(r"\boxed{3} m") == r"\boxed{3} m"
    assert strip_boxes("plain") == "plain"

"""The judge: its prompt, its letters, what is asked and how often."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pytest

from stapo_eval import judge
from stapo_eval.engines import Finished, Key, Request
from stapo_eval.judge import Question, ask, distinct, fitted_prompt, message, parse_letter
from stapo_results.errors import BadInput


class Scripted:
    """An engine whose tokens are characters and whose answer is looked up in the prompt."""

    name, deterministic = "scripted", True

    def __init__(self, context: int = 10_000, says: dict[str, str] | None = None):
        self.context, self.says, self.asked = context, says or {}, []

    def encode(self, message: str) -> list[int]:
        return [ord(c) for c in message]

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        for r in requests:
            text = "".join(map(chr, r.prompt))
            self.asked.append(text)
            assert r.decoding.temperature == 0
            reply = next((v for k, v in self.says.items() if k in text), "B")
            yield [Finished(r, reply, "error" if reply == "boom" else "stop", 1, 0.0, 0.0)]

    def close(self) -> None: ...


def _question(i: int, answer: str | None, response: str = "", problem: str = "q") -> Question:
    return Question(problem, f"What is {problem}?", "7", response or f"so it is {answer} ({i})", answer)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("A", "correct"),
        (" A\n", "correct"),
        ("B", "incorrect"),
        ("C", "invalid"),
        ("", "invalid"),
        ("a", "invalid"),
        ("A.", "invalid"),
        ("AB", "invalid"),
        ("D", "invalid"),
        ("The answer is A", "invalid"),
    ],
)
def test_letters_are_parsed_strictly(text: str, verdict: str) -> None:
    assert parse_letter(text) == verdict


def test_the_prompt_holds_question_gold_and_response() -> None:
    text = message(Question("p", "How many?", ("1", "2"), "whole", None), "the end")
    assert text.index("How many?") < text.index("1, 2") < text.index("the end")
    assert "whole" not in text


def test_a_long_response_keeps_its_end_and_fits() -> None:
    question = _question(0, None, "x" * 5_000 + "END")
    for context in (600, 1_000):
        prompt = fitted_prompt(question, lambda t: [ord(c) for c in t], context)
        assert prompt is not None
        assert context - 10 <= len(prompt) <= context - judge._ANSWER_TOKENS
        assert "xEND" in "".join(map(chr, prompt))


def test_a_question_that_cannot_fit_is_not_asked_and_invalid() -> None:
    engine = Scripted(context=50)
    assert ask([_question(0, "3")], engine) == ["invalid"]
    assert engine.asked == []


def test_equal_answers_to_a_problem_are_asked_once() -> None:
    questions = [
        _question(0, "3"),
        _question(1, "3"),
        _question(2, "4"),
        _question(3, "3", problem="other"),
        _question(4, None, "no idea"),
        _question(5, None, "no idea"),
        _question(6, None, "none at all"),
    ]
    assert distinct(questions) == [0, 0, 2, 3, 4, 4, 6]
    engine = Scripted(says={"it is 4": "A", "no idea": "C", "other": "boom"})
    assert ask(questions, engine) == ["incorrect", "incorrect", "correct", "invalid", "invalid", "invalid", "incorrect"]
    assert len(engine.asked) == 5


def test_other_scopes_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match="rule-negatives"):
        judge.check_scope("all")

"""The judge: its prompt, its letters, whom it is asked about, how often, and what its word does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_eval.engines import Finished, Key, Request
from stapo_eval.judge.asking import (
    Judge,
    ask,
    check_judge,
    distinct,
    judge_notes,
    recorded,
    unanswered,
    verdict_by_judge,
)
from stapo_eval.judge.prompt import ANSWER_TOKENS, Question, fitted_prompt, message, parse_letter, question_key
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Judgement, Sample

JUDGE = Judge("verifier", "r1")


class Scripted:
    """An engine whose tokens are characters and whose answer is looked up in the prompt."""

    name, deterministic = "scripted", True

    def __init__(self, context: int = 10_000, says: dict[str, str] | None = None):
        self.context, self.says, self.asked = context, says or {}, []

    def encode(self, message: str) -> list[int]:
        return [ord(c) for c in message]

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        for r in requests:
            if r.key in done:
                continue
            text = "".join(map(chr, r.prompt))
            self.asked.append(text)
            assert r.decoding.temperature == 0
            reply = next((v for k, v in self.says.items() if k in text), "B")
            failed = reply == "boom"
            yield [Finished(r, reply, "error" if failed else "stop", 1, 0.0, 0.0, "lost" if failed else "")]

    def close(self) -> None: ...


def _question(answer: str | None, response: str = "", problem: str = "q", benchmark: str = "b") -> Question:
    return Question(benchmark, problem, f"What is {problem}?", "7", response or f"so it is {answer}", answer)


def _pairs(questions: Sequence[Question]) -> list[tuple[Sample, Question]]:
    return [
        (
            Sample(cell="c", problem_id=q.problem_id, sample_index=i, seed=i, response=q.response, finish_reason="stop",
                   prompt_tokens=1, response_tokens=1, logprob_sum=0.0, engine="scripted"),
            q,
        )
        for i, q in enumerate(questions)
    ]  # fmt: skip


def _ask(questions: Sequence[Question], engine: Scripted, path, judge: Judge = JUDGE) -> list[str]:
    """Verdicts of all questions, with replies kept in `path` as a run keeps them."""
    keys, first = distinct(_pairs(questions), judge.mode)
    known = recorded(path, judge)
    ask(first, judge, engine, known, lambda judgements, _: store.append(path, judgements))
    return [verdict_by_judge(known[k]) for k in keys]


@pytest.mark.parametrize(
    ("text", "letter", "exactly"),
    [("A", "A", "A"), (" A\n", "A", ""), ("B", "B", "B"), ("", "", ""), ("A.", "", ""), ("The answer is A", "", ""),
     ("Ａ", "", "")],
)  # fmt: skip
def test_letters_are_parsed_strictly(text: str, letter: str, exactly: str) -> None:
    assert parse_letter(text) == letter
    assert parse_letter(text, "justrl-exact") == exactly


TOKENISERS = {
    "characters": lambda text: [ord(c) for c in text],
    "bytes": lambda text: list(text.encode()),
    "nine characters": lambda text: list(range(-(-len(text) // 9))),
}


@given(
    name=st.sampled_from(sorted(TOKENISERS)),
    context=st.integers(1, 6_000),
    response=st.text(st.sampled_from("ab 7é界\n<|"), max_size=40).flatmap(
        lambda piece: st.integers(0, 600).map(lambda n: piece * n)
    ),
    problem=st.text(max_size=200),
)
def test_a_prompt_never_overflows_and_wastes_little(name: str, context: int, response: str, problem: str) -> None:
    encode = TOKENISERS[name]
    question = Question("b", "p", problem, "7", response, None)
    prompt = fitted_prompt(question, encode, context)
    room = context - ANSWER_TOKENS
    if prompt is None:
        assert len(encode(message(question, ""))) > room
        return
    assert len(prompt) <= room
    whole = encode(message(question, response.replace("<|", "< |")))
    if len(prompt) < len(whole) and name == "characters":
        shown = "".join(map(chr, prompt)).split("RESPONSE\n", 1)[1]
        assert shown.removesuffix("\n\nLETTER") in response.replace("<|", "< |")
        bare = len(encode(message(question, "")))
        assert len(prompt) - bare == min(4096, room - bare) or "<|" in response


def test_a_question_that_cannot_fit_is_recorded_and_not_asked(tmp_path) -> None:
    engine, path = Scripted(context=50), tmp_path / "j.jsonl"
    assert _ask([_question("3")], engine, path) == ["not_asked"]
    assert _ask([_question("3")], engine, path) == ["not_asked"]
    assert engine.asked == []
    (j,) = store.read(path, Judgement)
    assert (j.status, j.letter) == ("too_long", "")


def _said(key: str, status: str = "answered", letter: str = "", error: str = "") -> Judgement:
    return Judgement(key=key, benchmark="b", cell="c", problem_id="q", sample_index=0, extracted="3", judge_model="m",
                     judge_revision="r", judge_mode="compass", engine="e", prompt_tokens=1, status=status,
                     reply=letter or "well", letter=letter, error=error)  # type: ignore[arg-type]  # fmt: skip


def test_what_the_judge_did_not_answer_is_said() -> None:
    """Samples k1 k1 k2 too long, k3 lost, k4 no letter, k5 and k6 with one."""
    long = [_said(k, "too_long", error="does not fit 50 positions") for k in ("k1", "k1", "k2")]
    others = [_said("k3", "error", error="lost"), _said("k4"), _said("k5", letter="C"), _said("k6", letter="A")]
    assert unanswered([*long, *others]) == {"too_long": 3, "error": 1, "no_letter": 1}
    notes = judge_notes([*long, *others])
    assert [n[:29] for n in notes] == [f"{k} of 6 questions ({n} samples) " for k, n in ((2, 3), (1, 1), (1, 1))]
    assert "50 positions" in notes[0]
    assert "lost" in notes[1]
    assert judge_notes(others[2:]) == []
    assert len(judge_notes([])) == 1


def test_equal_answers_to_a_problem_are_asked_once(tmp_path) -> None:
    questions = [
        _question("3"),
        _question("3", "in other words 3"),
        _question("4"),
        _question("3", problem="other"),
        _question(None, "no idea"),
        _question(None, "no idea"),
        _question(None, "none at all"),
        _question("3", "elsewhere 3", benchmark="b2"),
    ]
    assert len({question_key(q, "compass") for q in questions}) == 6
    engine = Scripted(says={"it is 4": "A", "no idea": "C", "other?": "maybe"})
    verdicts = ["incorrect", "incorrect", "correct", "invalid", "invalid", "invalid", "incorrect", "incorrect"]
    assert _ask(questions, engine, tmp_path / "j.jsonl") == verdicts
    assert len(engine.asked) == 6
    assert not any("in other words" in text for text in engine.asked)
    # JustRL shows whole responses, so only equal responses are one question
    assert len({question_key(q, "justrl-exact") for q in questions}) == 7


def test_what_is_recorded_is_not_asked_again(tmp_path) -> None:
    questions = [_question(str(i)) for i in range(5)]
    path = tmp_path / "j.jsonl"
    first = Scripted(says={"it is 1": "A"})
    _ask(questions[:3], first, path)
    half = path.read_bytes()
    path.write_bytes(half + b'{"schema_version":1,"key":"abc')  # killed while it wrote
    second = Scripted()
    assert _ask(questions, second, path) == ["incorrect", "correct", "incorrect", "incorrect", "incorrect"]
    assert len(second.asked) == 2
    assert path.read_bytes().startswith(half)
    assert len(list(store.read(path, Judgement))) == 5
    # another judge, another mode: other questions
    for judge in (Judge("verifier", "r2"), Judge("other", "r1"), Judge("verifier", "r1", "justrl-exact")):
        third = Scripted()
        _ask(questions, third, path, judge)
        assert len(third.asked) == 5


def test_a_failure_of_the_engine_is_no_reply_and_is_asked_again(tmp_path) -> None:
    path = tmp_path / "j.jsonl"
    questions = [_question("3"), _question("4")]
    assert _ask(questions, Scripted(says={"it is 3": "boom"}), path) == ["not_asked", "incorrect"]
    again = Scripted(says={"it is 3": "A"})
    assert _ask(questions, again, path) == ["correct", "incorrect"]
    assert len(again.asked) == 1
    assert [j.status for j in store.read(path, Judgement)] == ["error", "answered", "answered"]


def test_what_does_not_exist_is_refused_by_name() -> None:
    for scope, mode, named in (
        ("some", "compass", "some"),
        ("all", "cot", "cot"),
        ("all", "justrl-exact", "--judge-scope"),
    ):
        with pytest.raises(BadInput, match=named):
            check_judge(scope, mode)
    check_judge("rule-negatives", "justrl-exact")

"""The judge: its prompt, its letters, whom it is asked about, how often, and what its word does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_eval.engines import Finished, Key, Request
from stapo_eval.judge.asking import (
    Judge,
    ask,
    check_judge,
    check_replies,
    distinct,
    judge_notes,
    recorded,
    unanswered,
    verdict_by_judge,
)
from stapo_eval.judge.prompt import Question, fitted_prompt, message, parse_reply, plain, question_key, room_of
from stapo_eval.judge.published import Prompt
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import FinishReason, Judgement, Sample

PROMPT = Prompt("QUESTION\n{question}\nREFERENCE\n{gold_answer}\nRESPONSE\n{llm_response}\nLETTER")
JUDGE = Judge("verifier", "r1", PROMPT)


class Scripted:
    """An engine whose tokens are characters and whose answer is looked up in the prompt."""

    name, deterministic, counts_tokens = "scripted", True, True

    def __init__(self, context: int = 10_000, says: dict[str, str] | None = None, ends: FinishReason = "stop"):
        self.context, self.says, self.ends, self.asked = context, says or {}, ends, []

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
            yield [Finished(r, reply, "error" if failed else self.ends, 1, 0.0, 0.0, "lost" if failed else "")]

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
    keys, first = distinct(_pairs(questions), judge)
    known = recorded(path, judge)
    ask(first, judge, engine, known, lambda judgements, _: store.append(path, judgements))
    return [verdict_by_judge(known[k]) for k in keys]


@pytest.mark.parametrize(
    ("reply", "letter", "form", "exactly"),
    [
        ("A", "A", "letter", "A"),
        (" B\n", "B", "letter", "B"),
        ("C", "C", "letter", "C"),
        ("", "", "", ""),
        ("maybe", "", "", ""),
        ("Ａ", "", "", ""),
        ("a", "", "", ""),
        ("A.", "A", "stray", ""),
        ("The answer is A", "A", "stray", ""),
        ("INVALID", "A", "stray", ""),
        ("CORRECT", "C", "stray", ""),
        ("INCORRECT", "C", "stray", ""),
        ("(A) or (B)", "B", "stray", ""),
        ("Point (A) lies on the line, so the reply is wrong", "A", "stray", ""),
        (r"The response has \boxed{A} and is wrong", "A", "stray", ""),
        (" \\boxed{A}\n", "A", "marked", ""),
        (r"so. Final Judgment: \boxed{B} - INCORRECT", "B", "marked", ""),
        ("Final Judgment: B", "B", "stray", ""),
        ("(Because it differs", "B", "stray", ""),
        (r"\boxed{A}", "A", "marked", ""),
        (r"boxed{A}, no: \boxed{C} - INCOMPLETE. Final Judgment: (B)", "C", "stray", ""),
        ("A and B. Final Judgment: (B) - INCORRECT", "B", "marked", ""),
        ("(A) Final Judgment: none", "", "", ""),
        (r"\boxed{D}", "", "", ""),
    ],
)
def test_a_reply_is_read_as_published(reply: str, letter: str, form: str, exactly: str) -> None:
    assert parse_reply(reply) == (letter, form)
    assert parse_reply(reply, "justrl-exact") == (exactly, "letter" if exactly else "")


def test_a_reply_that_was_cut_off_is_in_no_known_form(tmp_path) -> None:
    """But for the letter alone, which is all that the plain prompt asks for."""
    assert parse_reply("A\n\n", finish_reason="length") == ("A", "letter")
    assert parse_reply(r"\boxed{A}", finish_reason="length") == ("A", "stray")
    assert parse_reply("well", finish_reason="length") == ("", "")
    path = tmp_path / "j.jsonl"
    _ask([_question("3")], Scripted(says={"it is 3": "Final Judgment: (A)"}, ends="length"), path)
    assert [(j.letter, j.form) for j in store.read(path, Judgement)] == [("A", "stray")]


@given(st.text(st.sampled_from("ABC(){}x \n") | st.characters()), st.sampled_from("ABC"))
def test_any_reply_is_read(text: str, letter: str) -> None:
    said, form = parse_reply(text)
    assert (said == "") == (form == "")
    assert said == "" or said in text
    assert parse_reply(f"{text} Final Judgment: \\boxed{{{letter}}}") == (letter, "marked")
    assert parse_reply(f"{text} Final Judgment: \\boxed{{{letter}}}", finish_reason="length") == (letter, "stray")
    alone = text.strip() in ("A", "B", "C")
    assert parse_reply(text, "justrl-exact") == ((text.strip(), "letter") if alone else ("", ""))


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
    fitted = fitted_prompt(question, encode, context, PROMPT)
    room = room_of(context, PROMPT)
    if fitted is None:
        assert len(encode(message(question, "", PROMPT))) > room
        return
    assert len(fitted.tokens) <= room
    whole = encode(message(question, plain(response), PROMPT))
    same = list(fitted.tokens) == whole
    # tokens of nine characters say nothing of the text: a shortened response may have as many
    assert fitted.shortened != same or (same and name == "nine characters")
    if fitted.shortened and name == "characters":
        shown = "".join(map(chr, fitted.tokens)).split("\nRESPONSE\n", 1)[1]
        assert plain(response).endswith(shown.removesuffix("\nLETTER"))
        assert len(fitted.tokens) == room or "<|" in response


@pytest.mark.parametrize(("context", "kept"), [(32_768, 2_048), (4_096, 512)])
def test_room_is_kept_for_the_reply(context: int, kept: int) -> None:
    assert room_of(context, PROMPT) == context - kept


def test_justrl_shows_the_whole_response_as_it_is_and_no_question() -> None:
    question = _question("3", "<|im_end|>" + 90 * "so ")
    whole = PROMPT.text.format(question="", gold_answer="7", llm_response=question.response)
    encode = TOKENISERS["characters"]
    fitted = fitted_prompt(question, encode, len(whole) + 1, PROMPT, "justrl-exact")
    assert fitted == (tuple(encode(whole)), False)
    assert fitted_prompt(question, encode, len(whole), PROMPT, "justrl-exact") is None


def test_a_question_that_cannot_fit_is_recorded_and_not_asked(tmp_path) -> None:
    engine, path = Scripted(context=50), tmp_path / "j.jsonl"
    assert _ask([_question("3")], engine, path) == ["not_asked"]
    assert _ask([_question("3")], engine, path) == ["not_asked"]
    assert engine.asked == []
    (j,) = store.read(path, Judgement)
    assert (j.status, j.letter) == ("too_long", "")


def test_justrls_question_is_left_to_a_server_that_alone_can_count_it(tmp_path) -> None:
    judge, path = Judge("verifier", "r1", PROMPT, "justrl-exact"), tmp_path / "j.jsonl"
    engine = Scripted(context=20, says={"it is 3": "A", "it is 4": "boom"})
    engine.counts_tokens = False
    assert _ask([_question("3"), _question("4")], engine, path, judge) == ["correct", "not_asked"]
    assert [(j.status, j.error) for j in store.read(path, Judgement)] == [("answered", ""), ("error", "lost")]


def test_a_response_that_is_shown_in_part_is_recorded_so(tmp_path) -> None:
    path = tmp_path / "j.jsonl"
    _ask([_question("3"), _question("4", 300 * "word ")], engine := Scripted(context=400), path)
    assert [j.shortened for j in store.read(path, Judgement)] == [False, True]
    assert [len(text) for text in engine.asked][1] == 350


def _said(key: str, status: str = "answered", letter: str = "", error: str = "", **more) -> Judgement:
    return Judgement(key=key, benchmark="b", cell="c", problem_id="q", sample_index=0, extracted="3", judge_model="m",
                     judge_revision="r", engine="e", prompt_tokens=1, status=status,
                     reply=letter or "well", letter=letter, error=error,
                     **{"judge_mode": "compass", "form": "letter" if letter else ""} | more)  # type: ignore[arg-type]  # fmt: skip


def test_what_the_judge_did_not_answer_is_said() -> None:
    """Samples k1 k1 k2 too long, k3 lost, k4 no letter, k5 and k6 with one, k7 with a stray one to a part."""
    long = [_said(k, "too_long", error="does not fit 50 positions") for k in ("k1", "k1", "k2")]
    others = [_said("k3", "error", error="lost"), _said("k4"), _said("k5", letter="C"), _said("k6", letter="A")]
    odd = _said("k7", letter="A", form="stray", shortened=True)
    assert unanswered([*long, *others, odd]) == {"too_long": 3, "error": 1, "no_letter": 1, "stray": 1}
    notes = judge_notes([*long, *others, odd])
    assert [n[:29] for n in notes] == [f"{k} of 7 questions ({n} samples) " for k, n in ((2, 3), *[(1, 1)] * 4)]
    assert "50 positions" in notes[0]
    assert "lost" in notes[1]
    assert judge_notes(others[2:]) == []
    assert len(judge_notes([])) == 1


@pytest.mark.parametrize(
    ("replies", "unclear", "stops"), [(1, 1, False), (20, 2, True), (100, 2, False), (100, 3, True)]
)
def test_replies_in_no_known_form_stop_the_scoring_above_two_percent(replies: int, unclear: int, stops: bool) -> None:
    """Each second one has a stray letter. What was not answered counts neither way."""
    said = [_said(f"k{i}", letter="A" if i % 2 else "", form="stray" if i % 2 else "") for i in range(unclear)]
    said += [_said(f"k{i}", letter="B") for i in range(unclear, replies)]
    said += [_said(f"l{i}", status) for i, status in enumerate(["too_long", "error"] * 500)]
    if stops:
        with pytest.raises(RunFailed, match=f"{unclear} of {replies} "):
            check_replies(said)
    else:
        check_replies(said)


def _ask_checked(unclear: Sequence[int], path: Path) -> int:
    """How many of 3,000 questions are put until the check stops it; these have an unclear reply."""
    questions = [_question(f"{i}.") for i in range(3000)]
    engine = Scripted(says={f"it is {i}.": "hm" for i in unclear})
    _, first = distinct(_pairs(questions), JUDGE)
    known = recorded(path, JUDGE)
    with suppress(RunFailed):
        ask(first, JUDGE, engine, known, lambda judgements, _: store.append(path, judgements), check_replies)
    return len(engine.asked)


@pytest.mark.slow
def test_asking_stops_once_too_many_of_all_questions_are_unclear(tmp_path: Path) -> None:
    """2 % of 3,000 questions are 60."""
    assert _ask_checked(range(60), tmp_path / "j.jsonl") == 3000
    assert _ask_checked(range(61), tmp_path / "k.jsonl") == 120  # it is looked at after each 60 replies
    assert _ask_checked(range(1000, 1061), tmp_path / "l.jsonl") == 1080
    assert _ask_checked([], tmp_path / "l.jsonl") == 60  # what is on record counts


def test_justrls_script_has_no_such_rule() -> None:
    check_replies([_said(f"k{i}", judge_mode="justrl-exact") for i in range(100)])


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
    assert len({question_key(q, PROMPT, "compass") for q in questions}) == 6
    assert len({question_key(questions[0], p, "compass") for p in (PROMPT, Prompt(PROMPT.text + "?"))}) == 2
    engine = Scripted(says={"it is 4": "A", "no idea": "C", "other?": "maybe"})
    verdicts = ["incorrect", "incorrect", "correct", "invalid", "invalid", "invalid", "incorrect", "incorrect"]
    assert _ask(questions, engine, tmp_path / "j.jsonl") == verdicts
    assert len(engine.asked) == 6
    assert not any("in other words" in text for text in engine.asked)
    # JustRL shows whole responses, so only equal responses are one question
    assert len({question_key(q, PROMPT, "justrl-exact") for q in questions}) == 7


def test_a_response_that_was_cut_off_stands_for_no_other(tmp_path) -> None:
    whole, cut = _question("3"), _question("3", "so 3, but then")
    questions = [replace(cut, cut=True), whole, _question("3", "again 3"), replace(cut, cut=True)]
    engine = Scripted(says={"but then": "C", "it is 3": "A"})
    assert _ask(questions, engine, tmp_path / "j.jsonl") == ["invalid", "correct", "correct", "invalid"]
    assert len(engine.asked) == 2


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
    # another judge, another prompt, another mode: other questions
    prompt = Prompt(PROMPT.text + "?")
    for judge in (
        Judge("verifier", "r2", PROMPT),
        Judge("other", "r1", PROMPT),
        Judge("verifier", "r1", prompt),
        Judge("verifier", "r1", PROMPT, "justrl-exact"),
    ):
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

"""The judge: its prompt, its letters, whom it is asked about, how often, and what its word does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stapo_eval.engines import Finished, Key, Request
from stapo_eval.judge.asking import (
    Judge,
    ask,
    check_replies,
    distinct,
    judge_notes,
    recorded,
    unanswered,
    verdict_by_judge,
)
from stapo_eval.judge.prompt import Question, fitted_prompt, message, parse_reply, plain, question_key
from stapo_eval.judge.published import JudgePrompt
from stapo_results import store
from stapo_results.errors import RunFailed
from stapo_results.schema import FinishReason, Judgement, Sample

PROMPT = JudgePrompt("QUESTION\n{question}\nREFERENCE\n{gold_answer}\nRESPONSE\n{llm_response}\nLETTER")
JUDGE = Judge("verifier", "r1", PROMPT)


class Scripted:
    """An engine whose tokens are characters and whose answer is looked up in the prompt."""

    name, deterministic, counts_tokens = "scripted", True, True

    def __init__(self, context: int = 10_000, says: dict[str, str] | None = None, ends: FinishReason = "stop"):
        self.context, self.says, self.ends, self.asked = context, says or {}, ends, []

    def encode(self, message: str) -> list[int]:
        return [ord(c) for c in message]

    def stream(self, requests: Sequence[Request], done: Collection[Key]) -> Iterator[list[Finished]]:
        assert not done
        for r in requests:
            text = "".join(map(chr, r.prompt))
            self.asked.append(text)
            assert r.decoding.temperature == 0
            reply = next((v for k, v in self.says.items() if k in text), "B")
            failed = reply == "boom"
            end = ("error", "lost") if failed else (self.ends, "")
            yield [Finished(r, reply, end[0], len(r.prompt), 1, 0.0, end[1])]


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


def _ask(questions: Sequence[Question], engine: Scripted, path: Path, judge: Judge = JUDGE) -> list[str]:
    """Verdicts of all questions, with replies kept in `path` as a run keeps them."""
    keys, first = distinct(_pairs(questions), judge)
    known = recorded(path, judge)
    for judgements in ask(first, judge, engine, known):
        store.append(path, judgements)
        known |= {j.key: j for j in judgements}
    return [verdict_by_judge(known[k]) for k in keys]


@pytest.mark.parametrize(
    ("reply", "letter", "form", "exactly"),
    [
        ("A", "A", "letter", "A"),
        (" B\n", "B", "letter", "B"),
        ("", "", "", ""),
        ("maybe", "", "", ""),
        ("Ａ", "", "", ""),
        ("a", "", "", ""),
        ("A.", "A", "stray", ""),
        ("INVALID", "A", "stray", ""),
        ("INCORRECT", "C", "stray", ""),
        ("(A) or (B)", "B", "stray", ""),
        ("Point (A) lies on the line, so the reply is wrong", "A", "stray", ""),
        (r"The response has \boxed{A} and is wrong", "A", "stray", ""),
        (" \\boxed{A}\n", "A", "marked", ""),
        (r"so. Final Judgment: \boxed{B} - INCORRECT", "B", "marked", ""),
        ("Final Judgment: B", "B", "stray", ""),
        ("(Because it differs", "B", "stray", ""),
        (r"boxed{A}, no: \boxed{C} - INCOMPLETE. Final Judgment: (B)", "C", "stray", ""),
        ("A and B. Final Judgment: (B) - INCORRECT", "B", "marked", ""),
        ("(A) Final Judgment: none", "", "", ""),
        (r"\boxed{D}", "", "", ""),
    ],
)
def test_a_reply_is_read_as_published(reply: str, letter: str, form: str, exactly: str) -> None:
    assert parse_reply(reply) == (letter, form)
    assert parse_reply(reply, "justrl-exact") == (exactly, "letter" if exactly else "")
    # cut off at its limit, a reply is in no known form, but for the letter alone, which is all that is asked for
    cut = {"marked": "stray"}.get(form, form)
    assert parse_reply(reply, finish_reason="length") == (letter, cut)


@given(st.text(st.sampled_from("ABC(){}x \n") | st.characters()), st.sampled_from("ABC"))
def test_any_reply_is_read(text: str, letter: str) -> None:
    said, form = parse_reply(text)
    assert (said == "") == (form == "")
    assert said in text
    assert parse_reply(f"{text} Final Judgment: \\boxed{{{letter}}}") == (letter, "marked")


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
    encode, room = TOKENISERS[name], context - min(2048, context // 8)  # the rest is kept for the reply
    question = Question("b", "p", problem, "7", response, None)
    fitted = fitted_prompt(question, encode, context, PROMPT)
    if fitted is None:
        assert len(encode(message(question, "", PROMPT))) > room
        return
    tokens, shortened = fitted
    assert len(tokens) <= room
    same = list(tokens) == encode(message(question, plain(response), PROMPT))
    # tokens of nine characters say nothing of the text: a shortened response may have as many
    assert shortened != same or (same and name == "nine characters")
    if shortened and name == "characters":
        shown = "".join(map(chr, tokens)).split("\nRESPONSE\n", 1)[1]
        assert plain(response).endswith(shown.removesuffix("\nLETTER"))
        assert len(tokens) == room or "<|" in response


def test_justrl_shows_the_whole_response_as_it_is_and_no_question() -> None:
    question = _question("3", "<|im_end|>" + 90 * "so ")
    whole = PROMPT.text.format(question="", gold_answer="7", llm_response=question.response)
    encode = TOKENISERS["characters"]
    assert fitted_prompt(question, encode, len(whole) + 1, PROMPT, "justrl-exact") == (tuple(encode(whole)), False)
    assert fitted_prompt(question, encode, len(whole), PROMPT, "justrl-exact") is None


def test_a_question_that_cannot_fit_is_recorded_and_not_asked(tmp_path: Path) -> None:
    engine, path = Scripted(context=50), tmp_path / "j.jsonl"
    for _ in range(2):
        assert _ask([_question("3")], engine, path) == ["not_asked"]
    assert engine.asked == []
    (j,) = store.read(path, Judgement)
    assert (j.status, j.letter) == ("too_long", "")
    # a response that is shown in part says so
    shown = tmp_path / "k.jsonl"
    _ask([_question("3"), _question("4", 300 * "word ")], engine := Scripted(context=400), shown)
    assert [j.shortened for j in store.read(shown, Judgement)] == [False, True]
    assert len(engine.asked[1]) == 350
    # a judge with more positions is asked
    assert _ask([_question("3")], longer := Scripted(), path) == ["incorrect"]
    assert len(longer.asked) == 1


def test_justrls_question_is_left_to_a_server_that_alone_can_count_it(tmp_path: Path) -> None:
    judge, path = Judge("verifier", "r1", PROMPT, "justrl-exact"), tmp_path / "j.jsonl"
    engine = Scripted(context=20, says={"it is 3": "A", "it is 4": "boom"})
    engine.counts_tokens = False
    assert _ask([_question("3"), _question("4")], engine, path, judge) == ["correct", "not_asked"]
    assert [(j.status, j.error) for j in store.read(path, Judgement)] == [("answered", ""), ("error", "lost")]


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
    assert ["50 positions" in notes[0], "lost" in notes[1]] == [True, True]
    assert judge_notes(others[2:]) == []
    assert len(judge_notes([])) == 1


@pytest.mark.parametrize(
    ("replies", "unclear", "questions", "stops"),
    [
        (1, 1, 0, False),
        (20, 2, 0, True),
        (100, 2, 0, False),
        (100, 3, 0, True),
        (100, 60, 3000, False),
        (100, 61, 3000, True),
    ],
)
def test_replies_in_no_known_form_stop_the_scoring_above_two_percent(
    replies: int, unclear: int, questions: int, stops: bool
) -> None:
    """Each second one has a stray letter. What was not answered counts neither way; JustRL's mode has no such rule."""
    said = [_said(f"k{i}", letter="A" if i % 2 else "", form="stray" if i % 2 else "") for i in range(unclear)]
    said += [_said(f"k{i}", letter="B") for i in range(unclear, replies)]
    said += [_said("l", "too_long")] if replies > 1 else []
    if stops:
        with pytest.raises(RunFailed, match=f"{unclear} of {replies} "):
            check_replies(said, questions)
    else:
        check_replies(said, questions)
    check_replies([j.model_copy(update={"judge_mode": "justrl-exact"}) for j in said])


@pytest.mark.parametrize(
    ("silent", "answered", "questions", "stops"),
    [
        (1, 0, 0, True),
        (1, 1, 0, False),
        (6, 1, 0, True),
        (2, 98, 0, False),
        (3, 97, 0, True),
        (20, 0, 1000, False),
        (21, 0, 1000, True),
    ],
)
@pytest.mark.parametrize("mode", ["compass", "justrl-exact"])
def test_a_judge_that_is_silent_on_more_than_two_percent_or_on_everything_scores_nothing(
    silent: int, answered: int, questions: int, stops: bool, mode: str
) -> None:
    said = [_said(f"k{i}", "error" if i % 2 else "too_long", error="why", judge_mode=mode) for i in range(silent)]
    said += [_said(f"l{i}", letter="B", judge_mode=mode) for i in range(answered)]
    if stops:
        with pytest.raises(RunFailed, match=rf"{silent} of {questions or silent + answered} .*why"):
            check_replies(said, questions)
    else:
        check_replies(said, questions)


def test_equal_answers_to_a_problem_are_asked_once(tmp_path: Path) -> None:
    questions = [
        _question("3"),
        _question("3", "in other words 3"),
        _question("4"),
        _question("3", problem="other"),
        _question(None, "no idea"),
        _question(None, "no idea"),
        _question(None, "none at all"),
        _question("3", "elsewhere 3", benchmark="b2"),
        replace(_question("3", "so 3, but then"), cut=True),  # stands for no other
    ]
    assert len({question_key(questions[0], p, "compass") for p in (PROMPT, JudgePrompt(PROMPT.text + "?"))}) == 2
    engine = Scripted(says={"it is 4": "A", "no idea": "C", "other?": "maybe", "but then": "C"})
    verdicts = ["incorrect", "incorrect", "correct", *["invalid"] * 3, "incorrect", "incorrect", "invalid"]
    assert _ask(questions, engine, tmp_path / "j.jsonl") == verdicts
    assert len(engine.asked) == 7
    assert not any("in other words" in text for text in engine.asked)
    # JustRL shows whole responses, so only equal responses are one question
    assert len({question_key(q, PROMPT, "justrl-exact") for q in questions}) == 8


def test_what_is_recorded_is_not_asked_again(tmp_path: Path) -> None:
    questions = [_question(str(i)) for i in range(5)]
    path = tmp_path / "j.jsonl"
    _ask(questions[:3], Scripted(says={"it is 1": "A"}), path)
    half = path.read_bytes()
    path.write_bytes(half + b'{"schema_version":1,"key":"abc')  # killed while it wrote
    # an engine's failure is no reply: it is asked again
    second, third = Scripted(says={"it is 3": "boom"}), Scripted()
    assert _ask(questions, second, path) == ["incorrect", "correct", "incorrect", "not_asked", "incorrect"]
    assert _ask(questions, third, path) == ["incorrect", "correct", "incorrect", "incorrect", "incorrect"]
    assert [len(second.asked), len(third.asked)] == [2, 1]
    assert path.read_bytes().startswith(half)
    assert [j.status for j in store.read(path, Judgement)] == [*["answered"] * 3, "error", *["answered"] * 2]
    # other weights are another judge
    other = Scripted()
    _ask(questions, other, path, replace(JUDGE, revision="r2"))
    assert len(other.asked) == 5

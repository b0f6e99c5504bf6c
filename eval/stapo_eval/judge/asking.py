"""Asking the judge, each distinct question once, each reply on record as it comes; how a reply changes a score."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Engine, Finished, Request
from stapo_eval.judge.prompt import KNOWN_FORMS, MEANING, Question, fitted_prompt, parse_reply, question_key
from stapo_eval.judge.published import JudgePrompt
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.schema import Judgement, JudgeMode, JudgeVerdict, Sample

MOST_UNCLEAR = 0.02  # of the replies without a clear letter, of the questions without a reply; one stops nothing
_AT_ONCE = 1024  # questions: their prompts are some thousand token ids each


@dataclass(frozen=True)
class Judge:
    """Who judges and how: a name that is never a path, the exact weights, the prompt, and the mode."""

    model: str
    revision: str
    prompt: JudgePrompt
    mode: JudgeMode = "compass"


def distinct(
    questions: Sequence[tuple[Sample, Question]], judge: Judge
) -> tuple[list[str], dict[str, tuple[Sample, Question]]]:
    """(key of each question, key -> the first of its questions, which is the one that is put)."""
    keys = [question_key(q, judge.prompt, judge.mode) for _, q in questions]
    first: dict[str, tuple[Sample, Question]] = {}
    for key, pair in zip(keys, questions, strict=True):
        first.setdefault(key, pair)
    return keys, first


def recorded(path: Path, judge: Judge) -> dict[str, Judgement]:
    """What this judge has already said in this prompt and mode, by key; damaged lines are taken out, said so.

    An engine's failure is no reply: it is left out, so that the question is put again.
    """
    store.repair(path, Judgement)
    if not path.exists():
        return {}
    identity = (judge.model, judge.revision, judge.prompt.sha256, judge.mode)
    return {
        j.key: j
        for j in store.read(path, Judgement)
        if (j.judge_model, j.judge_revision, j.prompt_sha256, j.judge_mode) == identity and j.status != "error"
    }


def ask(
    first: Mapping[str, tuple[Sample, Question]], judge: Judge, engine: Engine, known: Mapping[str, Judgement]
) -> Iterator[list[Judgement]]:
    """Put what has no answer in `known` by greedy decoding; what came of it, piece by piece.

    What was too long is put where it fits now.
    """
    greedy, shortened = Decoding(0.0, 1.0, judge.prompt.reply_tokens), set[str]()
    asked = [key for key in first if key not in known or known[key].status != "answered"]
    # bytes say too little of whether a whole response fits: the server knows
    measured = judge.mode != "justrl-exact" or engine.counts_tokens
    context = engine.context if measured else sys.maxsize

    def judgement(key: str, end: Finished | None) -> Judgement:
        """What came of a question; without an end it does not fit the context."""
        sample, question = first[key]
        status, error, reply, ended = "too_long", f"does not fit {engine.context} positions", "", "stop"
        if end is not None:
            status, error = ("error" if end.finish_reason == "error" else "answered"), end.error
            reply, ended = end.text if status == "answered" else "", end.finish_reason
        letter, form = parse_reply(reply, judge.mode, ended)
        return Judgement(
            key=key,
            benchmark=question.benchmark,
            cell=sample.cell,
            problem_id=sample.problem_id,
            sample_index=sample.sample_index,
            extracted=question.answer,
            judge_model=judge.model,
            judge_revision=judge.revision,
            judge_mode=judge.mode,
            prompt_sha256=judge.prompt.sha256,
            shortened=key in shortened,
            engine=engine.name,
            prompt_tokens=end.prompt_tokens if end else 0,
            status=status,
            reply=reply,
            letter=letter,
            form=form,
            error=error,
        )

    for i in range(0, len(asked), _AT_ONCE):
        requests, too_long = [], []
        for key in asked[i : i + _AT_ONCE]:
            fitted = fitted_prompt(first[key][1], engine.encode, context, judge.prompt, judge.mode)
            if fitted is not None:
                requests.append(Request("judge", key, 0, 0, fitted[0], greedy))
                shortened |= {key} if fitted[1] else set()
            elif key not in known:
                too_long.append(judgement(key, None))
        if too_long:
            yield too_long
        for piece in engine.stream(requests, {}):
            yield [judgement(f.request.problem_id, f) for f in piece]


def check_judge(scope: str, mode: str) -> None:
    """Raises BadInput for a mode that does not let this scope be asked for."""
    if mode == "justrl-exact" and scope != "rule-negatives":
        raise BadInput(
            "JustRL asks its judge only where the rule fails",
            found=f"--judge-scope {scope}",
            expected="rule-negatives",
            next_step="leave out --judge-scope, or use --judge-mode compass",
        )


def verdict_by_judge(judgement: Judgement | None) -> JudgeVerdict:
    """What a judge said of a sample. A reply that is no letter is "invalid"; without a reply it is "not_asked"."""
    return MEANING[judgement.letter] if judgement and judgement.status == "answered" else "not_asked"


def scored(rule: bool, judge: JudgeVerdict) -> bool:
    """The scored boolean: the judge's word where there is one, elsewhere the rule's."""
    return rule if judge == "not_asked" else judge == "correct"


def unanswered(judged: Iterable[Judgement]) -> dict[str, int]:
    """How many of these have no clear letter, by why (`_UNANSWERED`); what does not occur is left out."""
    why = Counter(_why(j) for j in judged)
    return {name: why[name] for name in _UNANSWERED if why[name]}


def _why(j: Judgement) -> str:
    if j.status != "answered":
        return j.status
    return "" if j.form in KNOWN_FORMS else "stray" if j.letter else "no_letter"


def check_replies(judged: Iterable[Judgement], questions: int = 0) -> None:
    """Raises RunFailed where more than 2 % of the questions, and more than one or all, have no reply.

    Or where more than one reply and more than 2 % of them are in no known form; JustRL's mode has no such rule: there
    every reply but the letter A is a no.

    Args:
        judged: what was said of each question, once.
        questions: how many there are in all, while they are being asked: too many even if all others are clear.
    """
    given = list(judged)
    asked, silent = questions or len(given), [j for j in given if j.status != "answered"]
    if len(silent) > max(1, MOST_UNCLEAR * asked) or len(silent) == asked > 0:
        raise RunFailed(
            "the judge does not answer: nothing is scored",
            found=f"{len(silent)} of {asked} questions without a reply: {silent[0].error}",
            expected=f"at most {MOST_UNCLEAR:.0%}",
            next_step="serve the judge with more positions, or look at its log; then the same command asks again. "
            "Or stapo-eval judge --run DIR --judge none for the rule's scores",
        )
    replies = [j for j in given if j.status == "answered" and j.judge_mode != "justrl-exact"]
    unclear = [j for j in replies if _why(j)]
    if len(unclear) > max(1, MOST_UNCLEAR * (questions or len(replies))):
        raise RunFailed(
            "the judge does not answer as it was trained to: nothing is scored",
            found=f"{len(unclear)} of {len(replies)} replies in no known form, such as {unclear[0].reply[:80]!r}",
            expected=f"at most {MOST_UNCLEAR:.0%}; A, B or C alone, or boxed or in brackets as its final judgment",
            next_step="look at judgements.jsonl, where every reply stays; then stapo-eval judge --run DIR "
            "--judge MODEL with another model, --judge-prompt or --judge-mode, or --judge none for the rule's scores",
        )


def judge_notes(judged: Iterable[Judgement]) -> list[str]:
    """What a reader must know of questions that the judge did not answer, not clearly, or saw in part.

    Args:
        judged: what was said of each sample that the scope asks about.
    """
    samples = list(judged)
    if not samples:
        return ["the judge was asked nothing: its scope holds no question"]
    questions, notes = len({j.key for j in samples}), []
    for name, what in (_UNANSWERED | _SHORTENED).items():
        those = [j for j in samples if (j.shortened if name in _SHORTENED else _why(j) == name)]
        if those:
            error = next((f" ({j.error})" for j in those if j.error), "")
            out_of = f"{len({j.key for j in those})} of {questions} questions ({len(those)} samples)"
            notes.append(f"{out_of} {what[0]}{error}: {what[1]}")
    return notes


_UNANSWERED = {
    "too_long": (
        "do not fit the judge's context",
        "the rule's verdict counts; stapo-eval judge asks again if it has more positions",
    ),
    "error": (
        "have no reply because the judge's engine failed",
        "the rule's verdict counts; stapo-eval judge asks again",
    ),
    "no_letter": ("got a reply in no known form and without a letter", "they count as incorrect"),
    "stray": (
        "got a reply in no known form",
        "its last capital A, B or C counts, as CompassVerifier's README reads it",
    ),
}
_SHORTENED = {"shortened": ("did not fit the judge's context whole", "it saw the response's end")}

"""Asking the judge, each distinct question once, each reply on record as it comes; what its word does to a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Engine, Finished, Request
from stapo_eval.judge.prompt import (
    ANSWER_TOKENS,
    MODES,
    Question,
    fitted_prompt,
    parse_letter,
    question_key,
    verdict_of,
)
from stapo_results import store
from stapo_results.errors import BadInput
from stapo_results.schema import Judgement, JudgeMode, JudgeVerdict, Sample

GREEDY = Decoding(0.0, 1.0, ANSWER_TOKENS)
_AT_ONCE = 1024  # questions: their prompts are some thousand token ids each


@dataclass(frozen=True)
class Judge:
    """Who judges: a name that is never a path, the exact weights, and the mode."""

    model: str
    revision: str
    mode: JudgeMode = "compass"


def distinct(
    questions: Sequence[tuple[Sample, Question]], mode: JudgeMode
) -> tuple[list[str], dict[str, tuple[Sample, Question]]]:
    """(key of each question, key -> the first of its questions, which is the one that is put)."""
    keys = [question_key(q, mode) for _, q in questions]
    first: dict[str, tuple[Sample, Question]] = {}
    for key, pair in zip(keys, questions, strict=True):
        first.setdefault(key, pair)
    return keys, first


def recorded(path: Path, judge: Judge) -> dict[str, Judgement]:
    """What this judge has already said in this mode, by key; a half-written last line is cut off and reported.

    An engine's failure is no reply: it is left out, so that the question is put again.
    """
    store.repair(path)
    if not path.exists():
        return {}
    mine = (judge.model, judge.revision, judge.mode)
    return {
        j.key: j
        for j in store.read(path, Judgement)
        if (j.judge_model, j.judge_revision, j.judge_mode) == mine and j.status != "error"
    }


def ask(
    first: Mapping[str, tuple[Sample, Question]],
    judge: Judge,
    engine: Engine,
    known: dict[str, Judgement],
    record: Callable[[list[Judgement], list[Finished]], None],
) -> None:
    """Put what `known` lacks by greedy decoding; replies go to `record` piece by piece and into `known`.

    A part's questions are all handed to the engine, those that need no reply marked as done: its batches, and with
    them its arithmetic, are then those of a run that was never interrupted.
    """

    def judgement(key: str, prompt_tokens: int, status: str, reply: str = "", error: str = "") -> Judgement:
        sample, question = first[key]
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
            engine=engine.name,
            prompt_tokens=prompt_tokens,
            status=status,  # type: ignore[arg-type]  # pydantic checks it
            reply=reply,
            letter=parse_letter(reply, judge.mode),
            error=error,
        )

    def keep(judgements: list[Judgement], finished: list[Finished]) -> None:
        record(judgements, finished)
        known.update({j.key: j for j in judgements})

    keys = list(first)
    for part in (keys[i : i + _AT_ONCE] for i in range(0, len(keys), _AT_ONCE)):
        if all(key in known for key in part):
            continue
        requests, too_long = [], []
        for key in part:
            prompt = fitted_prompt(first[key][1], engine.encode, engine.context, judge.mode)
            if prompt is not None:
                requests.append(Request("judge", key, 0, 0, prompt, GREEDY))
            elif key not in known:
                too_long.append(judgement(key, 0, "too_long", error=f"does not fit {engine.context} positions"))
        if too_long:
            keep(too_long, [])
        done = {r.key for r in requests if r.problem_id in known}
        for piece in engine.stream(requests, done):
            replies = [
                judgement(f.request.problem_id, f.prompt_length, "answered", f.text)
                if f.finish_reason != "error"
                else judgement(f.request.problem_id, f.prompt_length, "error", error=f.error)
                for f in piece
            ]
            keep(replies, piece)


SCOPES = ("rule-negatives", "all")


def check_judge(scope: str, mode: str) -> None:
    """Raises BadInput for a scope or mode that does not exist, or a mode that lets another scope be asked for."""
    if scope not in SCOPES:
        raise BadInput("this judge scope does not exist", found=scope, expected=", ".join(SCOPES))
    if mode not in MODES:
        raise BadInput("this judge mode does not exist", found=mode, expected=", ".join(MODES))
    if mode == "justrl-exact" and scope != "rule-negatives":
        raise BadInput(
            "JustRL asks its judge only where the rule fails",
            found=f"--judge-scope {scope}",
            expected="rule-negatives",
            next_step="leave out --judge-scope, or use --judge-mode compass",
        )


def verdict_by_judge(judgement: Judgement | None) -> JudgeVerdict:
    """What a judge said of a sample. A reply that is no letter is "invalid"; without a reply it is "not_asked"."""
    if judgement is None or judgement.status != "answered":
        return "not_asked"
    return verdict_of(judgement.letter)


def scored(rule: bool, judge: JudgeVerdict) -> bool:
    """The scored boolean: the judge's word where there is one, elsewhere the rule's."""
    return rule if judge == "not_asked" else judge == "correct"


def unanswered(judged: Iterable[Judgement]) -> dict[str, int]:
    """How many of these have no letter, by why: "too_long", "error" (the judge's engine), "no_letter" (it said
    something else, which counts as a no). What does not occur is left out."""
    why = Counter(j.status if j.status != "answered" else "" if j.letter else "no_letter" for j in judged)
    return {name: why[name] for name in ("too_long", "error", "no_letter") if why[name]}


def judge_notes(judged: Iterable[Judgement]) -> list[str]:
    """What a reader must know of questions that the judge did not answer.

    Args:
        judged: what was said of each sample that the scope asks about.
    """
    samples = list(judged)
    if not samples:
        return ["the judge was asked nothing: its scope holds no question"]
    questions = {j.key: j for j in samples}
    counts, of_samples, found = unanswered(questions.values()), unanswered(samples), []
    for name, what, then in _UNANSWERED:
        if name in counts:
            first = next((j.error for j in questions.values() if j.status == name and j.error), "")
            out_of = f"{counts[name]} of {len(questions)} questions ({of_samples[name]} samples)"
            found.append(f"{out_of} {what}{f' ({first})' if first else ''}: {then}")
    return found


_UNANSWERED = (
    ("too_long", "do not fit the judge's context", "the rule's verdict stands"),
    (
        "error",
        "have no reply because the judge's engine failed",
        "the rule's verdict stands; stapo-eval judge asks again",
    ),
    ("no_letter", "got a reply that is none of the judge's letters", "they count as incorrect"),
)  # fmt: skip

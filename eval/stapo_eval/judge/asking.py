"""Asking the judge: each distinct question once, each reply on record as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_eval.decoding import Decoding
from stapo_eval.engines import Engine, Finished, Request
from stapo_eval.judge.prompt import ANSWER_TOKENS, Question, fitted_prompt, parse_letter, question_key
from stapo_results import store
from stapo_results.schema import Judgement, JudgeMode, Sample

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

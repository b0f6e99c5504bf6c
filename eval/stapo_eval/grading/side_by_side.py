"""The same responses under every preset, and what other graders say of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stapo_eval.grading.file import check_target, read_items, read_lines
from stapo_eval.grading.pool import Limits, grade
from stapo_eval.grading.rules import Options, Preset
from stapo_results import provenance, store
from stapo_results.errors import RecordError

PRESETS = get_args(Preset)
OURS = PRESETS[0]
_ENDING = 60  # characters of a response in the file


class Reading(BaseModel):
    """A line of another grader's file; `grader` is its name and version. Other fields are ignored."""

    id: str | int
    grader: str
    rule: bool


def read_verdicts(files: Sequence[Path], ids: Collection[str]) -> dict[str, dict[str, bool]]:
    """grader -> id -> verdict on each of `ids`.

    Raises:
        RecordError: a file without lines or with a preset's name for its grader, two verdicts on one response, none, or
            one on a response that is not among them.
    """
    found: dict[str, dict[str, bool]] = {}
    for file in files:
        lines = list(store.read(file, Reading))
        taken = sorted({x.grader for x in lines} & {*PRESETS})
        if taken or not lines:
            raise RecordError(f"{file} holds no verdicts of another grader", found=", ".join(taken) or "no line",
                              expected=f"lines whose grader is none of {', '.join(PRESETS)}",
                              next_step="name the grader with its version, as lighteval_grade does")  # fmt: skip
        for x in lines:
            if found.setdefault(x.grader, {}).setdefault(str(x.id), x.rule) is not x.rule:
                raise RecordError(f"{file}: two verdicts of {x.grader} on one response", found=x.id, expected="one",
                                  next_step="grade the responses again, into a new file")  # fmt: skip
    for name, verdicts in found.items():
        kinds = {"without a verdict": set(ids) - verdicts.keys(), "unknown": verdicts.keys() - set(ids)}
        if wrong := "; ".join(f"{len(of)} {kind}, such as {min(of)}" for kind, of in kinds.items() if of):
            raise RecordError(f"{name} graded other responses", found=wrong, expected=f"each of the {len(ids)} once",
                              next_step="grade the same --input")  # fmt: skip
    return found


def grade_all(
    source: Path, target: Path, limits: Limits, others: Sequence[Path] = (), *,
    use_answer_line: bool = False, cut: Callable[[str], str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Grade a file by every preset, and write and return how the graders differ.

    `graders` counts by grader the responses that it calls right, among them those that `ours` calls wrong or finds no
    answer in, and those that `ours` calls right and it does not. `cases` holds each response on which two graders
    differ: what each says, the answer that `ours` takes, the last characters. No problem and no gold answer is written.

    Args:
        others: files of other graders' verdicts (`read_verdicts`).

    Raises:
        BadInput, RecordError: before any grading, as `grade_file` and `read_verdicts`.
    """
    check_target(source, target, limits)
    says: dict[str, list[bool]] = {}
    names = [str(line.id) for line in read_lines(source, Options())]
    read = read_verdicts(others, names)
    answers: list[str | None] = []
    for preset in PRESETS:
        _, items = read_items(source, Options(preset=preset), use_answer_line=use_answer_line, cut=cut)
        outcomes = grade(items, limits)
        says[preset] = [o.rule for o in outcomes]
        answers = [o.extracted for o in outcomes] if preset == OURS else answers
    says |= {grader: [of[name] for name in names] for grader, of in read.items()}
    cases = [
        {"id": line.id, "says": {grader: of[row] for grader, of in says.items()}, "answer": answers[row],
         "ending": line.response[-_ENDING:]}
        for row, line in enumerate(read_lines(source, Options()))
        if len({of[row] for of in says.values()}) > 1
    ]  # fmt: skip
    commit, dirty = provenance.code_version()
    found = {
        "schema_version": 1, "code_commit": commit, "code_dirty": dirty, "packages": provenance.package_versions(),
        "responses": len(names), "without_answer": answers.count(None),
        "graders": {grader: _counts(of, says[OURS], answers) for grader, of in says.items()}, "cases": cases,
    }  # fmt: skip
    store.write_json(target, found)
    return found


def _counts(of: Sequence[bool], ours: Sequence[bool], answers: Sequence[str | None]) -> dict[str, int]:
    rows = list(zip(of, ours, answers, strict=True))
    return {
        "right": sum(of),
        "right_ours_wrong": sum(x and not y and a is not None for x, y, a in rows),
        "right_ours_no_answer": sum(x and a is None for x, _, a in rows),
        "wrong_ours_right": sum(y and not x for x, y, _ in rows),
    }

"""Grading any JSONL, by one preset or by all beside other graders; the whole file is checked first."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stapo_eval.grading.pool import Item, Limits, check_limits, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options, Preset
from stapo_results import provenance, runs, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.terminal import Display

Cut = Callable[[str], str]
_LONGEST_INTEGER = 4000  # digits that Python converts; longer ones stay text
_EXPECTED = "a JSON object with id, answer (text or list of texts) and response (text)"


@dataclass(frozen=True)
class InputLine:
    """One line; `id` is kept as it was given."""

    id: Any
    gold: Gold
    response: str
    options: Options


def _gold(value: Any) -> Gold:
    """The gold answer; raises ValueError for what is no text, number or list of those, or empty."""
    if isinstance(value, list) and value and not any(isinstance(x, list) for x in value):
        return tuple(str(_gold(x)) for x in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("answer is of another type")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("answer is no number")
    if not str(value).strip(" \t\r\n$"):
        raise ValueError("answer is empty, and would say nothing of a response")
    return _sound(str(value))


def _sound(text: str) -> str:
    """The text with U+FFFD for half a surrogate pair, which JSON can spell and no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _options(row: dict[str, Any], options: Options) -> Options:
    """The options with what the line itself says; raises ValueError for a value of another type."""
    unit, tolerance, unordered = row.get("unit"), row.get("tolerance"), row.get("unordered")
    if not isinstance(unit, str | None) or not isinstance(unordered, bool | None):
        raise ValueError("unit is text, unordered true or false")
    if isinstance(tolerance, bool) or (tolerance not in (None, "") and not 0 <= float(tolerance) < math.inf):
        raise ValueError("tolerance has to be a number of at least zero")
    if unordered is not None:
        options = replace(options, unordered=unordered, ordered=not unordered)
    return replace(options, unit=unit or "", tolerance=None if tolerance in (None, "") else float(tolerance))


def _parse_line(line: bytes, where: str, options: Options) -> InputLine:
    """One line of the input. Bytes that are no UTF-8 become U+FFFD: a response is whatever a model produced.

    Raises:
        BadInput: naming the line, for what is no JSON object, lacks a field, or has a value that is none.
    """
    row: Any = None
    try:
        text = line.decode("utf-8", "replace")
        row = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_INTEGER else digits)
        if missing := [name for name in ("id", "answer", "response") if name not in row]:
            raise ValueError(f"it lacks {' and '.join(missing)}")
        if not isinstance(row["response"], str):
            raise ValueError('response is of another type: write one that is not there as ""')
        return InputLine(row["id"], _gold(row["answer"]), _sound(row["response"]), _options(row, options))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as e:
        found = sorted(row)[:20] if isinstance(row, dict) else line[:200].decode("utf-8", "replace").strip()
        raise BadInput(
            f"{where} cannot be graded: {str(e)[:200]}", found=found, expected=_EXPECTED, next_step="correct the line"
        ) from None


def read_lines(path: Path, options: Options) -> Iterator[InputLine]:
    """The lines of a file that are not blank.

    Raises:
        BadInput: for the first line that cannot be graded, or a file without one.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise BadInput(f"{path}: {what}", expected="a JSONL file", next_step="check --input")
    empty = True
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            text = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            if text.strip():
                empty = False
                yield _parse_line(text, f"{path}:{number}", options)
    if empty:
        raise BadInput(f"{path} holds no line", found="an empty file", expected=_EXPECTED, next_step="check --input")


def first_tokens(folder: str | os.PathLike, limit: int) -> Cut:
    """What cuts a response after its first `limit` tokens, as the tokenizer of this folder splits its text.

    A response's own tokens may have been others where a text can be split in several ways.

    Raises:
        BadInput: a limit below 1, or no tokenizer.json that can be read.
    """
    from tokenizers import Tokenizer

    path = Path(folder) / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path)) if limit > 0 else None
    except Exception:  # noqa: BLE001  the library raises nothing narrower
        tokenizer = None
    if tokenizer is None:
        raise BadInput("responses cannot be cut", found=f"{limit} tokens, {path}",
                       expected="1 token or more, and a model's folder with a sound tokenizer.json",
                       next_step="--max-tokens N --tokenizer DIR")  # fmt: skip
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def cut(text: str) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= limit else text[: offsets[limit - 1][1]]

    return cut


def _read_items(path: Path, options: Options, use_answer_line: bool, cut: Cut | None) -> tuple[list[Any], list[Item]]:
    """(ids, what is graded of each line); of a response only that stays in memory. Raises as `read_lines`."""
    ids, items = [], []
    for line in read_lines(path, options):
        response = cut(line.response) if cut else line.response
        answer = extract(response, line.gold, line.options.preset, use_answer_line=use_answer_line)
        ids.append(line.id)
        items.append(Item(line.gold, answer, line.options))
    return ids, items


def _check_target(source: Path, target: Path, limits: Limits) -> None:
    """Raises BadInput for limits that are none, and for a target that cannot be written or is the source."""
    if find_spec("math_verify") is None:  # it is imported by the grading processes alone
        raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
    check_limits(limits)
    if source.exists() and target.exists() and source.samefile(target):
        other = source.with_name(source.stem + ".verdicts.jsonl")
        raise BadInput("--output is the --input: the verdicts would take the place of the responses", found=target,
                       expected="another file", next_step=f"--output {other}")  # fmt: skip
    runs.check_file(target, "--output")


def grade_file(
    source: str | os.PathLike, target: str | os.PathLike, options: Options, limits: Limits, *,
    use_answer_line: bool = False, cut: Cut | None = None,
) -> Counter[str]:  # fmt: skip
    """Grade a file into another, one verdict a line in the same order; returns the number of lines by reason.

    Args:
        cut: what is left of a response before it is graded.

    Raises:
        BadInput: before any grading, for limits that are none, a target that cannot be written or is the source, or,
            with file and line, for a line that cannot be graded.
    """
    path = Path(source)
    _check_target(path, Path(target), limits)
    ids, items = _read_items(path, options, use_answer_line, cut)
    with Display() as display, store.replacing(target) as out:

        def progress(graded: int, distinct: int) -> None:
            share = graded / max(1, distinct)
            display.show(lambda: f"{path.name}: graded {share * len(items):.0f} of {len(items)}", share)

        outcomes = grade(items, limits, progress)
        for line_id, o in zip(ids, outcomes, strict=True):
            verdict = {"id": line_id, "extracted": o.extracted, "rule": o.rule, "reason": o.reason,
                       "seconds": round(o.seconds, 6)}  # fmt: skip
            out.write(json.dumps(verdict, ensure_ascii=True).encode() + b"\n")
    return Counter(o.reason for o in outcomes)


_PRESETS = get_args(Preset)
_ENDING = 60  # characters of a response in the file of differences


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
    verdicts_of: dict[str, dict[str, bool]] = {}
    for file in files:
        lines = list(store.read(file, Reading))
        taken = sorted({x.grader for x in lines} & {*_PRESETS})
        if taken or not lines:
            raise RecordError(f"{file} holds no verdicts of another grader", found=", ".join(taken) or "no line",
                              expected=f"lines whose grader is none of {', '.join(_PRESETS)}",
                              next_step="name each line's grader, with its version")  # fmt: skip
        for x in lines:
            if verdicts_of.setdefault(x.grader, {}).setdefault(str(x.id), x.rule) is not x.rule:
                raise RecordError(f"{file}: two verdicts of {x.grader} on one response", found=x.id, expected="one",
                                  next_step="grade the responses again, into a new file")  # fmt: skip
    for name, verdicts in verdicts_of.items():
        kinds = {"without a verdict": set(ids) - verdicts.keys(), "unknown": verdicts.keys() - set(ids)}
        if wrong := "; ".join(f"{len(rows)} {kind}, such as {min(rows)}" for kind, rows in kinds.items() if rows):
            raise RecordError(f"{name} graded other responses", found=wrong, expected=f"each of the {len(ids)} once",
                              next_step="grade the same --input")  # fmt: skip
    return verdicts_of


def grade_all(
    source: Path, target: Path, limits: Limits, others: Sequence[Path] = (), *,
    use_answer_line: bool = False, cut: Cut | None = None,
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
    _check_target(source, target, limits)
    says: dict[str, list[bool]] = {}
    names = [str(line.id) for line in read_lines(source, Options())]
    if others and (twice := [name for name, n in Counter(names).items() if n > 1]):
        raise BadInput(f"{source}: an id of several responses", found=twice[0],
                       expected="an id of its own for each, since --verdicts names them by it",
                       next_step="number the responses")  # fmt: skip
    read = read_verdicts(others, names)
    answers: list[str | None] = []
    for preset in _PRESETS:
        outcomes = grade(_read_items(source, Options(preset=preset), use_answer_line, cut)[1], limits)
        says[preset] = [o.rule for o in outcomes]
        answers = answers or [o.extracted for o in outcomes]
    says |= {grader: [verdicts[name] for name in names] for grader, verdicts in read.items()}
    cases = [
        {"id": _sound(line.id) if isinstance(line.id, str) else line.id,
         "says": {grader: verdicts[row] for grader, verdicts in says.items()}, "answer": answers[row],
         "ending": line.response[-_ENDING:]}
        for row, line in enumerate(read_lines(source, Options()))
        if len({verdicts[row] for verdicts in says.values()}) > 1
    ]  # fmt: skip
    commit, dirty = provenance.code_version()
    report = {
        "schema_version": 1, "code_commit": commit, "code_dirty": dirty, "packages": provenance.package_versions(),
        "responses": len(names), "without_answer": answers.count(None),
        "graders": {grader: _counts(verdicts, says[_PRESETS[0]], answers) for grader, verdicts in says.items()},
        "cases": cases,
    }  # fmt: skip
    store.write_json(target, report)
    return report


def _counts(verdicts: Sequence[bool], ours: Sequence[bool], answers: Sequence[str | None]) -> dict[str, int]:
    rows = list(zip(verdicts, ours, answers, strict=True))
    return {
        "right": sum(verdicts),
        "right_ours_wrong": sum(x and not y and a is not None for x, y, a in rows),
        "right_ours_no_answer": sum(x and a is None for x, _, a in rows),
        "wrong_ours_right": sum(y and not x for x, y, _ in rows),
    }

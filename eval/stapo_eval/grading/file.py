"""Grading anybody's JSONL: checked as a whole first, then read in pieces, so that a file may be larger than memory."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stapo_eval.display import StageDisplay
from stapo_eval.grading.pool import Item, Limits, Outcome, Pool, check_limits
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options
from stapo_results import runs, store
from stapo_results.errors import BadInput, RunFailed

CHUNK_ROWS = 4096
CHUNK_BYTES = 32 << 20
_LONGEST_INTEGER = 4000  # digits that Python converts; longer ones stay text
_EXPECTED = "a JSON object with id, answer (text or list of texts) and response (text)"
# how others call the fields that a line lacks
_OTHER_NAMES = {
    "id": ("idx", "index", "uid", "problem_id", "question_id", "unique_id"),
    "answer": ("gold", "golds", "target", "ground_truth", "gt", "label", "reference", "solution", "expected"),
    "response": ("output", "completion", "generation", "prediction", "text", "model_output", "generated_text"),
}
_ONE_BACKSLASH = "\x08oxed"  # what a JSON reader makes of \boxed with one backslash: a backspace and "oxed"


@dataclass(frozen=True)
class Tally:
    """What a graded file holds: correct lines, lines, lines by reason, and responses whose box lost its backslash."""

    correct: int
    rows: int
    reasons: Counter[str]
    one_backslash: int


@dataclass(frozen=True)
class Row:
    """One line: `id` is kept as it was given."""

    id: Any
    gold: Gold
    response: str
    options: Options


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _gold(value: Any) -> Gold | None:
    """The gold answer, or None where the value is no text, number or list of those."""
    if isinstance(value, list):
        texts = [_gold(x) for x in value]
        return tuple(map(str, texts)) if texts and all(isinstance(t, str) for t in texts) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value)


def _options(row: dict[str, Any], options: Options) -> Options:
    """The options with what the line itself says.

    Raises:
        ValueError: a value of another type.
    """
    unit, tolerance, unordered = row.get("unit"), row.get("tolerance"), row.get("unordered")
    if unit is not None:
        if not isinstance(unit, str):
            raise ValueError("unit has to be text")
        options = replace(options, unit=unit)
    if tolerance is not None and tolerance != "":
        try:
            value = float(tolerance)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(tolerance, bool) or not (math.isfinite(value) and value >= 0):
            raise ValueError("tolerance has to be a number of at least zero")
        options = replace(options, tolerance=value)
    if unordered is not None:
        if not isinstance(unordered, bool):
            raise ValueError("unordered has to be true or false")
        options = replace(options, unordered=unordered, ordered=not unordered)
    return options


def parse_row(line: bytes, where: str, options: Options) -> Row:
    """One line of the input. Bytes that are no UTF-8 become U+FFFD: a response is whatever a model produced.

    Raises:
        BadInput: naming the line, for what is no JSON object or lacks a field.
    """
    try:
        row = json.loads(line.decode("utf-8", "replace"), parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as e:
        raise BadInput(
            f"{where} is not a JSON line", found=str(e)[:200], expected=_EXPECTED, next_step="correct the line"
        ) from None
    if not isinstance(row, dict):
        found = type(row).__name__
        raise BadInput(f"{where} is not an object", found=found, expected=_EXPECTED, next_step="correct the line")
    if missing := [name for name in ("id", "answer", "response") if name not in row]:
        raise _lacks(row, missing, where)
    gold = _gold(row["answer"])
    if gold is None or not isinstance(row["response"], str):
        name = "answer" if gold is None else "response"
        raise BadInput(
            f"{where}: {name} is of another type",
            found=f"{name}: {json.dumps(row[name])[:100]}",
            expected=_EXPECTED,
            next_step='write a response that is not there as "", or leave the line out' if name == "response" else
            "give the gold answer as text, a number or a list of those",
        )  # fmt: skip
    if any(not text.strip(" \t\r\n$") for text in ([gold] if isinstance(gold, str) else gold)):
        raise BadInput(
            f"{where}: the gold answer is empty",
            found=f"answer: {json.dumps(row['answer'])[:100]}",
            expected="an answer: an empty one would say nothing of a response",
            next_step="give the gold answer, or leave the line out",
        )
    try:
        return Row(row["id"], gold, row["response"], _options(row, options))
    except ValueError as e:
        raise BadInput(f"{where}: {e}", next_step="correct the line") from None


def _lacks(row: dict[str, Any], missing: list[str], where: str) -> BadInput:
    there = {str(name).lower(): name for name in row}
    renames = [
        f"rename {there[other]} to {name}"
        for name in missing
        for other in [next((x for x in _OTHER_NAMES[name] if x in there), "")]
        if other
    ]
    return BadInput(
        f"{where} lacks {' and '.join(missing)}",
        found="fields " + ", ".join(sorted(row)[:20]),
        expected=_EXPECTED,
        next_step=" and ".join(renames) or f"add {' and '.join(missing)} to every line",
    )


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    blank: list[tuple[bytes, str]] = []  # of those at the end of a file nothing is meant
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            found = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}:{number}"
            if not found[0].strip():
                blank = blank or [found]
                continue
            yield from blank
            blank = []
            yield found


def check(path: Path, options: Options) -> tuple[int, int]:
    """Read every line once; returns (lines, responses in which a backspace stands where a box was meant).

    Raises:
        BadInput: for the first line that cannot be graded, or a file without one.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise BadInput(f"{path}: {what}", expected="a JSONL file", next_step="check --input")
    rows = one_backslash = 0
    for line, where in _lines(path):
        one_backslash += _ONE_BACKSLASH in parse_row(line, where, options).response
        rows += 1
    if not rows:
        raise BadInput(f"{path} holds no line", found="an empty file", expected=_EXPECTED, next_step="check --input")
    return rows, one_backslash


def _chunks(path: Path, options: Options) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    size = 0
    for line, where in _lines(path):
        chunk.append(parse_row(line, where, options))
        size += len(line)
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _digest(item: Item) -> bytes:
    return blake2b(repr(item).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Grader:
    """Grades chunk after chunk and remembers each distinct item by its hash, not by its text."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.known: dict[bytes, Outcome] = {}

    def grade(self, items: list[Item], progress: Callable[[int, int], None]) -> list[Outcome]:
        digests = [_digest(item) for item in items]
        new = {d: item for d, item in zip(digests, items, strict=True) if d not in self.known}
        for d, outcome in zip(new, self.pool.grade(list(new.values()), progress), strict=True):
            # what was extracted is the item's own text, unless the preset looks for itself
            keep = outcome.extracted if new[d].options.preset == "math-verify" else None
            self.known[d] = replace(outcome, extracted=keep)
        return [self.known[d] for d in digests]


def _line(row: Row, item: Item, outcome: Outcome) -> bytes:
    # an empty box is no answer
    extracted = (
        None
        if outcome.reason == "no_answer"
        else outcome.extracted
        if item.options.preset == "math-verify"
        else item.answer
    )
    verdict = {
        "id": row.id, "extracted": extracted, "rule": outcome.rule, "reason": outcome.reason,
        "seconds": round(outcome.seconds, 6),
    }  # fmt: skip
    return json.dumps(verdict, ensure_ascii=True).encode() + b"\n"


def _check_target(source: Path, target: Path) -> None:
    if source.exists() and target.exists() and source.samefile(target):
        raise BadInput(
            "--output is the --input: the verdicts would take the place of the responses",
            found=target,
            expected="another file",
            next_step=f"--output {source.with_name(source.stem + '.verdicts.jsonl')}",
        )
    runs.check_file(target, "--output")


def grade_file(
    source: str | os.PathLike,
    target: str | os.PathLike,
    options: Options,
    limits: Limits,
    *,
    use_answer_line: bool = False,
) -> Tally:
    """Grade a file into another, one verdict a line in the same order.

    Raises:
        BadInput: before any grading, for limits that are none, a target that cannot be written or is the source, or,
            with file and line, for a line that cannot be graded.
    """
    path = Path(source)
    check_limits(limits)
    _check_target(path, Path(target))
    rows, one_backslash = check(path, options)
    correct = done = 0
    reasons: Counter[str] = Counter()
    with StageDisplay(path.name) as display, Pool(limits) as pool, store.replacing(target) as out:
        display.start("grade", 0, rows)
        grader = _Grader(pool)
        for chunk in _chunks(path, options):
            items = [
                Item(r.gold, extract(r.response, r.gold, r.options.preset, use_answer_line=use_answer_line), r.options)
                for r in chunk
            ]

            def progress(graded: int, distinct: int, before: int = done, size: int = len(chunk)) -> None:
                display.update(before + size * graded // max(1, distinct), rows)

            for row, item, outcome in zip(chunk, items, grader.grade(items, progress), strict=True):
                out.write(_line(row, item, outcome))
                correct += outcome.rule
                reasons[outcome.reason] += 1
            done += len(chunk)
            display.update(done, rows, correct=correct / done)
        if done != rows:
            raise RunFailed(f"{path} changed while it was read", found=f"{done} lines", expected=f"{rows} lines")
    return Tally(correct, rows, reasons, one_backslash)

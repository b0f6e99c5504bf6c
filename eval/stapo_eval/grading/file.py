"""Grading anybody's JSONL: the whole file is checked first, then graded in pieces, so that it may exceed the memory."""

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

from stapo_eval.grading.pool import Item, Limits, Outcome, Pool, check_limits
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options
from stapo_results import runs, store
from stapo_results.errors import BadInput, RunFailed
from stapo_results.terminal import Display

CHUNK_ROWS = 4096
CHUNK_BYTES = 32 << 20
_LONGEST_INTEGER = 4000  # digits that Python converts; longer ones stay text
_EXPECTED = "a JSON object with id, answer (text or list of texts) and response (text)"
_ONE_BACKSLASH = "\x08oxed"  # what a JSON reader makes of \boxed with one backslash: a backspace and "oxed"


@dataclass(frozen=True)
class Tally:
    """What a graded file holds: correct lines, lines, lines by reason, and responses whose box lost its backslash."""

    correct: int
    rows: int
    reasons: Counter[str]
    one_backslash: int


@dataclass(frozen=True)
class InputLine:
    """One line; `id` is kept as it was given."""

    id: Any
    gold: Gold
    response: str
    options: Options


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _gold(value: Any) -> Gold:
    """The gold answer.

    Raises:
        ValueError: the value is no text, number or list of those, or empty.
    """
    if isinstance(value, list) and value and not any(isinstance(x, list) for x in value):
        return tuple(str(_gold(x)) for x in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("answer is of another type")
    if not str(value).strip(" \t\r\n$"):
        raise ValueError("answer is empty, and would say nothing of a response")
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
    if tolerance not in (None, ""):
        try:
            value = math.nan if isinstance(tolerance, bool) else float(tolerance)
        except (TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise ValueError("tolerance has to be a number of at least zero")
        options = replace(options, tolerance=value)
    if unordered is not None:
        if not isinstance(unordered, bool):
            raise ValueError("unordered has to be true or false")
        options = replace(options, unordered=unordered, ordered=not unordered)
    return options


def parse_line(line: bytes, where: str, options: Options) -> InputLine:
    """One line of the input. Bytes that are no UTF-8 become U+FFFD: a response is whatever a model produced.

    Raises:
        BadInput: naming the line, for what is no JSON object, lacks a field, or has a value that is none.
    """
    try:
        row = json.loads(line.decode("utf-8", "replace"), parse_int=_integer, parse_constant=_constant)
        if not isinstance(row, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as e:
        raise BadInput(
            f"{where} is not a JSON object", found=str(e)[:200], expected=_EXPECTED, next_step="correct the line"
        ) from None
    if missing := [name for name in ("id", "answer", "response") if name not in row]:
        raise BadInput(
            f"{where} lacks {' and '.join(missing)}",
            found="fields " + ", ".join(sorted(row)[:20]),
            expected=_EXPECTED,
            next_step="rename the fields that hold them, or add them to every line",
        )
    try:
        if not isinstance(row["response"], str):
            raise ValueError('response is of another type: write one that is not there as ""')
        return InputLine(row["id"], _gold(row["answer"]), row["response"], _options(row, options))
    except ValueError as e:
        shown = {name: row[name] for name in ("answer", "unit", "tolerance", "unordered") if name in row}
        raise BadInput(
            f"{where}: {e}", found=json.dumps(shown)[:200], expected=_EXPECTED, next_step="correct the line"
        ) from None


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """(line, where it stands), without a byte order mark and blank lines at the end."""
    blank: list[tuple[bytes, str]] = []
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            found = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}:{number}"
            if found[0].strip():
                yield from blank
                yield found
                blank = []
            else:
                blank = blank or [found]


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
        one_backslash += _ONE_BACKSLASH in parse_line(line, where, options).response
        rows += 1
    if not rows:
        raise BadInput(f"{path} holds no line", found="an empty file", expected=_EXPECTED, next_step="check --input")
    return rows, one_backslash


def _chunks(path: Path, options: Options) -> Iterator[list[InputLine]]:
    chunk: list[InputLine] = []
    size = 0
    for line, where in _lines(path):
        chunk.append(parse_line(line, where, options))
        size += len(line)
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Grader:
    """Grades chunk after chunk and remembers each distinct item by its hash, not by its text."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self.known: dict[bytes, Outcome] = {}

    def grade(self, items: list[Item], progress: Callable[[int, int], None]) -> list[Outcome]:
        digests = [blake2b(repr(i).encode("utf-8", "surrogatepass"), digest_size=16).digest() for i in items]
        new = {d: item for d, item in zip(digests, items, strict=True) if d not in self.known}
        for d, outcome in zip(new, self.pool.grade(list(new.values()), progress), strict=True):
            # what was extracted is the item's own text, unless the preset looks for itself
            own = new[d].options.preset != "math-verify"
            self.known[d] = replace(outcome, extracted=None) if own else outcome
        return [self.known[d] for d in digests]


def _verdict_line(line: InputLine, item: Item, outcome: Outcome) -> bytes:
    extracted = outcome.extracted if item.options.preset == "math-verify" else item.answer
    verdict = {
        "id": line.id,
        "extracted": None if outcome.reason == "no_answer" else extracted,  # an empty box is no answer
        "rule": outcome.rule,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 6),
    }
    return json.dumps(verdict, ensure_ascii=True).encode() + b"\n"


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
    path, out_path = Path(source), Path(target)
    check_limits(limits)
    if path.exists() and out_path.exists() and path.samefile(out_path):
        raise BadInput(
            "--output is the --input: the verdicts would take the place of the responses",
            found=target,
            expected="another file",
            next_step=f"--output {path.with_name(path.stem + '.verdicts.jsonl')}",
        )
    runs.check_file(target, "--output")
    rows, one_backslash = check(path, options)
    correct = done = 0
    reasons: Counter[str] = Counter()
    with Display() as display, Pool(limits) as pool, store.replacing(target) as out:
        grader = _Grader(pool)
        for chunk in _chunks(path, options):

            def progress(graded: int, distinct: int, before: int = done, size: int = len(chunk)) -> None:
                now = before + size * graded // max(1, distinct)
                display.show(lambda: f"{path.name}: graded {now} of {rows}", now / rows)

            answers = [extract(x.response, x.gold, x.options.preset, use_answer_line=use_answer_line) for x in chunk]
            items = [Item(x.gold, answer, x.options) for x, answer in zip(chunk, answers, strict=True)]
            for line, item, outcome in zip(chunk, items, grader.grade(items, progress), strict=True):
                out.write(_verdict_line(line, item, outcome))
                correct += outcome.rule
                reasons[outcome.reason] += 1
            done += len(chunk)
        if done != rows:
            raise RunFailed(f"{path} changed while it was read", found=f"{done} lines", expected=f"{rows} lines")
    return Tally(correct, rows, reasons, one_backslash)

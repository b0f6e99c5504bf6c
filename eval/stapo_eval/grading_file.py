"""Grading anybody's JSONL: checked as a whole first, then read in pieces, so that a file may be larger than memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stapo_eval.display import Display
from stapo_eval.grading_pool import Item, Limits, Outcome, Pool
from stapo_eval.rules import Gold, Options
from stapo_eval.rules.presets import extract
from stapo_results import store
from stapo_results.errors import BadInput, RunFailed

CHUNK_ROWS = 4096
CHUNK_BYTES = 32 << 20
_LONGEST_INTEGER = 4000  # digits that Python converts; longer ones stay text


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
    expected = "a JSON object with id, answer (text or list of texts) and response (text)"
    try:
        row = json.loads(line.decode("utf-8", "replace"), parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as e:
        raise BadInput(f"{where} is not a JSON line", found=str(e)[:200], expected=expected) from None
    if not isinstance(row, dict):
        raise BadInput(f"{where} is not an object", found=type(row).__name__, expected=expected)
    missing = [name for name in ("id", "answer", "response") if name not in row]
    if missing:
        found = "fields " + ", ".join(sorted(row)[:20])
        raise BadInput(f"{where} lacks {' and '.join(missing)}", found=found, expected=expected)
    gold = _gold(row["answer"])
    if gold is None or not isinstance(row["response"], str):
        name = "answer" if gold is None else "response"
        raise BadInput(f"{where}: {name} is of another type", found=repr(row[name])[:100], expected=expected)
    try:
        return Row(row["id"], gold, row["response"], _options(row, options))
    except ValueError as e:
        raise BadInput(f"{where}: {e}", next_step="correct the line") from None


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}:{number}"


def check(path: Path, options: Options) -> int:
    """Read every line once; returns their number.

    Raises:
        BadInput: for the first line that cannot be graded.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file", next_step="check --input")
    rows = 0
    for line, where in _lines(path):
        parse_row(line, where, options)
        rows += 1
    return rows


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
    extracted = outcome.extracted if item.options.preset == "math-verify" else item.answer
    verdict = {
        "id": row.id, "extracted": extracted, "rule": outcome.rule, "reason": outcome.reason,
        "seconds": round(outcome.seconds, 6),
    }  # fmt: skip
    return json.dumps(verdict, ensure_ascii=True).encode() + b"\n"


def grade_file(
    source: str | os.PathLike,
    target: str | os.PathLike,
    options: Options,
    limits: Limits,
    *,
    use_answer_line: bool = False,
) -> tuple[int, int]:
    """Grade a file into another, one verdict a line in the same order; returns (correct, lines).

    Raises:
        BadInput: with file and line, before any grading, for a line that cannot be graded.
    """
    path = Path(source)
    rows = check(path, options)
    correct = done = 0
    with Display(path.name) as display, Pool(limits) as pool, store.replacing(target) as out:
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
            done += len(chunk)
            display.update(done, rows, correct=correct / done)
        if done != rows:
            raise RunFailed(f"{path} changed while it was read", found=f"{done} lines", expected=f"{rows} lines")
    return correct, rows

"""Grading anybody's JSONL: the whole file is checked first, then graded."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stapo_eval.grading.pool import Item, Limits, check_limits, grade
from stapo_eval.grading.presets import extract
from stapo_eval.grading.rules import Gold, Options
from stapo_results import runs, store
from stapo_results.errors import BadInput
from stapo_results.terminal import Display

_LONGEST_INTEGER = 4000  # digits that Python converts; longer ones stay text
_EXPECTED = "a JSON object with id, answer (text or list of texts) and response (text)"


@dataclass(frozen=True)
class InputLine:
    """One line; `id` is kept as it was given."""

    id: Any
    gold: Gold
    response: str
    options: Options


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits


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
    return str(value)


def _options(row: dict[str, Any], options: Options) -> Options:
    """The options with what the line itself says; raises ValueError for a value of another type."""
    unit, tolerance, unordered = row.get("unit"), row.get("tolerance"), row.get("unordered")
    if not isinstance(unit, str | None) or not isinstance(unordered, bool | None):
        raise ValueError("unit is text, unordered true or false")
    if tolerance not in (None, "") and not 0 <= float(tolerance) < math.inf:
        raise ValueError("tolerance has to be a number of at least zero")
    if unordered is not None:
        options = replace(options, unordered=unordered, ordered=not unordered)
    return replace(options, unit=unit or "", tolerance=None if tolerance in (None, "") else float(tolerance))


def parse_line(line: bytes, where: str, options: Options) -> InputLine:
    """One line of the input. Bytes that are no UTF-8 become U+FFFD: a response is whatever a model produced.

    Raises:
        BadInput: naming the line, for what is no JSON object, lacks a field, or has a value that is none.
    """
    row: Any = None
    try:
        row = json.loads(line.decode("utf-8", "replace"), parse_int=_integer)
        if missing := [name for name in ("id", "answer", "response") if name not in row]:
            raise ValueError(f"it lacks {' and '.join(missing)}")
        if not isinstance(row["response"], str):
            raise ValueError('response is of another type: write one that is not there as ""')
        return InputLine(row["id"], _gold(row["answer"]), row["response"], _options(row, options))
    except (ValueError, TypeError, RecursionError) as e:
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
                yield parse_line(text, f"{path}:{number}", options)
    if empty:
        raise BadInput(f"{path} holds no line", found="an empty file", expected=_EXPECTED, next_step="check --input")


def first_tokens(folder: str | os.PathLike, limit: int) -> Callable[[str], str]:
    """What cuts a response after its first `limit` tokens, as the tokenizer of this folder splits its text.

    A response's own tokens may have been others where a text can be split in several ways.

    Raises:
        BadInput: a limit below 1, or no tokenizer.json that can be read.
    """
    from tokenizers import Tokenizer

    path = Path(folder) / "tokenizer.json"
    if limit < 1 or not path.is_file():
        there = path if path.is_file() else f"no {path}"
        raise BadInput("responses cannot be cut", found=f"{limit} tokens, {there}",
                       expected="1 token or more, and a model's folder with tokenizer.json",
                       next_step="--max-tokens N --tokenizer DIR")  # fmt: skip
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as e:  # noqa: BLE001  the library raises nothing narrower
        raise BadInput(f"{path} cannot be read", found=e, expected="a tokenizer.json",
                       next_step="copy the file again") from None  # fmt: skip
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def cut(text: str) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= limit else text[: offsets[limit - 1][1]]

    return cut


def read_items(
    path: Path, options: Options, *, use_answer_line: bool = False, cut: Callable[[str], str] | None = None
) -> tuple[list[Any], list[Item]]:
    """(ids, what is graded of each line); of a response only that stays in memory. Raises as `read_lines`."""
    ids: list[Any] = []
    items: list[Item] = []
    for line in read_lines(path, options):
        response = cut(line.response) if cut else line.response
        answer = extract(response, line.gold, line.options.preset, use_answer_line=use_answer_line)
        ids.append(line.id)
        items.append(Item(line.gold, answer, line.options))
    return ids, items


def check_target(source: Path, target: Path, limits: Limits) -> None:
    """Raises BadInput for limits that are none, and for a target that cannot be written or is the source."""
    check_limits(limits)
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
    cut: Callable[[str], str] | None = None,
) -> Counter[str]:
    """Grade a file into another, one verdict a line in the same order; returns the number of lines by reason.

    Args:
        cut: what is left of a response before it is graded.

    Raises:
        BadInput: before any grading, for limits that are none, a target that cannot be written or is the source, or,
            with file and line, for a line that cannot be graded.
    """
    path = Path(source)
    check_target(path, Path(target), limits)
    ids, items = read_items(path, options, use_answer_line=use_answer_line, cut=cut)
    with Display() as display, store.replacing(target) as out:

        def progress(graded: int, distinct: int) -> None:
            share = graded / max(1, distinct)
            display.show(lambda: f"{path.name}: graded {share * len(items):.0f} of {len(items)}", share)

        outcomes = grade(items, limits, progress)
        for line_id, outcome in zip(ids, outcomes, strict=True):
            verdict = {
                "id": line_id,
                "extracted": outcome.extracted,
                "rule": outcome.rule,
                "reason": outcome.reason,
                "seconds": round(outcome.seconds, 6),
            }
            out.write(json.dumps(verdict, ensure_ascii=True).encode() + b"\n")
    return Counter(o.reason for o in outcomes)

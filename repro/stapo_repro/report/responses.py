"""Single responses out of run folders: a bounded number, chosen by a rule that looks at no response.

Of every cell the same number is shown: sample 0 of its problems in their order, then sample 1, and so on. What is shown
is checked against the cell's record: a response whose verdict is another one there is an error, not a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from stapo_repro.read import Loaded, check_roots
from stapo_results.errors import RecordError
from stapo_results.schema import CellRecord, Sample, Verdict
from stapo_results.store import read, read_json

_HEAD, _TAIL = 3000, 1000  # characters of a response that are shown
_FOLDED = 400  # a longer one opens on request
SHOWN = 600  # responses in a page

Key = tuple[str, str, int]  # cell, problem, sample
T = TypeVar("T", Sample, Verdict)


@dataclass(frozen=True)
class Response:
    """One response, ready to be shown. `left_out` counts the characters between `head` and `tail`."""

    problem: str
    sample: int
    correct: bool
    grading: str
    head: str
    left_out: int
    tail: str
    folded: bool


@dataclass(frozen=True)
class ShownResponses:
    """What is shown of a cell's responses. `total` counts all that the record has."""

    responses: list[Response]
    total: int

    @property
    def left_out(self) -> int:
        return self.total - len(self.responses)


def shortened(text: str, head: int, tail: int) -> tuple[str, int, str]:
    """(beginning, number of characters left out, end); all of a text that fits stands in the beginning."""
    left_out = len(text) - head - tail
    return (text, 0, "") if left_out <= 0 else (text[:head], left_out, text[len(text) - tail :])


def choose(records: Sequence[CellRecord], most: int) -> dict[Key, str]:
    """The samples to show of some cells, in order -> the letter that the record has for each; `most` in all."""
    chosen: dict[Key, str] = {}
    for r in records:
        there = ((p, i) for i in range(r.n) for p in r.problems if p.verdicts[i] != "-")
        for p, i in islice(there, most // len(records)):
            chosen[r.cell.id, p.problem_id, i] = p.verdicts[i]
    return chosen


def _check(sample: Sample, verdict: Verdict | None, letter: str, folder: Path) -> Verdict:
    if verdict is None or verdict.correct != (letter == "1"):
        raise RecordError(
            f"{folder / 'verdicts.jsonl'}: the run and the record of the cell disagree about "
            f"{sample.problem_id}, sample {sample.sample_index}",
            found="no verdict" if verdict is None else f"correct {verdict.correct}",
            expected=f"{letter!r} as the record of {sample.cell} has it",
            next_step="name with --records and --runs what belongs together",
        )
    return verdict


def _response(s: Sample, v: Verdict) -> Response:
    answer = "no answer found" if v.extracted is None else f"answer {v.extracted[:80]}"
    judge = "" if v.judge == "not_asked" else f", judge: {v.judge}"
    rule = f"rule: {'right' if v.rule else 'wrong'} ({v.reason}){judge}"
    ends = {"stop": "ended by itself", "length": "cut at the limit", "error": "the engine failed"}[s.finish_reason]
    grading = f"{answer}; {rule}; {s.response_tokens} tokens, {ends}"
    folded = len(s.response) > _FOLDED
    return Response(s.problem_id, s.sample_index, v.correct, grading, *shortened(s.response, _HEAD, _TAIL), folded)


def _pick(lines: Iterable[T], wanted: Mapping[Key, str]) -> dict[Key, T]:
    found: dict[Key, T] = {}
    for line in lines:
        if (key := (line.cell, line.problem_id, line.sample_index)) in wanted:
            found[key] = line
            if len(found) == len(wanted):
                break  # the rest of a large file holds nothing that is shown
    return found


def load(folders: Sequence[Path], cells: Sequence[Loaded], most: int = SHOWN) -> dict[str, ShownResponses]:
    """Responses by cell id, of those of `cells` that one of the run folders made.

    Args:
        most: responses in all.

    Raises:
        BadInput: a folder that does not exist.
        RecordError: a broken line, or a verdict that is not the record's.
    """
    check_roots(folders)
    known = {c.record.cell.id: c.record for c in cells}
    held: dict[Path, list[CellRecord]] = {}
    taken: set[str] = set()
    for folder in {p.resolve(): p.parent for f in folders for p in sorted(f.rglob("samples.jsonl"))}.values():
        ids = [read_json(p, CellRecord).cell.id for p in sorted(folder.glob("cells/*.json"))]
        held[folder] = [known[i] for i in ids if i in known and i not in taken]
        taken.update(ids)
    wanted = choose([r for records in held.values() for r in records], most)
    shown: dict[str, ShownResponses] = {}
    for folder, records in held.items():
        ids = {r.cell.id for r in records}
        mine = {key: letter for key, letter in wanted.items() if key[0] in ids}
        samples = _pick(read(folder / "samples.jsonl", Sample), mine) if mine else {}
        verdicts = _pick(read(folder / "verdicts.jsonl", Verdict), mine) if mine else {}
        found = {
            key: _response(samples[key], _check(samples[key], verdicts.get(key), letter, folder))
            for key, letter in mine.items()
            if key in samples
        }
        for r in records:
            total = sum(len(p.verdicts) - p.verdicts.count("-") for p in r.problems)
            shown[r.cell.id] = ShownResponses([found[k] for k in found if k[0] == r.cell.id], total)
    return shown

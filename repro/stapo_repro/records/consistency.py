"""Whether cell records say one thing: a record with itself, and the records of one cell with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stapo_repro import labels
from stapo_results import json_text
from stapo_results.errors import RecordError
from stapo_results.schema import SETTINGS, CellRecord

Field = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """Where a record was read: a file's name for messages, and its bytes, asked for only to name a line."""

    name: str
    data: Callable[[], bytes]

    @classmethod
    def from_path(cls, path: Path) -> Source:
        return cls(str(path), path.read_bytes)

    def at(self, where: Field) -> str:
        """A field's place as file:line."""
        return json_text.place(Path(self.name), self.data(), where)


def _contradiction(record: CellRecord) -> tuple[Field, str, object, object] | None:
    """(field, what, found, expected) of the first thing in a record that another thing in it rules out."""
    cell, total = record.cell, record.n * len(record.problems)
    decoding = SETTINGS.get(cell.setting)
    found = record.temperature, record.top_p
    if decoding is not None and decoding != found:
        wrong = "temperature" if decoding[0] != found[0] else "top_p"
        return (wrong,), f"temperature and top-p of {cell.setting}", found, decoding
    if record.miniature != (cell.size == labels.MINI):
        was = f"miniature {record.miniature}"
        return ("miniature",), f"a record of size {cell.size}", was, f"miniature {not record.miniature}"
    if len(record.problems) > record.benchmark_rows:
        what = "more problems than the benchmark holds"
        return ("benchmark_rows",), what, len(record.problems), record.benchmark_rows
    present = total - sum(p.verdicts.count("-") for p in record.problems)
    finished = sum(count for reason, count in record.finish_reasons.items() if reason != "error")
    if present != finished:
        return ("finish_reasons",), "graded samples against finished responses", present, finished
    for i, p in enumerate(record.problems):
        if p.rule and p.verdicts != (follows := _scored(record.scored_by, p.rule, p.judged)):
            what = f"verdicts of {p.problem_id}, scored by {record.scored_by}"
            return ("problems", i, "verdicts"), what, p.verdicts, follows
    return None


def _scored(by: str, rule: str, judged: str) -> str:
    """The verdicts that follow from the rule's and the judge's letters: where the judge replied its word counts."""
    if by == "rule" or not judged:
        return rule
    judges = {"c": "1", "i": "0", "x": "0"}
    return "".join(r if r == "-" else judges.get(j, r) for r, j in zip(rule, judged, strict=True))


def check_alone(record: CellRecord, source: Source) -> None:
    """Raises: RecordError with file and line, for a record that contradicts itself, as one edited by hand may."""
    wrong = _contradiction(record)
    if wrong is not None:
        where, what, found, expected = wrong
        raise RecordError(
            f"{source.at(where)}: the record contradicts itself: {what}",
            found=found,
            expected=expected,
            next_step="restore the file from its run folder, or evaluate the cell again",
        )


def check_pair(first: CellRecord, first_source: Source, second: CellRecord, second_source: Source) -> None:
    """Two records of one cell have to claim the same, wherever they come from; only one may be older than the lengths
    by verdict.

    Raises:
        RecordError: with the file and line of what differs in both.
    """
    apart = {"run_id", "code_commit", "code_dirty", "revisions"}
    if not (first.by_verdict and second.by_verdict):
        apart.add("by_verdict")
    a, b = (r.model_dump(mode="json", exclude=apart) for r in (first, second))
    where = _difference(a, b)
    if where is not None:
        shown = (f"{_shown(x, where)} at {s.at(where)}" for x, s in ((a, first_source), (b, second_source)))
        raise RecordError(
            f"two records of the cell {first.cell.id} contradict each other",
            found="{}: {} and {}".format(".".join(map(str, where)), *shown),
            expected="one record a cell, or equal ones",
            next_step="keep the one that is right: name only its folder, or remove the other file",
        )


def _difference(a: object, b: object) -> Field | None:
    """The way to the first thing in which two JSON values differ; a list of another length as a whole."""
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = [(k, a.get(k), b.get(k)) for k in dict.fromkeys((*a, *b))]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(i, *both) for i, both in enumerate(zip(a, b, strict=True))]
    else:
        return None if a == b else ()
    return next(((k, *below) for k, x, y in pairs if (below := _difference(x, y)) is not None), None)


def _shown(value: object, where: Field) -> str:
    """A field's value for a message, long ones shortened."""
    for part in where:
        if isinstance(value, Sequence) and isinstance(part, int):
            value = value[part]
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:60] + "..."

"""The same responses under several graders: what each calls right, and every response on which two differ.

graders.json holds no problem and no gold answer as the benchmark has it, since benchmarks are others'; what a response
gives for an answer may be one. responses.jsonl holds the golds, for graders in an environment of their own, and stays
where it was written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from stapo_repro import labels
from stapo_repro.calibration.causes import PRESETS
from stapo_repro.calibration.judging import at
from stapo_repro.calibration.regrade import FILE as RESPONSES
from stapo_repro.calibration.regrade import Means, grade, responses
from stapo_repro.read import Loaded
from stapo_repro.text import grid, model_text
from stapo_results import provenance, store
from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import Record

FILE = "graders.json"
JUDGED = "with the judge"
OURS = PRESETS[0]
_ENDING = 60  # characters of a response in the record
_SHOWN = 12


class Reading(BaseModel):
    """A line of another grader's file, as `stapo_eval.interop.lighteval_grade` writes it. grader: name and version."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    grader: str
    rule: bool


class Case(BaseModel):
    """A response on which two graders differ.

    Attributes:
        says: grader -> whether it calls the response right.
        answer: what `ours` takes for the answer; None where it finds none.
        ending: the response's last characters.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem_id: str
    sample_index: int
    says: dict[str, bool]
    answer: str | None
    ending: str


class Graded(BaseModel):
    """One cell. missing: samples without a response; right: grader -> responses that it calls right; without_answer:
    those in which `ours` finds none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: str
    benchmark: str
    at: str
    run_id: str
    responses: int
    missing: int
    without_answer: int
    right: dict[str, int]
    cases: list[Case]


class Place(NamedTuple):
    """What a response is of."""

    cell: str
    problem: str
    sample: int


class GraderRecord(Record):
    """graders.json. code_*, packages: versions that graded here; another grader's stands in its name."""

    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    cells: list[Graded]


def write_responses(cells: Sequence[Loaded], means: Means, target: Path) -> dict[str, Place]:
    """All responses with their gold answers, for any grader: id (cell/problem/sample), answer, response, ...

    Returns:
        What each line is of, in the order of the file.

    Raises:
        BadInput: responses or benchmark are not at hand, or the benchmark is another copy.
    """
    places: dict[str, Place] = {}
    lines: list[str] = []
    for cell in cells:
        with responses(cell, means) as mine:
            if mine.why:
                raise BadInput(f"{cell.file.parent.parent} cannot be graded again", found=mine.why,
                               expected="a run with samples.jsonl, and its benchmarks",
                               next_step="name its folder, with --data-dir BENCHMARKS where it needs one")  # fmt: skip
            rows = (mine.folder / RESPONSES).read_text(encoding="utf-8").splitlines()
        for (problem, sample), row in zip(mine.lengths, rows, strict=True):
            name = f"{cell.record.cell.id}/{problem}/{sample}"
            places[name] = Place(cell.record.cell.id, problem, sample)
            lines.append(json.dumps(json.loads(row) | {"id": name}) + "\n")
    if not lines:
        raise BadInput("there is nothing to grade", found="no response", expected="a run with responses",
                       next_step="run the same stapo-eval run again: it makes what is missing")  # fmt: skip
    store.write_atomic(target, "".join(lines))
    return places


def read_verdicts(files: Sequence[Path], ids: Collection[str]) -> dict[str, dict[str, bool]]:
    """grader -> id -> verdict on each of `ids`.

    Raises:
        RecordError: two verdicts on one response; none; or one on a response of another run.
    """
    found: dict[str, dict[str, bool]] = {}
    for file in files:
        lines = list(store.read(file, Reading))
        taken = {x.grader for x in lines} & {*PRESETS, JUDGED}
        if taken or not lines:
            raise RecordError(f"{file} holds no verdicts of another grader",
                              found=f"verdicts of {', '.join(sorted(taken))}" if lines else "no line",
                              expected=f"lines whose grader is none of {', '.join(PRESETS)}",
                              next_step="name the grader with its version, as lighteval_grade does")  # fmt: skip
        for x in lines:
            if found.setdefault(x.grader, {}).setdefault(x.id, x.rule) is not x.rule:
                raise RecordError(f"{file}: two verdicts of {x.grader} on one response", found=x.id, expected="one",
                                  next_step="grade responses.jsonl again, into a new file")  # fmt: skip
    for name, verdicts in found.items():
        kinds = {"without a verdict": set(ids) - verdicts.keys(), "unknown": verdicts.keys() - set(ids)}
        if wrong := "; ".join(f"{len(of)} {kind}, such as {min(of)}" for kind, of in kinds.items() if of):
            raise RecordError(f"{name} graded other responses", found=wrong, expected=f"each of the {len(ids)} once",
                              next_step="grade the responses.jsonl of this command")  # fmt: skip
    return found


def side_by_side(
    cells: Sequence[Loaded], places: Mapping[str, Place], source: Path, others: Mapping[str, Mapping[str, bool]]
) -> GraderRecord:
    """Every preset, the judge where it was asked, and the `others`, on the same responses.

    Args:
        places, source: what `write_responses` returned of the cells, and the file that it wrote.
        others: grader -> id -> verdict on every response.

    Raises:
        RunFailed: a preset could not grade.
    """
    lines = {preset: dict(zip(places, grade(source, preset), strict=True)) for preset in PRESETS}
    with source.open(encoding="utf-8") as rows:
        endings = {x["id"]: x["response"][-_ENDING:] for x in map(json.loads, rows)}
    done = []
    for r in (cell.record for cell in cells):
        names = [name for name, place in places.items() if place.cell == r.cell.id]
        says = {p: [bool(of[name]["rule"]) for name in names] for p, of in lines.items()}
        says |= {grader: [of[name] for name in names] for grader, of in others.items()}
        if r.scored_by == "rule+judge":
            scored = {p.problem_id: p.verdicts for p in r.problems}
            says[JUDGED] = [scored[places[name].problem][places[name].sample] == "1" for name in names]
        answers = [lines[OURS][name]["extracted"] for name in names]
        cases = [
            Case(problem_id=places[name].problem, sample_index=places[name].sample,
                 says={grader: of[row] for grader, of in says.items()}, answer=answers[row], ending=endings[name])
            for row, name in enumerate(names)
            if len({of[row] for of in says.values()}) > 1
        ]  # fmt: skip
        done.append(
            Graded(cell=r.cell.id, benchmark=r.cell.benchmark, at=at(r.cell), run_id=r.run_id, responses=len(names),
                   missing=r.n * len(r.problems) - len(names), without_answer=answers.count(None),
                   right={grader: sum(of) for grader, of in says.items()}, cases=cases)
        )  # fmt: skip
    commit, dirty = provenance.code_version()
    versions = provenance.package_versions()
    return GraderRecord(code_commit=commit, code_dirty=dirty, packages=versions, cells=done)


def to_markdown(found: GraderRecord) -> list[str]:
    """What each grader calls right, and where it differs from `ours`, by whether `ours` found an answer."""
    right: Counter[str] = Counter()
    apart: Counter[tuple[str, bool, bool]] = Counter()
    for c in found.cells:
        right.update(c.right)
        for case in c.cases:
            apart.update(
                (name, yes, case.answer is not None) for name, yes in case.says.items() if yes != case.says[OURS]
            )
    total, missing, without = (sum(getattr(c, k) for c in found.cells)
                               for k in ("responses", "missing", "without_answer"))  # fmt: skip
    rows = [
        [name, f"{n:,}", *("" if name == OURS else f"{apart[name, its, box]:,}" for its, box in _KINDS)]
        for name, n in right.items()
    ]
    return [
        f"{total:,} responses{f' ({missing:,} more are missing)' if missing else ''}; in {without:,} of them `{OURS}` "
        "finds no answer.", "",
        *grid(("Grader", "Calls right", *_HEAD), rows),
    ]  # fmt: skip


_KINDS = ((True, True), (True, False), (False, True))  # it says right, ours finds an answer
_HEAD = ("right, ours wrong", "right, ours finds no answer", "wrong, ours right")


def page_block(records: Sequence[Path]) -> str:
    """Each graders.json below `records`, then the first responses on which two graders differ, those with an answer
    before those without."""
    files = sorted({f for r in records for f in r.rglob(FILE)})
    if not files:
        return "Not run."
    out: list[str] = []
    for file in files:
        found = store.read_json(file, GraderRecord)
        names = dict.fromkeys(labels.benchmark_label(c.benchmark) for c in found.cells)
        counts, *table = to_markdown(found)
        out += [f"**{', '.join(names)}.** {counts}", *table, ""]
        if cases := sorted(((c, x) for c in found.cells for x in c.cases), key=lambda both: both[1].answer is None):
            rows = [
                [f"{case.problem_id}, {case.sample_index}, {c.at}", model_text(case.answer or "none"),
                 model_text(case.ending), ", ".join(n for n, yes in case.says.items() if yes),
                 ", ".join(n for n, yes in case.says.items() if not yes)]
                for c, case in cases[:_SHOWN]
            ]  # fmt: skip
            more = f"the first {_SHOWN} of {len(cases)}" if len(cases) > _SHOWN else "all of them"
            head = ("Problem, sample, setting", "Answer", "The response ends", "Right", "Wrong")
            out += [f"Where two of them differ ({more}):", "", *grid(head, rows, len(head)), ""]
    return "\n".join(out[:-1])

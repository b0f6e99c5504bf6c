"""The same responses under several graders: what each calls right, and every response on which two differ.

graders.json holds no problem and no gold answer as the benchmark has it, since benchmarks are others'; what a response
gives for an answer may be one. responses.jsonl holds the golds, for graders in an environment of their own, and stays
where it was written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stapo_repro import labels
from stapo_repro.calibration.causes import PRESETS
from stapo_repro.calibration.judging import at
from stapo_repro.calibration.regrade import FILE as RESPONSES
from stapo_repro.calibration.regrade import Means, responses
from stapo_repro.records.reading import Loaded
from stapo_repro.tables.render.markdown import grid, model_text
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


class GraderRecord(Record):
    """graders.json. code_*, packages: versions that graded here; another grader's stands in its name."""

    code_commit: str
    code_dirty: str
    packages: dict[str, str]
    cells: list[Graded]


def write_responses(cells: Sequence[Loaded], means: Means, target: Path) -> set[str]:
    """All responses with their gold answers, for another grader: id (cell/problem/sample), answer, response, ...

    Returns:
        The ids.

    Raises:
        BadInput: responses or benchmark are not at hand, or the benchmark is another copy.
    """
    lines = {}
    for cell in cells:
        with responses(cell, means) as mine:
            if mine.why:
                raise BadInput(f"{cell.file.parent.parent} cannot be graded again", found=mine.why,
                               expected="a run with samples.jsonl, and its benchmarks",
                               next_step="name its folder, with --data-dir BENCHMARKS where it needs one")  # fmt: skip
            rows = (mine.folder / RESPONSES).read_text(encoding="utf-8").splitlines()
            for key, row in zip(mine.lengths, rows, strict=True):
                name = _id(cell, *key)
                lines[name] = json.dumps(json.loads(row) | {"id": name}) + "\n"
    store.write_atomic(target, "".join(lines.values()))
    return set(lines)


def _id(cell: Loaded, problem: str, sample: int) -> str:
    return f"{cell.record.cell.id}/{problem}/{sample}"


def read_verdicts(files: Sequence[Path], ids: set[str]) -> dict[str, dict[str, bool]]:
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
        kinds = {"without a verdict": ids - verdicts.keys(), "unknown": verdicts.keys() - ids}
        if wrong := "; ".join(f"{len(of)} {kind}, such as {min(of)}" for kind, of in kinds.items() if of):
            raise RecordError(f"{name} graded other responses", found=wrong, expected=f"each of the {len(ids)} once",
                              next_step="grade the responses.jsonl of this command")  # fmt: skip
    return found


def side_by_side(cells: Sequence[Loaded], means: Means, others: Mapping[str, Mapping[str, bool]]) -> GraderRecord:
    """Every preset, the judge where it was asked, and the `others`, on the same responses.

    Args:
        others: grader -> id -> verdict on every response.

    Raises:
        RunFailed: a preset could not grade.
    """
    done = []
    for cell in cells:
        with responses(cell, means) as mine:
            keys = list(mine.lengths)
            lines = {preset: mine.lines(preset) for preset in PRESETS}
            says = {p: [bool(x["rule"]) for x in of] for p, of in lines.items()}
            says |= {name: [of[_id(cell, *k)] for k in keys] for name, of in others.items()}
            if cell.record.scored_by == "rule+judge":
                scored = {p.problem_id: p.verdicts for p in cell.record.problems}
                says[JUDGED] = [scored[problem][i] == "1" for problem, i in keys]
            texts = [json.loads(x)["response"] for x in (mine.folder / RESPONSES).read_text("utf-8").splitlines()]
            answers = [x["extracted"] for x in lines[OURS]]
        cases = [
            Case(problem_id=problem, sample_index=i, says=said, answer=answers[row], ending=texts[row][-_ENDING:])
            for row, (problem, i) in enumerate(keys)
            if len(set((said := {name: of[row] for name, of in says.items()}).values())) > 1
        ]
        done.append(
            Graded(cell=cell.record.cell.id, benchmark=cell.record.cell.benchmark, at=at(cell.record.cell),
                   run_id=cell.record.run_id, responses=len(keys),
                   missing=cell.record.n * len(cell.record.problems) - len(keys), without_answer=answers.count(None),
                   right={name: sum(of) for name, of in says.items()}, cases=cases)
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

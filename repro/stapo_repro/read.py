"""Finding the records that a table or a figure is made of, and refusing those that contradict each other."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stapo_results.errors import BadInput, RecordError
from stapo_results.schema import SETTINGS, CellRecord, Cut, Run, StepMetrics, last_attempts
from stapo_results.sizes import is_miniature_size
from stapo_results.store import read, read_json

METHODS = "methods"
"""Short runs of the methods beyond the paper's."""
ENGINES = "engines"
"""Cells of `real` once more, by another engine."""
JUDGE = "judge"
"""Cells judged by another model than the paper's."""
APART = ("testbed", "labels", METHODS, ENGINES, JUDGE, "kills", "worth", "noise")
"""Folders of results/records with experiments of their own: in no table or figure of the others, and no estimate."""


@dataclass(frozen=True)
class Loaded:
    """A cell's record with its place.

    Attributes:
        path: relative to the records root, with "/" (two machines print the same).
        file: where it was read.
        sha256: of the record's content without `run_id`, which another commit changes: a cell made twice from the
            same samples has one hash.
    """

    record: CellRecord
    path: str
    sha256: str
    file: Path = Path()


@dataclass(frozen=True)
class TrainingRun:
    """A training run's curves: method, size, seed, and metrics by step. `folder` may hold its token log. `machine`: the
    name of its first GPU, or of its processor; "" where no record says it."""

    method: str
    size: str
    seed: int
    path: str
    status: str
    steps: list[StepMetrics]
    run_id: str = ""
    folder: Path = Path()
    synthetic: bool = False
    cut: Cut | None = None
    machine: str = ""

    @property
    def last(self) -> int:
        """Its last step; 0 without one."""
        return self.steps[-1].step if self.steps else 0

    def series(self, metric: str) -> dict[int, float]:
        """Step -> value, of the steps that have it; empty where the run did not log it.

        Raises:
            RecordError: the record's `cut` left the metric out.
        """
        values = {s.step: s.values[metric] for s in self.steps if metric in s.values}
        if not values and self.cut is not None and self.cut.left_out(metric):
            raise RecordError(
                f"{self.path}: {metric} was left out of the record",
                found=", ".join(self.cut.kept),
                expected=f"{metric} too, which the run folder's metrics.jsonl has if the run logged it",
                next_step="read the run folder itself; results/records/README.md says where whole records are",
            )
        return values


def _content_hash(record: CellRecord) -> str:
    # without what has its default: a field that later records may have changes no earlier record's hash
    content = record.model_copy(update={"run_id": ""}).model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def _contradiction(record: CellRecord) -> tuple[str, object, object] | None:
    """(what, found, expected) of the first thing in a record that another thing in it rules out."""
    cell, problems, rows = record.cell, record.problems, record.benchmark_rows
    used = record.temperature, record.top_p, record.top_k, record.min_p
    decoding = (*SETTINGS[cell.setting], -1, 0.0) if cell.setting in SETTINGS else used  # else made of its name
    if used != decoding:
        return f"temperature, top-p, top-k and min-p of {cell.setting}", used, decoding
    if record.miniature != is_miniature_size(cell.size):
        return f"a record of size {cell.size}", f"miniature {record.miniature}", f"miniature {not record.miniature}"
    if len(problems) > rows:
        return "more problems than the benchmark holds", len(problems), rows
    missing = sum(p.verdicts.count("-") for p in problems)
    present = record.n * len(problems) - missing
    finished = sum(record.finish_reasons.values()) - record.finish_reasons.get("error", 0)
    if present != finished:
        return "graded samples against finished responses", present, finished
    cut, ended = sum(v.truncated for v in record.by_verdict.values()), record.finish_reasons.get("length", 0)
    if record.by_verdict and cut != ended:
        return "responses of by_verdict that were truncated against those that met the limit", cut, ended
    for p in problems:
        if p.judged and not p.rule:
            return f"judged verdicts of {p.problem_id}", "none by the rule", "both"
        expected = _scored(record.scored_by, p.rule, p.judged) if p.rule else p.verdicts
        if p.verdicts != expected:
            return f"verdicts of {p.problem_id}, scored by {record.scored_by}", p.verdicts, expected
    return None


def _scored(by: str, rule: str, judged: str) -> str:
    """The verdicts that follow from the rule's and the judge's letters: where the judge replied its word counts."""
    if by == "rule" or not judged:
        return rule
    letters = {"c": "1", "i": "0", "x": "0"}
    pairs = zip(rule, judged, strict=True)
    return "".join(r if r == "-" else letters.get(j, r) for r, j in pairs)


def _check_pair(first: Loaded, second: Loaded) -> None:
    """Two records of one cell have to claim the same, wherever they come from.

    Raises:
        RecordError: with both files and the fields that differ.
    """
    apart = {"run_id", "code_commit", "code_dirty", "revisions"}
    a, b = (r.model_dump(mode="json", exclude=apart) for r in (first.record, second.record))
    if differing := [name for name in a if a[name] != b[name]]:
        raise RecordError(
            f"two records of the cell {first.record.cell.id} contradict each other",
            found=f"other {', '.join(differing)} in {first.file} and {second.file}",
            expected="one record a cell, or equal ones",
            next_step="name only the folder of the one that is meant; results/records is read without --records",
        )


def check_roots(roots: Sequence[Path]) -> None:
    """Raises: BadInput for a records folder that does not exist."""
    for root in roots:
        if not root.is_dir():
            raise BadInput(
                "no such records folder",
                found=root,
                expected="a folder with cells/*.json somewhere below it",
                next_step="name the right folder, or make one: stapo-repro run stapo/mini",
            )


def check_found(roots: Sequence[Path], *, evaluated: bool = False) -> None:
    """Raises: BadInput where a folder that was named has no record: what it should have would be "not run".

    Args:
        evaluated: at least one of them has to have an evaluation's.
    """
    cells = [root for root in roots if below(root, "cells/*.json")]
    empty = [root for root in roots if root not in cells and not below(root, "run.json")]
    if empty := empty or ([*roots] if evaluated and not cells else []):
        raise BadInput("no records below a folder named", found=", ".join(map(str, empty)),
                       expected="cells/*.json of an evaluation" + ", or run.json of a run" * (not evaluated),
                       next_step="name the right folder, or make one: stapo-repro run stapo/mini")  # fmt: skip


def below(root: Path, pattern: str, skip: Sequence[str] = ()) -> list[Path]:
    """Files below the root in a fixed order, also where a link leads, without the root's own folders in `skip`.

    Raises:
        BadInput: a folder that this user may not read: what is in it would be "not run".
    """

    def refuse(e: OSError) -> None:
        raise BadInput("a folder of records cannot be read", found=f"{e.filename}: {e.strerror}",
                       next_step="have its owner allow it, or leave it out")  # fmt: skip

    found, seen, links = list[Path](), set[str](), [f"{root}"]
    while links:  # behind all folders: what stands here itself has its own name
        for at, folders, files in os.walk(links.pop(0), onerror=refuse):
            if (real := os.path.realpath(at)) in seen:
                folders.clear()
                continue
            seen.add(real)
            found += [path for name in files if (path := Path(at, name)).match(pattern)]
            links += sorted(path for name in folders if os.path.islink(path := os.path.join(at, name)))
    return [p for p in sorted(found) if p.relative_to(root).parts[0] not in skip]


def load_cells(roots: Sequence[Path], skip: Sequence[str] = ()) -> list[Loaded]:
    """Every `cells/*.json` below the roots, by cell id. The same cell twice counts once (the first) when it says the
    same, whichever code made it; stderr names both files.

    Args:
        skip: names of the roots' own folders that are left out: experiments of their own, whose cells have the ids of
            others (the testbed trains JustRL and STAPO with seed 0 too).

    Raises:
        BadInput: a root that does not exist.
        RecordError: with the file, for a record that does not validate or contradicts itself, two records of one
            cell that differ, or two models under one label.
    """
    check_roots(roots)
    cells: dict[str, Loaded] = {}
    for root in roots:
        for path in below(root, "cells/*.json", skip):
            record = read_json(path, CellRecord)
            if contradiction := _contradiction(record):
                what, wrong, expected = contradiction
                raise RecordError(f"{path}: the record contradicts itself: {what}", found=wrong, expected=expected,
                                  next_step="restore the file from its run folder, or evaluate the cell "
                                  "again")  # fmt: skip
            loaded = Loaded(record, path.relative_to(root).as_posix(), _content_hash(record), path)
            before = cells.setdefault(record.cell.id, loaded)
            if before is loaded or before.file.samefile(path):
                continue
            _check_pair(before, loaded)
            print(f"same record twice, counted once: {before.file} and {path}", file=sys.stderr)
    _check_weights(list(cells.values()))
    return [cells[key] for key in sorted(cells)]


def weights_of(record: CellRecord) -> str:
    """The hash of the model's weights; "" where it is not known."""
    _, known, weights = record.revisions.get("model", "").rpartition("weights sha256:")
    return weights if known else ""


def _check_weights(cells: Sequence[Loaded]) -> None:
    """Raises RecordError where cells of one label are of two models; an endpoint's weights are not known."""
    first: dict[tuple[str, str, int, int | str], tuple[str, Loaded]] = {}
    for x in cells:
        weights, label = weights_of(x.record), x.record.cell.model
        if not weights:
            continue
        before, other = first.setdefault(label, (weights, x))
        if before != weights:
            raise RecordError(
                f"{'/'.join(map(str, label))} is two models",
                found=f"weights {before[:12]} in {other.file}, {weights[:12]} in {x.file}",
                expected="one model a label",
                next_step="evaluate one of them under a label of its own (--size), or leave its folder out",
            )


def inputs_hash(cells: Sequence[Loaded], *more: str) -> str:
    """One hash over the content of all input records (and further texts), independent of where they are."""
    digest = hashlib.sha256()
    for line in (*sorted(c.sha256 for c in cells), *more):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def final_step(cells: Sequence[Loaded]) -> tuple[list[Loaded], list[Loaded]]:
    """(records of each model's last evaluated step, records of its earlier ones)."""
    last: dict[tuple[str, str, int], int] = {}
    for c in cells:
        model, step = _model_and_step(c)
        last[model] = max(step, last.get(model, step))
    parts: tuple[list[Loaded], list[Loaded]] = [], []
    for c in cells:
        model, step = _model_and_step(c)
        parts[step < last[model]].append(c)
    return parts


def _model_and_step(c: Loaded) -> tuple[tuple[str, str, int], int]:
    """The base model comes before every step."""
    cell = c.record.cell
    return cell.model[:3], -1 if cell.step == "base" else int(cell.step)


def logged(steps: Sequence[StepMetrics]) -> set[str]:
    """The names of all metrics that some step has."""
    return {name for s in steps for name in s.values}


def read_steps(path: Path, live: bool = False) -> list[StepMetrics]:
    """The steps of a metrics.jsonl, in order (`last_attempts`).

    A duplicate line counts once, and stderr says so. live: as in `store.read`.

    Raises:
        RecordError: with file and line, for a broken line, for a step with one attempt and two values, and for
            attempts that go back.
    """
    last: dict[int, tuple[int, StepMetrics]] = {}
    lines: list[StepMetrics] = []
    twice: list[int] = []
    for number, line in enumerate(read(path, StepMetrics, live=live), 1):
        lines.append(line)
        first, before = last.setdefault(line.step, (number, line))
        if number == first:
            continue
        if line == before:
            twice.append(number)
        elif line.attempt <= before.attempt:
            names = sorted(k for k in logged([line, before]) if line.values.get(k) != before.values.get(k))
            raise RecordError(
                f"{path}:{number}: step {line.step} contradicts {path}:{first}",
                found=f"attempt {line.attempt} here, {before.attempt} before it; other values of {', '.join(names)}",
                expected="a line for each attempt at a step, later ones further down",
                next_step="restore the file from a copy, or delete the line that is wrong",
            )
        else:
            last[line.step] = number, line
    if twice:
        print(f"same line twice, counted once: {path}, line {', '.join(map(str, twice))}", file=sys.stderr)
    return last_attempts(lines)


def load_training_runs(roots: Sequence[Path], skip: Sequence[str] = ()) -> list[TrainingRun]:
    """Training runs below the roots: folders with run.json (kind "train") and metrics.jsonl, by method and seed. A copy
    of one counts once; stderr names both folders.

    The labels come from the run's configuration (run.method, run.size, run.seed), the steps from `read_steps`. `skip`
    as in `load_cells`.

    Raises:
        RecordError: a broken line, lines that contradict each other or the run's record, or a run without these labels.
    """
    check_roots(roots)
    runs: list[TrainingRun] = []
    for root in roots:
        for path in below(root, "metrics.jsonl", skip):
            run_file = path.with_name("run.json")
            run = read_json(run_file, Run) if run_file.exists() else None
            if run is None or run.kind != "train":
                continue
            method, size, seed = _labels(run, run_file)
            steps = read_steps(path, live=run.status != "done" and run.cut is None)
            if run.cut is not None and (more := logged(steps) - set(run.cut.kept)):
                raise RecordError(
                    f"{path} contradicts {run_file}",
                    found=f"values of {', '.join(sorted(more)[:5])}",
                    expected="only the names that the run record keeps (cut.kept)",
                    next_step="restore both files from one commit, or collect the run again",
                )
            place = path.parent.relative_to(root).as_posix()
            found = TrainingRun(method, size, seed, place, run.status, steps, run.run_id, path.parent, run.synthetic,
                                run.cut, _machine(run))  # fmt: skip
            whole = {*range(1, int(run_part(run).get("steps") or 0) + 1)} if run.status == "done" else set[int]()
            if not run.synthetic and (absent := sorted(whole - {s.step for s in steps})):
                raise RecordError(
                    f"{path} lacks steps of a finished run",
                    found=f"{len(absent)} of {len(whole)} are not there, the first is step {absent[0]}",
                    expected="a line for each step",
                    next_step="restore the file from a copy, or collect the run again",
                )
            twins = (r for r in runs if replace(found, path=r.path, folder=r.folder) == r)
            if (twin := next(twins, None)) is None:
                runs.append(found)
            elif not twin.folder.samefile(found.folder):
                print(f"same training twice, counted once: {twin.folder} and {found.folder}", file=sys.stderr)
    return sorted(runs, key=lambda r: (r.method, r.size, r.seed, r.path))


def check_seeds(runs: Sequence[TrainingRun]) -> None:
    """Raises BadInput for two runs of one size, method and seed: they would count as two seeds."""
    first: dict[tuple[str, str, int], TrainingRun] = {}
    for r in runs:
        if (before := first.setdefault((r.method, r.size, r.seed), r)) is not r:
            raise BadInput(
                f"two training runs of {r.method} with one seed",
                found=f"{before.folder}, {r.folder} (seed {r.seed})",
                expected="one run per seed",
                next_step="name only one of the folders with --records",
            )


def run_part(run: Run) -> dict[str, Any]:
    """The part "run" of a training's configuration, where its labels are; empty where there is none."""
    part = run.config.get("run")
    return part if isinstance(part, dict) else {}


def _machine(run: Run) -> str:
    """More than one where it went on elsewhere."""
    parts = [run.hardware, *(r.hardware for r in run.resumptions)]
    names = (str([*p.get("gpus", []), p.get("cpu", "")][0]).partition(",")[0] for p in parts)
    return " and ".join(dict.fromkeys(filter(None, names)))


def _labels(run: Run, where: Path) -> tuple[str, str, int]:
    part = run_part(run)
    method, size, seed = part.get("method"), part.get("size"), part.get("seed")
    if not isinstance(method, str) or not isinstance(size, str) or not isinstance(seed, int):
        raise RecordError(
            f"{where}: a training run without its labels",
            found=f"method {method!r}, size {size!r}, seed {seed!r}",
            expected="run.method, run.size and run.seed in the run record's config",
            next_step="make the run again with this version, or leave its folder out of --records",
        )
    return method, size, seed

"""Two runs against each other: which settings their records differ in, and what the scores differ by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stapo_repro.calibration.judging import Difference, judged, measured, obstacle, scores
from stapo_repro.records.reading import Loaded
from stapo_results.errors import BadInput, short_hashes
from stapo_results.schema import CellRecord, Run
from stapo_results.statistics.fixed import Fixed, by_sample, independent
from stapo_results.store import read_json

_CONFIG = ("dtype",)  # of an evaluation's configuration, what a cell's record does not hold
_MACHINE = ("threads", "batch_rows", "tensor_parallel")


@dataclass(frozen=True)
class Pair:
    """One benchmark of two runs, first minus second.

    Attributes:
        before, after: the two scores in percent; None where samples are missing.
        settings: name -> (first, second) of every setting in which the two differ.
        environment: names of code, packages and machine settings that differ; they should change no score, and nobody
            has shown it.
        attributed_to: the one setting that differs; "" for none or several.
        says: the same in words.
    """

    benchmark: str
    first: str
    second: str
    before: float | None
    after: float | None
    difference: Difference
    settings: dict[str, tuple[Any, Any]]
    environment: list[str]
    attributed_to: str
    says: str = ""

    @property
    def setting(self) -> str:
        """The decoding's name, or both."""
        return " / ".join(dict.fromkeys(x.split("/")[-2] for x in (self.first, self.second)))


def pairs(first: Sequence[Loaded], second: Sequence[Loaded], margin: float) -> list[Pair]:
    """Cells of the same benchmark and setting; or of the same benchmark alone, where each side has one.

    Raises:
        BadInput: nothing to pair, or other problems.
    """
    found = [_pair(a, b) for a, b in _paired(first, second)]
    if not found:
        sides = (sorted({f"{c.record.cell.benchmark} {c.record.cell.setting}" for c in x}) for x in (first, second))
        raise BadInput("the two runs have no cell to compare", found=" against ".join(map(", ".join, sides)),
                       expected="one benchmark that both hold, at one setting each",
                       next_step="evaluate both on the same benchmark")  # fmt: skip
    verdicts = judged([p.difference for p in found], margin)
    return [replace(p, difference=d, says=_words(p, d)) for p, d in zip(found, verdicts, strict=True)]


def _paired(first: Sequence[Loaded], second: Sequence[Loaded]) -> list[tuple[Loaded, Loaded]]:
    def of(cells: Sequence[Loaded], benchmark: str) -> dict[str, Loaded]:
        return {c.record.cell.setting: c for c in cells if c.record.cell.benchmark == benchmark}

    out = []
    for benchmark in dict.fromkeys(c.record.cell.benchmark for c in first):
        a, b = of(first, benchmark), of(second, benchmark)
        if len(a) == len(b) == 1:
            out.append((*a.values(), *b.values()))
        else:
            out += [(a[s], b[s]) for s in a if s in b]
    return out


def _pair(a: Loaded, b: Loaded) -> Pair:
    _check_problems(a.record, b.record)
    mine, theirs = settings_of(a), settings_of(b)
    apart = {k: (mine.get(k, "not recorded"), theirs.get(k, "not recorded")) for k in {**mine, **theirs}
             if mine.get(k) != theirs.get(k)}  # fmt: skip
    x, y = (np.array(_in_order(r, a.record)) for r in (a.record, b.record))
    why = obstacle(a.record) or obstacle(b.record)
    return Pair(
        benchmark=a.record.cell.benchmark,
        first=a.record.cell.id,
        second=b.record.cell.id,
        before=_percent(x),
        after=_percent(y),
        difference=measured(_difference(x, y), why),
        settings=apart,
        environment=environment_apart(a, b),
        attributed_to=next(iter(apart)) if len(apart) == 1 else "",
    )


def _percent(scores_QN: np.ndarray) -> float | None:
    mean = float(scores_QN.mean())
    return None if np.isnan(mean) else round(100 * mean, 6)


def _difference(x: np.ndarray, y: np.ndarray) -> Fixed:
    return by_sample(x, y) if x.shape == y.shape else independent(x, y)


def _in_order(r: CellRecord, like: CellRecord) -> list[list[float]]:
    rows = dict(zip((p.problem_id for p in r.problems), scores(r), strict=True))
    return [rows[p.problem_id] for p in like.problems]


def _check_problems(a: CellRecord, b: CellRecord) -> None:
    if {p.problem_id for p in a.problems} != {p.problem_id for p in b.problems}:
        raise BadInput(f"{a.cell.benchmark}: the two runs answered other problems",
                       found=f"{len(a.problems)} against {len(b.problems)}", expected="the same problems",
                       next_step="evaluate both on the same file and the same --limit")  # fmt: skip


def _run_of(cell: Loaded) -> Run | None:
    path = cell.file.parent.parent / "run.json"
    return read_json(path, Run) if path.exists() else None


def settings_of(cell: Loaded) -> dict[str, Any]:
    """What decides a cell's score, by name: one name a cause, whatever number of fields records it."""
    r, run = cell.record, _run_of(cell)
    judge = r.judge or "none" if r.scored_by == "rule+judge" else "none"
    copy = f"{r.benchmark_rows} rows, answers {r.benchmark_sha256}, {r.text_variants} other texts {r.variant}".strip()
    # the weights' hash alone: a folder has no commit beside it
    model = {k: r.revisions[k].rpartition("weights ")[2] for k in ("model", "tokenizer") if k in r.revisions}
    more = {k: run.config[k] for k in _CONFIG if run and k in run.config}
    return {
        "samples a problem": r.n,
        "temperature": r.temperature,
        "top-p": r.top_p,
        "longest response": r.max_tokens,
        "grader": r.grader,
        "judge": judge,
        "engine": r.engine,
        "evaluation seed": r.cell.eval_seed,
        "benchmark": copy,
        **model,
        **more,
    }


def environment_apart(a: Loaded, b: Loaded) -> list[str]:
    """Names of what else differs: code, packages, and how the machine was used."""
    first, second = _run_of(a), _run_of(b)
    found = []
    if (a.record.code_commit, a.record.code_dirty) != (b.record.code_commit, b.record.code_dirty):
        found.append("code")
    if first and second:
        names = sorted(first.packages.keys() | second.packages.keys())
        found += [n for n in names if first.packages.get(n) != second.packages.get(n)]
        found += [n for n in _MACHINE if first.config.get(n) != second.config.get(n)]
    return found


def shown(value: Any) -> str:
    return short_hashes(str(value)) or "none"


def _words(p: Pair, d: Difference) -> str:
    also = f", unless it is {' or '.join(p.environment)}" if p.environment else ""
    names = ", ".join(p.settings)
    if not p.settings and d.se == 0 and d.points == 0:
        return "no setting differs, and no sample's verdict"
    if not p.settings:
        return f"no setting differs: the rest is chance{also}"
    if not p.attributed_to:
        return f"{len(p.settings)} settings differ and cannot be told apart: {names}"
    if d.verdict == "differs":
        return f"the difference comes from: {names}{also}"
    return f"only {names} differs{also}; " + ("it changes little" if d.verdict == "agrees" else "its effect is open")


def apart_in_words(settings: Mapping[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{k}: {shown(x)} / {shown(y)}" for k, (x, y) in settings.items())

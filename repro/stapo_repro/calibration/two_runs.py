"""A run against others: which settings their records differ in, and what the scores differ by."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stapo_repro.calibration.judging import Difference, at, judged, mean, measured, obstacle, scores
from stapo_repro.read import Loaded
from stapo_results.errors import BadInput, short_hashes
from stapo_results.schema import CellRecord, Run
from stapo_results.statistics.fixed import by_sample, independent
from stapo_results.store import read_json

SEED = "evaluation seed"
_MACHINE = ("threads", "batch_rows", "tensor_parallel")


@dataclass(frozen=True)
class Pair:
    """One benchmark of two runs, first minus second.

    Attributes:
        against: what the second run is called.
        setting: the decoding's name, or both.
        first_score, second_score: in percent; None where samples are missing.
        settings: name -> (first, second) of every setting in which the two differ.
        unrecorded: settings that are not on record on both sides, so that no cause is certain.
        environment: what differs of code and machine; packages: names of those in other versions. They should change no
            score, and nobody has shown it.
        attributed_to: where the scores differ, the one setting that does; the evaluation seed is chance and none.
        says: the same in words.
    """

    against: str
    benchmark: str
    setting: str
    first: str
    second: str
    first_score: float | None
    second_score: float | None
    difference: Difference
    settings: dict[str, tuple[str, str]]
    unrecorded: list[str]
    environment: list[str]
    packages: list[str]
    same_verdicts: bool
    attributed_to: str = ""
    says: str = ""


def pairs(
    first: Sequence[Loaded], others: Mapping[str, Sequence[Loaded]], margin: float
) -> tuple[list[Pair], list[str]]:
    """Cells of the same benchmark and setting, or of the same benchmark alone, where each side has one, of the first
    run and each other (by name), all judged together; and in words what has no counterpart.

    Raises:
        BadInput: nothing to pair, two cells of one benchmark and setting, or other problems.
    """
    found: list[Pair] = []
    alone: list[str] = []
    for name, second in others.items():
        matched = _paired(first, second)
        if not matched:
            sides = (sorted({f"{c.record.cell.benchmark} {c.record.cell.setting}" for c in x}) for x in (first, second))
            raise BadInput(f"{name} and the first run have no cell to compare",
                           found=" against ".join(map(", ".join, sides)),
                           expected="one benchmark that both hold, at one setting each",
                           next_step="evaluate both on the same benchmark")  # fmt: skip
        found += [_pair(name, a, b) for a, b in matched]
        used = {id(x) for both in matched for x in both}
        for which, cells in (("the first run", first), ("it", second)):
            if rest := [f"{c.record.cell.benchmark} at {at(c.record.cell)}" for c in cells if id(c) not in used]:
                alone.append(f"not compared with {name}: {', '.join(rest)}, which only {which} holds")
    verdicts = judged([p.difference for p in found], margin)
    return [_said(replace(p, difference=d)) for p, d in zip(found, verdicts, strict=True)], alone


def _paired(first: Sequence[Loaded], second: Sequence[Loaded]) -> list[tuple[Loaded, Loaded]]:
    def of(cells: Sequence[Loaded], benchmark: str) -> dict[str, Loaded]:
        found: dict[str, Loaded] = {}
        for c in cells:
            if c.record.cell.benchmark == benchmark and found.setdefault(c.record.cell.setting, c) is not c:
                both = found[c.record.cell.setting].record.cell.id, c.record.cell.id
                raise BadInput(f"a side holds two cells of {benchmark} at {c.record.cell.setting}",
                               found=" and ".join(both), expected="one",
                               next_step="name a folder that one evaluation wrote")  # fmt: skip
        return found

    out = []
    for benchmark in dict.fromkeys(c.record.cell.benchmark for c in first):
        a, b = of(first, benchmark), of(second, benchmark)
        if len(a) == len(b) == 1:
            out.append((*a.values(), *b.values()))
        else:
            out += [(a[s], b[s]) for s in a if s in b]
    return out


def _pair(against: str, a: Loaded, b: Loaded) -> Pair:
    _check_problems(a.record, b.record)
    mine, theirs = settings_of(a), settings_of(b)
    x, y = (np.array(_in_order(r, a.record)) for r in (a.record, b.record))
    environment, packages = environment_apart(a, b)
    found = by_sample(x, y, same_responses=_same_responses(a, b)) if x.shape == y.shape else independent(x, y)
    return Pair(
        against=against,
        benchmark=a.record.cell.benchmark,
        setting=" / ".join(dict.fromkeys((at(a.record.cell), at(b.record.cell)))),
        first=a.record.cell.id,
        second=b.record.cell.id,
        first_score=mean(x),
        second_score=mean(y),
        difference=measured(found, obstacle(a.record) or obstacle(b.record)),
        settings={k: (v, theirs[k]) for k, v in mine.items() if v and theirs[k] and v != theirs[k]},
        unrecorded=[k for k, v in mine.items() if not (v and theirs[k])],
        environment=environment,
        packages=packages,
        same_verdicts=np.array_equal(x, y),
    )


def _same_responses(a: Loaded, b: Loaded) -> bool:
    """One record, or one file of responses byte by byte."""
    files = [c.file.parent.parent / "samples.jsonl" for c in (a, b)]
    return a.sha256 == b.sha256 or (all(f.exists() for f in files) and filecmp.cmp(*files, shallow=False))


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


def settings_of(cell: Loaded) -> dict[str, str]:
    """What decides a cell's score, by name: one name a cause, whatever number of fields records it; "" where it is not
    on record."""
    r, run = cell.record, _run_of(cell)
    # the weights' hash alone: a folder has no commit beside it
    model = {k: r.revisions.get(k, "").rpartition("weights ")[2] for k in ("model", "tokenizer")}
    copy = f"{r.benchmark_rows} rows, answers {r.benchmark_sha256}, {r.text_variants} other texts {r.variant}"
    found = {
        "samples a problem": r.n,
        "temperature": r.temperature,
        "top-p": r.top_p,
        "longest response": r.max_tokens,
        "grader": r.grader,
        "judge": r.judge if r.scored_by == "rule+judge" else "none",
        "engine": r.engine,
        SEED: r.cell.eval_seed,
        "benchmark": copy,
        **model,
        "dtype": _dtype(run),
    }
    return {k: str(v).strip() for k, v in found.items()}


def _dtype(run: Run | None) -> str:
    """`auto` is float32 on a CPU and mostly bfloat16 on a GPU, so it says where."""
    dtype = run.config.get("dtype", "") if run else ""
    if run is None or dtype != "auto":
        return dtype
    return f"auto on a {'GPU' if run.hardware['gpus'] else 'CPU'}" if "gpus" in run.hardware else ""


def environment_apart(a: Loaded, b: Loaded) -> tuple[list[str], list[str]]:
    """What else differs: (code, the machine and how it was used; names of packages)."""
    first, second = _run_of(a), _run_of(b)
    found, packages = [], []
    if (a.record.code_commit, a.record.code_dirty) != (b.record.code_commit, b.record.code_dirty):
        found.append("code")
    if first and second:
        names = sorted(first.packages.keys() | second.packages.keys())
        packages = [n for n in names if first.packages.get(n) != second.packages.get(n)]
        found += [n for n in _MACHINE if first.config.get(n) != second.config.get(n)]
        found += ["hardware"] * any(first.hardware.get(k) != second.hardware.get(k) for k in ("cpu", "gpus"))
    return found, packages


def _said(p: Pair) -> Pair:
    """With the cause, and in words."""
    causes, differs = [k for k in p.settings if k != SEED], p.difference.verdict == "differs"
    # the record has every package's name
    packages = p.packages if len(p.packages) < 3 else [f"one of {len(p.packages)} packages"]
    doubt = [*(f"{k} (not on record on both sides)" for k in p.unrecorded), *p.environment, *packages]
    also = f", unless it is {' or '.join(doubt)}" if doubt else ""
    if not p.settings and p.same_verdicts:
        return replace(p, says="no setting differs, and no sample's verdict")
    if not causes:
        rest = "the evaluation seed alone differs" if p.settings else "no setting differs"
        words = f"{rest}: " + (
            "more than chance, and no recorded setting explains it" if differs else "the rest is chance"
        )
        return replace(p, says=words + also)
    if len(causes) > 1:
        return replace(p, says=f"{len(causes)} settings differ and cannot be told apart: {', '.join(causes)}{also}")
    if not differs:
        effect = "it changes little" if p.difference.verdict == "agrees" else "its effect is open"
        return replace(p, says=f"only {causes[0]} differs{also}; {effect}")
    certain = "" if p.unrecorded else causes[0]
    return replace(p, attributed_to=certain, says=f"the difference comes from: {causes[0]}{also}")


def apart_in_words(settings: Mapping[str, tuple[str, str]]) -> str:
    return "; ".join(f"{k}: {short_hashes(x)} / {short_hashes(y)}" for k, (x, y) in settings.items())

"""Two runs on the same problems: paired differences by benchmark and on average.

Pure functions of cell records. Runs that cannot be compared are refused; other differences are warned of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stapo_eval.summary import difference_fields, rounded
from stapo_results import store
from stapo_results.errors import BadInput, short_hashes
from stapo_results.schema import CellRecord, ProblemResult, Run
from stapo_results.statistics import Paired, bootstrap, holm, paired, paired_average, parse_verdicts, problem_means

_SAME = "evaluate both on the same file and the same --limit, or leave the benchmark out with --benchmarks"


class Pair(NamedTuple):
    """Two cells of one benchmark; the difference is `first` minus `second`."""

    first: CellRecord
    second: CellRecord


Cells = dict[tuple[str, str], CellRecord]  # by (benchmark, setting)


def load_cells(folder: Path) -> Cells:
    """The cell records of a finished run.

    Raises:
        BadInput: no cells, an unfinished run, or two cells of one benchmark and setting.
    """
    if (folder / "run.json").exists() and (status := store.read_json(folder / "run.json", Run).status) != "done":
        raise BadInput(
            f"{folder} is not finished",
            found=f"status {status}",
            expected="done",
            next_step="run the command that made it again: it goes on",
        )
    cells: Cells = {}
    for path in sorted((folder / "cells").glob("*.json")):
        record = store.read_json(path, CellRecord)
        where = record.cell.benchmark, record.cell.setting
        if where in cells:
            raise BadInput(
                f"{folder} holds two cells of {where[0]} at {where[1]}",
                found=f"{cells[where].cell.id} and {record.cell.id}",
                next_step="give a folder that one evaluation wrote",
            )
        cells[where] = record
    if not cells:
        raise BadInput(
            f"{folder} holds no cell records",
            expected="cells/*.json, as stapo-eval run leaves them",
            next_step="give the folder that was --out of a finished stapo-eval run",
        )
    return cells


def pair_runs(
    a: Cells, b: Cells, settings: Sequence[str] = (), benchmarks: Sequence[str] = ()
) -> dict[str, list[Pair]]:
    """Setting -> pairs by benchmark: the same setting of two runs.

    Args:
        settings: those to compare; all that both have if there is none.
        benchmarks: likewise, but without any both runs have to have the same.
    """
    both = {s for _, s in a} & {s for _, s in b}
    found = {}
    for setting in settings or sorted(both, reverse=True):
        first, second = ({x for x, s in side if s == setting} for side in (a, b))
        absent = [x for x in benchmarks if x not in first & second] if benchmarks else sorted(first ^ second)
        if absent or not first & second:
            raise BadInput(
                f"not both runs hold {', '.join(absent) or 'anything'} at {setting}",
                found=f"{', '.join(sorted(first)) or 'nothing'} against {', '.join(sorted(second)) or 'nothing'}",
                expected="the same benchmarks, or their averages would not compare",
                next_step=f"--benchmarks {','.join(sorted(first & second))}   compares what both have"
                if first & second
                else "evaluate one of them on the other's benchmarks and settings",
            )
        found[setting] = [Pair(a[x, setting], b[x, setting]) for x in dict.fromkeys(benchmarks) or sorted(first)]
    if not found:
        raise BadInput(
            "the two runs share no setting",
            found=f"{', '.join(sorted({s for _, s in a}))} against {', '.join(sorted({s for _, s in b}))}",
            next_step="evaluate one of them with the other's --settings",
        )
    return found


def check_problems(pair: Pair) -> None:
    """Raises BadInput unless both cells hold the same copy of the benchmark and the same problems of it."""
    a, b = pair.first, pair.second
    for what, x, y in (
        ("rows", a.benchmark_rows, b.benchmark_rows),
        ("answers (SHA-256)", a.benchmark_sha256, b.benchmark_sha256),
        ("variant", a.variant or "the registered copy", b.variant or "the registered copy"),
    ):
        if x != y:
            raise BadInput(
                f"{a.cell.benchmark}: the two were evaluated on different copies",
                found=f"{what} {x} against {y}",
                expected="one copy",
                next_step=_SAME,
            )
    ids = [{p.problem_id for p in r.problems} for r in (a, b)]
    if ids[0] != ids[1]:
        only = sorted(ids[0] ^ ids[1])
        raise BadInput(
            f"{a.cell.benchmark}: the two hold different problems",
            found=f"{len(ids[0])} against {len(ids[1])}, {len(only)} on one side only, first {only[0]}",
            expected="the same problems",
            next_step=_SAME,
        )


def warnings(pairs: Sequence[Pair]) -> list[str]:
    """What a reader must know before reading a difference, each with both values."""
    found: dict[tuple[str, str], list[str]] = {}
    for p in pairs:
        a, b = p.first, p.second
        sides = {
            "SAMPLES A PROBLEM": (a.n, b.n),
            "GRADERS": (a.grader, b.grader),
            "WAYS OF SCORING": (a.scored_by, b.scored_by),
            "JUDGES": (_judge(a), _judge(b)),
            "longest responses": (a.max_tokens, b.max_tokens),
            "engines": (a.engine, b.engine),
            "counts of text variants": (str(a.text_variants), str(b.text_variants)),
            "DECODINGS": (_decoding(a), _decoding(b)),
        }
        notes = [
            (f"{name} DIFFER", short_hashes(f"{x or 'not recorded'} against {y or 'not recorded'}"))
            for name, (x, y) in sides.items()
            if x != y
        ]
        for note in notes:
            found.setdefault(note, []).append(a.cell.benchmark)
        for side, r in (("first", a), ("second", b)):
            if missing := "".join(q.verdicts for q in r.problems).count("-"):
                note = f"samples of the {side} are MISSING", "no difference is computed"
                found.setdefault(note, []).append(f"{a.cell.benchmark} ({missing})")
    out = [f"{what} on {', '.join(names)}: {values}" for (what, values), names in found.items()]
    if all(p.first == p.second for p in pairs):
        out.append("both sides are THE SAME RECORDS")
    return out


def _judge(record: CellRecord) -> str:
    """Who judged; "" where the record does not say: an older one has no grader either."""
    return record.judge or ("none" if record.grader and record.scored_by == "rule" else "")


def _decoding(record: CellRecord) -> str:
    return f"temperature {record.temperature}, top-p {record.top_p}"


def _means(problems: Sequence[ProblemResult]) -> dict[str, float]:
    """Problem id -> mean of its samples; NaN where one is missing: the mean of the rest may flatter."""
    return {
        p.problem_id: math.nan if "-" in p.verdicts else float(problem_means([parse_verdicts(p.verdicts)])[0])
        for p in problems
    }


def _side(record: CellRecord) -> dict[str, Any]:
    letters = "".join(p.verdicts for p in record.problems)
    means = list(_means(record.problems).values())
    return {
        "cell": record.cell.id,
        "run_id": record.run_id,
        "n": record.n,
        "correct": letters.count("1"),
        "samples": len(letters) - letters.count("-"),
        "accuracy": rounded(math.fsum(means) / len(means)),
    }


def _difference(d: Paired, ends: tuple[float, float]) -> dict[str, float | int | None]:
    return {
        "problems": d.problems,
        "standard_error": rounded(d.se),
        "p": rounded(d.sign_flip),
        **difference_fields(d, ends),
    }


def compare(pairs: Sequence[Pair]) -> dict[str, Any]:
    """One table: a column a benchmark, p adjusted by Holm over them, and the unweighted average.

    The average's own p is of one test and is not adjusted.

    Raises:
        BadInput: the two sides of a pair do not hold the same problems.
    """
    columns, strata = [], []
    for pair in pairs:
        check_problems(pair)
        first, second = _means(pair.first.problems), _means(pair.second.problems)
        differences = [first[k] - second[k] for k in sorted(first)]
        strata.append(differences)
        columns.append({
            "benchmark": pair.first.cell.benchmark,
            "first": _side(pair.first),
            "second": _side(pair.second),
            **_difference(paired(first, second), bootstrap([differences])),
        })  # fmt: skip
    adjusted = holm([math.nan if c["p"] is None else c["p"] for c in columns])
    for column, p in zip(columns, adjusted, strict=True):
        column["p_holm"] = rounded(p)
    average: dict[str, Any] = _difference(paired_average(strata), bootstrap(strata))
    for side in ("first", "second"):
        values = [c[side]["accuracy"] for c in columns]
        average[side] = None if None in values else rounded(math.fsum(values) / len(values))
    return {"columns": columns, "average": average, "warnings": warnings(pairs)}

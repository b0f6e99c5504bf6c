"""`stapo-eval compare`: two runs on the same problems, paired differences by benchmark and on average.

Tables are pure functions of cell records. Runs that cannot be compared are refused; other differences are warned of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stapo_eval.options import listed
from stapo_eval.scores import difference_fields, means, rounded
from stapo_eval.show import intervals, p_value, percent, print_table
from stapo_results import runs, store
from stapo_results.benchmarks import packaged
from stapo_results.errors import BadInput, meant, short_hashes
from stapo_results.schema import CellRecord, Run
from stapo_results.statistics import Number, holm, paired, paired_average

# two runs that differ in these are warned of; in capitals what changes a score by itself
_WARNED = {
    "SAMPLES A PROBLEM": lambda r: r.n,
    "GRADERS": lambda r: r.grader,
    "WAYS OF SCORING": lambda r: r.scored_by,
    # an older record does not say who judged: it has no grader either
    "JUDGES": lambda r: r.judge or ("none" if r.grader and r.scored_by == "rule" else ""),
    "longest responses": lambda r: r.max_tokens,
    "engines": lambda r: r.engine,
    "counts of text variants": lambda r: str(r.text_variants),
    "PROBLEMS (texts, white space or order)": lambda r: _content(r),
    "PROMPTS": lambda r: json.dumps(r.chat) if r.chat else "the paper's",
    "REFUSED OPTIONS": lambda r: ", ".join(sorted(r.options_refused)) or "none",
    "CONTEXTS": lambda r: f"{r.context_limit.context} positions" if r.context_limit else "enough",
    "DECODINGS": lambda r: f"temperature {r.temperature}, top-p {r.top_p}",
}


Pair = tuple[CellRecord, CellRecord]
Cells = dict[tuple[str, str], CellRecord]  # by (benchmark, setting)


def _content(record: CellRecord) -> str:
    """The benchmark's rows, golds and texts, as the record names them; "" in older ones."""
    return record.revisions.get(f"data:{record.cell.benchmark}", "")


def compare_runs(first: Path, second: Path, benchmarks: str = "", out: str = "") -> None:
    """Print the tables of two run folders, one for each setting that both have.

    Args:
        benchmarks: names joined by commas; "" for all.
        out: a JSON file for every number; "" for none.

    Raises:
        BadInput: the folders hold no finished runs, or what they hold cannot be compared.
    """
    if out:
        runs.check_file(out, "--out")
    cells = load_cells(first), load_cells(second)
    known = sorted({name for side in cells for name, _ in side})
    hint = "choose from these, or leave out --benchmarks"
    chosen = [meant("benchmark", x, known, hint) for x in listed(benchmarks)]
    tables = {setting: compare(pairs) for setting, pairs in pair_runs(*cells, chosen).items()}
    print(f"first: {first}\nsecond: {second}")
    for setting, table in tables.items():
        _print(setting, table)
    if out:
        store.write_json(out, {"schema_version": 1, "tables": tables})
        print(f"written: {out}")


def load_cells(folder: Path) -> Cells:
    """The cell records of a finished run.

    Raises:
        BadInput: no cells, or an unfinished run.
    """
    if (folder / "run.json").exists() and (status := store.read_json(folder / "run.json", Run).status) != "done":
        raise BadInput(
            f"{folder} is not finished",
            found=f"status {status}",
            expected="done",
            next_step="run the command that made it again: it resumes",
        )
    records = [store.read_json(path, CellRecord) for path in sorted((folder / "cells").glob("*.json"))]
    if not records:
        raise BadInput(
            f"{folder} holds no cell records",
            expected="cells/*.json, as stapo-eval run leaves them",
            next_step="give the folder that was --out of a finished stapo-eval run",
        )
    cells = {(r.cell.benchmark, r.cell.setting): r for r in records}
    if len(cells) < len(records):
        raise BadInput(f"{folder} holds cells of several evaluations", found=f"{len(records)} of {len(cells)} cells",
                       expected="one of each benchmark and setting",
                       next_step="give a run's own folder")  # fmt: skip
    return cells


def pair_runs(a: Cells, b: Cells, benchmarks: Sequence[str] = ()) -> dict[str, list[Pair]]:
    """Setting -> pairs by benchmark, for the settings of both runs.

    Args:
        benchmarks: those to compare; without any both runs have to have the same.

    Raises:
        BadInput: no common setting, or a benchmark that only one of them has.
    """
    pairs = {}
    for setting in sorted({s for _, s in a} & {s for _, s in b}, reverse=True) or ["one setting"]:
        first, second = ({x for x, s in side if s == setting} for side in (a, b))
        both = first & second
        absent = set(benchmarks) - both if benchmarks else first ^ second
        if absent or not both:
            common = f"--benchmarks {','.join(sorted(both))}   compares what both have"
            raise BadInput(
                f"not both runs hold {', '.join(sorted(absent)) or 'anything'} at {setting}",
                found=" against ".join(", ".join(sorted(f"{x} {s}" for x, s in side)) for side in (a, b)),
                expected="the same benchmarks, or their averages would not compare",
                next_step=common if both else "evaluate one of them on the other's benchmarks and settings",
            )
        pairs[setting] = [(a[x, setting], b[x, setting]) for x in dict.fromkeys(benchmarks) or sorted(first)]
    return pairs


def check_copies(pair: Pair) -> None:
    """Raises BadInput unless both cells hold the same copy of the benchmark. What is registered has its texts in the
    registry: copies that differ in them are warned of."""
    own = pair[0].cell.benchmark not in packaged() and all(map(_content, pair))
    first, second = (
        {"rows": r.benchmark_rows, "answers (SHA-256)": r.benchmark_sha256, "variant": r.variant or "none"}
        | ({"content": _content(r)} if own else {})
        for r in pair
    )
    if first != second:
        raise BadInput(
            f"{pair[0].cell.benchmark}: the two were evaluated on different copies",
            found="; ".join(f"{k} {x} against {second[k]}" for k, x in first.items() if x != second[k]),
            expected="one copy",
            next_step="evaluate both on the same file, or leave it out with --benchmarks",
        )


def warnings(pairs: Sequence[Pair]) -> list[str]:
    """What a reader must know before reading a difference, each with both values."""
    by_cell: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        name = pair[0].cell.benchmark
        for what, value in _WARNED.items():
            x, y = (value(r) or "not recorded" for r in pair)
            if x != y:
                by_cell.setdefault((f"{what} DIFFER", short_hashes(f"{x} against {y}")), []).append(name)
        for side, r in zip(("first", "second"), pair, strict=True):
            if missing := "".join(q.verdicts for q in r.problems).count("-"):
                note = f"samples of the {side} are MISSING", "no difference is computed"
                by_cell.setdefault(note, []).append(f"{name} ({missing})")
    out = [f"{what} on {', '.join(names)}: {values}" for (what, values), names in by_cell.items()]
    return out + ["both sides are THE SAME RECORDS"] * all(x == y for x, y in pairs)


def _means(record: CellRecord) -> dict[str, float]:
    """Problem id -> mean of its samples; NaN where one is missing: the mean of the rest may flatter."""
    missing = {p.problem_id for p in record.problems if "-" in p.verdicts}
    return {k: math.nan if k in missing else x for k, x in means(record).items()}


def _side(record: CellRecord) -> dict[str, Any]:
    letters = "".join(p.verdicts for p in record.problems)
    scores = list(_means(record).values())
    return {
        "cell": record.cell.id,
        "run_id": record.run_id,
        "n": record.n,
        "correct": letters.count("1"),
        "samples": len(letters) - letters.count("-"),
        "accuracy": rounded(math.fsum(scores) / len(scores)),
    }


def compare(pairs: Sequence[Pair]) -> dict[str, Any]:
    """One table: a column a benchmark, p adjusted by Holm over them, and the unweighted average.

    The average's own p is of one test and is not adjusted.

    Raises:
        BadInput: the two sides of a pair do not hold the same problems.
    """
    differences, strata = [], []
    for pair in pairs:
        check_copies(pair)
        first, second = map(_means, pair)
        differences.append(paired(first, second))
        strata.append([first[k] - second[k] for k in sorted(first)])
    columns = [
        {
            "benchmark": pair[0].cell.benchmark,
            "first": _side(pair[0]),
            "second": _side(pair[1]),
            **_difference(d, [stratum]),
            "p_holm": rounded(p),
        }
        for pair, d, stratum, p in zip(
            pairs, differences, strata, holm([d.sign_flip for d in differences]), strict=True
        )
    ]
    average: dict[str, Any] = _difference(paired_average(strata), strata)
    for side in ("first", "second"):
        values = [c[side]["accuracy"] for c in columns]
        average[side] = None if None in values else rounded(math.fsum(values) / len(values))
    return {"columns": columns, "average": average, "warnings": warnings(pairs)}


def _difference(d: Number, strata: list[list[float]]) -> dict[str, float | int | None]:
    tested = {"problems": d.problems, "standard_error": rounded(d.se), "p": rounded(d.sign_flip)}
    return tested | difference_fields(d, strata)


def _print(setting: str, table: dict[str, Any]) -> None:
    def row(name: str, c: dict[str, Any], sides: list[str], adjusted: str) -> list[str]:
        difference = percent(c["difference"]), percent(c["standard_error"])
        return [name, str(c["problems"]), *sides, *difference, *intervals(c), p_value(c["p"]), adjusted]

    rows, models = [], []
    for c in table["columns"]:
        both = c["first"], c["second"]
        sides = [x for s in both for x in (percent(s["accuracy"]), f"{s['correct']}/{s['samples']}")]
        rows.append(row(c["benchmark"], c, sides, p_value(c["p_holm"])))
        # a cell's id without benchmark, setting and evaluation seed
        models.append(" minus ".join(dict.fromkeys(s["cell"].rsplit("/", 3)[0] for s in both)))
    if len(rows) > 1:
        a = table["average"]
        rows.append(row("average", a, [percent(a["first"]), "", percent(a["second"]), ""], ""))
    columns = ("benchmark", "problems", "first", "k/n", "second", "k/n", "diff.", "SE", "95 % t", "95 % bootstrap")
    subject = ", ".join(dict.fromkeys(models))
    print_table(f"{setting}: {subject}, accuracy in %", (*columns, "p", "p (Holm)"), rows, text_columns=1)
    for text in table["warnings"]:
        print(f"WARNING: {text}")

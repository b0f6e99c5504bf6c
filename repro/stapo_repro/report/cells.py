"""One cell of the results, problem by problem: what the record says of each."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from stapo_repro import labels
from stapo_repro.read import Loaded
from stapo_repro.text import percent, shown, visible
from stapo_results.schema import SETTINGS, Cell, CellRecord
from stapo_results.sizes import MINI, SMALL
from stapo_results.statistics import parse_verdicts, problem_means

_WIDEST = 32  # characters of a problem's name that the columns beside it are lined up for


def anchors(ids: Iterable[str], prefix: str) -> dict[str, str]:
    """id -> a name for a link's target: letters, digits, ".", "-" and "_", different for different ids."""
    slugs = {i: re.sub(r"[^A-Za-z0-9.\-]+", "_", i) for i in ids}
    count = Counter(slugs.values())
    return {
        i: f"{prefix}-{s}" + (f"-{hashlib.sha256(i.encode()).hexdigest()[:8]}" if count[s] > 1 else "")
        for i, s in slugs.items()
    }


def _model(c: Cell) -> str:
    step = "" if c.step == "base" else f", seed {c.train_seed}, step {c.step}"
    return f"{labels.method_label(c.method)}, {labels.size_label(c.size)}{step}"


def _place(known: Sequence[str], name: str) -> tuple[int, str]:
    """Sorts the known names in their order, and others after them."""
    return (known.index(name) if name in known else len(known)), name


def _rank(c: Cell) -> tuple[object, ...]:
    """The order of the tables: size, method, seed, step, benchmark, setting."""
    methods = [labels.BASE, *labels.METHODS, *labels.ARMS]
    benchmarks = [*labels.MINI_BENCHMARKS, *labels.SMALL_BENCHMARKS, *labels.PAPER_BENCHMARKS]
    return (
        _place([MINI, SMALL, *labels.PAPER_SIZES], c.size), _place(methods, c.method), c.train_seed,
        -1 if c.step == "base" else c.step, _place(benchmarks, c.benchmark), _place(list(SETTINGS), c.setting),
        c.eval_seed,
    )  # fmt: skip


def by_model(views: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(model, its cells), in the order of the tables."""
    ordered = sorted(views, key=lambda v: _rank(v["cell"]))
    return [(title, list(group)) for title, group in groupby(ordered, key=lambda v: _model(v["cell"]))]


def _properties(r: CellRecord) -> tuple[tuple[str, str], ...]:
    rows = f"{len(r.problems)} of {r.benchmark_rows}" if len(r.problems) != r.benchmark_rows else str(r.benchmark_rows)
    ends = ", ".join(f"{name} {count}" for name, count in sorted(r.finish_reasons.items()))
    pairs = [
        ("problems", f"{rows}, {r.n} samples each"),
        ("scored by", r.scored_by),
        ("judge", r.judge or "none asked"),
        ("note", r.judge_note),
        ("grader", r.grader),
        ("ends", f"{ends}; without an answer {r.no_answer}; mean length {r.mean_response_tokens:.1f} tokens"),
        ("limit", f"{r.max_tokens} tokens"),
        ("engine", f"{r.engine}, {'deterministic' if r.deterministic else 'not bitwise repeatable'}"),
        ("code", r.code_commit + (f" with changes ({r.code_dirty})" if r.code_dirty else "")),
        ("variant", r.variant),
        ("text variants", str(r.text_variants or "")),
        ("gold answers", f"sha256 {r.benchmark_sha256}"),
    ]
    return tuple((name, value) for name, value in pairs if value)


def view(
    loaded: Loaded, anchor: str, page_folder: Path, responses: Mapping[str, str], run_anchor: str
) -> dict[str, Any]:
    """A cell as the page shows it.

    Args:
        responses: problem id -> anchor of its first response in the page, of those that are shown.
        run_anchor: of the run that made it; "" where that run has no record.

    Returns:
        For the template. `solved`: problems by number of right samples, 0 to N (of problems with all samples); `lines`:
        of each problem the anchor of its first response, its name, padding, mean and verdicts.
    """
    r = loaded.record
    solved = Counter(p.verdicts.count("1") for p in r.problems if "-" not in p.verdicts)
    means = problem_means([parse_verdicts(p.verdicts) for p in r.problems]).tolist()
    width = min(_WIDEST, max((len(p.problem_id) for p in r.problems), default=0))
    lines = [
        (responses.get(p.problem_id, ""), p.problem_id, " " * max(0, width - len(visible(p.problem_id))),
         f"{shown(percent(m)):>6}  {p.verdicts}")
        for p, m in zip(r.problems, means, strict=True)
    ]  # fmt: skip
    setting = "T = {}, top-p = {}".format(*SETTINGS[r.cell.setting]) if r.cell.setting in SETTINGS else r.cell.setting
    return {
        "cell": r.cell,
        "anchor": anchor,
        "title": f"{labels.benchmark_label(r.cell.benchmark)} at {setting}",
        "mean": "samples missing" if any(map(math.isnan, means)) else shown(percent(sum(means) / len(means))),
        "properties": _properties(r),
        "solved": [solved[k] for k in range(r.n + 1)],
        "lines": lines,
        "path": loaded.path,
        "link": link_to(loaded.file, page_folder),
        "run": r.run_id,
        "run_anchor": run_anchor,
    }


def link_to(file: Path, page_folder: Path) -> str:
    """A relative address of a file below the page's folder; "" for any other, whose path would name this machine."""
    try:
        return file.resolve().relative_to(page_folder.resolve()).as_posix()
    except ValueError:
        return ""

"""Which benchmark problems are among the training prompts.

A benchmark problem counts when its key equals that of a training prompt (`whole`), or when both keys are at least 120
characters long and share the first 120 (`prefix`). The key of a text: lower case; \\left, \\right, \\dfrac, \\tfrac and
\\displaystyle removed; then only a-z and 0-9. A key without a character identifies nothing and matches nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stapo_results.benchmarks import Benchmark
from stapo_training.data.source import Prompt

PREFIX = 120  # characters

_LAYOUT = re.compile(r"\\(?:left|right|dfrac|tfrac|displaystyle)(?![a-z])")
_OTHER = re.compile(r"[^a-z0-9]+")


def key(text: str) -> str:
    """What of a text is compared (see the module)."""
    return _OTHER.sub("", _LAYOUT.sub("", text.lower()))


def find(prompts: Sequence[Prompt], benchmarks: Mapping[str, Benchmark]) -> dict[str, dict[str, Any]]:
    """Compare every benchmark problem with every training prompt, by two dictionaries instead of pairs.

    Returns:
        For each benchmark: title, problems, golds_sha256, contaminated, whole, prefix (numbers of problems), and
        `matches`. A match has problem_id, kind (whole where one of its rows is) and rows, one for each training prompt:
        problem_id, row (from 1 in the source), source_id, kind.
    """
    same_text: dict[str, list[Prompt]] = defaultdict(list)
    prefix: dict[str, list[Prompt]] = defaultdict(list)
    keys = {p.row: key(p.problem) for p in prompts}
    for p in prompts:
        k = keys[p.row]
        if k:
            same_text[k].append(p)
        if len(k) >= PREFIX:
            prefix[k[:PREFIX]].append(p)
    reports = {}
    for name, benchmark in benchmarks.items():
        matches = []
        for problem in benchmark.problems:
            k = key(problem.problem)
            rows = [_matched(p, "whole") for p in same_text.get(k, [])]
            if len(k) >= PREFIX:
                rows += [_matched(p, "prefix") for p in prefix.get(k[:PREFIX], []) if keys[p.row] != k]
            if rows:
                matches.append({"problem_id": problem.id, "kind": rows[0]["kind"], "rows": rows})
        exact = sum(m["kind"] == "whole" for m in matches)
        reports[name] = {
            "title": benchmark.spec.title,
            "problems": len(benchmark.problems),
            "golds_sha256": benchmark.golds_sha256,
            "contaminated": len(matches),
            "whole": exact,
            "prefix": len(matches) - exact,
            "matches": matches,
        }
    return reports


def _matched(p: Prompt, kind: str) -> dict[str, Any]:
    return {"problem_id": p.problem_id, "row": p.row, "source_id": p.source_id, "kind": kind}


def matched_ids(reports: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """problem_id of every training prompt that a benchmark problem matched."""
    return {row["problem_id"] for b in reports.values() for m in b["matches"] for row in m["rows"]}

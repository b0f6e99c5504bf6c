"""Which benchmark problems stand among the training prompts.

A benchmark problem counts when its key equals that of a training prompt (`whole`), or when both keys are at least 120
characters long and share the first 120 (`prefix`). The key of a text: lower case; \\left, \\right, \\dfrac, \\tfrac and
\\displaystyle removed; then only a-z and 0-9. A key without a character identifies nothing and matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stapo_results.benchmarks import Benchmark
from stapo_training.data.source import Prompt

PREFIX = 120  # characters

Kind = Literal["whole", "prefix"]

_LAYOUT = re.compile(r"\\(?:left|right|dfrac|tfrac|displaystyle)(?![a-z])")
_OTHER = re.compile(r"[^a-z0-9]+")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MatchedPrompt(_Record):
    """A training prompt that a benchmark problem matched. `row` counts from 1 in the source."""

    problem_id: str
    row: int
    source_id: str
    kind: Kind


class Match(_Record):
    """A benchmark problem with its training prompts; `whole` where at least one of them is."""

    problem_id: str
    kind: Kind
    rows: list[MatchedPrompt]


class BenchmarkContamination(_Record):
    title: str
    problems: int
    golds_sha256: str
    contaminated: int
    whole: int
    prefix: int
    matches: list[Match]


class Contamination(_Record):
    """contamination.json. `excluded` says whether the matched prompts were left out of the training file."""

    schema_version: Literal[1] = 1
    training_prompts: int
    matched_prompts: int
    excluded: bool
    benchmarks: dict[str, BenchmarkContamination]


def key(text: str) -> str:
    """What of a text is compared (see the module)."""
    return _OTHER.sub("", _LAYOUT.sub("", text.lower()))


def find(prompts: Sequence[Prompt], benchmarks: Mapping[str, Benchmark], *, excluded: bool) -> Contamination:
    """Compare every benchmark problem with every training prompt, by two dictionaries instead of pairs."""
    whole: dict[str, list[Prompt]] = {}
    prefix: dict[str, list[Prompt]] = {}
    keys = {p.row: key(p.problem) for p in prompts}
    for p in prompts:
        k = keys[p.row]
        if k:
            whole.setdefault(k, []).append(p)
        if len(k) >= PREFIX:
            prefix.setdefault(k[:PREFIX], []).append(p)
    reports = {}
    for name, benchmark in benchmarks.items():
        matches = []
        for problem in benchmark.problems:
            k = key(problem.problem)
            rows = [_matched(p, "whole") for p in whole.get(k, [])]
            if len(k) >= PREFIX:
                rows += [_matched(p, "prefix") for p in prefix.get(k[:PREFIX], []) if keys[p.row] != k]
            if rows:
                matches.append(Match(problem_id=problem.id, kind=rows[0].kind, rows=rows))
        exact = sum(m.kind == "whole" for m in matches)
        reports[name] = BenchmarkContamination(
            title=benchmark.spec.title,
            problems=len(benchmark.problems),
            golds_sha256=benchmark.identity.golds_sha256,
            contaminated=len(matches),
            whole=exact,
            prefix=len(matches) - exact,
            matches=matches,
        )
    matched = {r.problem_id for b in reports.values() for m in b.matches for r in m.rows}
    return Contamination(
        training_prompts=len(prompts), matched_prompts=len(matched), excluded=excluded, benchmarks=reports
    )


def _matched(p: Prompt, kind: Kind) -> MatchedPrompt:
    return MatchedPrompt(problem_id=p.problem_id, row=p.row, source_id=p.source_id, kind=kind)


def matched_ids(report: Contamination) -> set[str]:
    """problem_id of every training prompt that a benchmark problem matched."""
    return {r.problem_id for b in report.benchmarks.values() for m in b.matches for r in m.rows}
